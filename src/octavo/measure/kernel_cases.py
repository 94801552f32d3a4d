"""The cases of a kernel benchmark: each op on data that is larger than the last-level cache.

What a decode step reads comes from memory. So the data of an op is laid out several times, more than any cache holds
together, and its calls go round the copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from octavo.core.batch import RaggedBatch
from octavo.core.host import host_facts
from octavo.measure.limits import Kind, kind_of_format
from octavo.measure.random_weights import random_tensor
from octavo.ops.api import F32, AttentionSpec, Norm, Ops
from octavo.ops.kv import KV_DTYPES, KVStore

__all__ = ["Case", "attention_cases", "copies_past_cache", "embedding_cases", "linear_cases", "norm_cases"]

# Copies together are this many times the last-level cache: one that keeps a third of what goes round would flatter.
CACHE_MULTIPLE = 8
# Where the system does not tell its caches: more than most have.
UNKNOWN_CACHE_BYTES = 64 << 20
# Tiny matrices would need tens of thousands of copies; they are measured in the cache, and the report says so.
MAX_COPIES = 256

# Attention as Llama 3 8B has it, 4 query heads per KV head, and as Qwen2.5 1.5B, 6.
ATTENTION = tuple(AttentionSpec(heads, kv, head_dim=128, scale=128**-0.5) for heads, kv in ((32, 8), (12, 2)))
CONTEXT = 8192
PAGE = 32


@dataclass(frozen=True)
class Case:
    """One row to measure.

    labels: what it is, in the report's words. calls: do the same on different copies of the data, in turn.
    moved_bytes: read (and for ops without weights, written) by a call. cold: they come from memory, so the stream rate
    is a limit. macs: multiply-accumulates of a call, of this kind; the peak of which is a limit.
    """

    labels: dict[str, Any]
    calls: Sequence[Callable[[], object]]
    moved_bytes: int
    cold: bool
    macs: int = 0
    kind: Kind = "f32"


def copies_past_cache(size_bytes: int) -> tuple[int, bool]:
    """How many copies of so many bytes to go round, and whether no cache holds them together.

    At least two, so that no call reads what the one before it left.
    """
    cache = max((cache.size_bytes for cache in host_facts().caches), default=UNKNOWN_CACHE_BYTES)
    wanted = max(2, -(-int(CACHE_MULTIPLE * cache) // size_bytes))
    return min(wanted, MAX_COPIES), wanted <= MAX_COPIES


def linear_cases(ops: Ops, dtype: str, rows: int, columns: int, tokens: Sequence[int]) -> Iterator[Case]:
    """x [M, K] times a matrix [N, K] in this format, for each M.

    bits: per weight, scales included, as stored; packed_bits: as packed, which is what moves.
    Raises UnsupportedModelError (a format without a kernel), ConfigError (K does not divide into its blocks).
    """
    tensor = random_tensor(dtype, rows, columns)
    first = ops.pack([tensor])
    count, cold = copies_past_cache(first.packed_bytes)
    packed = [first, *(ops.pack([tensor]) for _ in range(count - 1))]
    bits = {"bits": 8 * tensor.data.nbytes / (rows * columns), "packed_bits": 8 * first.packed_bytes / (rows * columns)}
    for m in tokens:
        x = _activations(m, columns)
        yield Case(
            labels={"op": "linear", "format": dtype, "shape": [rows, columns], "tokens": m, **bits},
            calls=[partial(ops.linear, x, w) for w in packed],
            moved_bytes=first.packed_bytes,
            cold=cold,
            macs=m * rows * columns,
            kind=kind_of_format(dtype),
        )


def embedding_cases(ops: Ops, dtype: str, columns: int, tokens: Sequence[int]) -> Iterator[Case]:
    """Random rows of a table that no cache holds."""
    row_bytes = random_tensor(dtype, 1, columns).data.nbytes
    rows, cold = copies_past_cache(256 * row_bytes)
    table = random_tensor(dtype, 256 * rows, columns)
    rng = np.random.default_rng(0)
    for m in tokens:
        picks = [rng.integers(0, 256 * rows, m, dtype=np.int32) for _ in range(64)]
        yield Case(
            labels={"op": "embedding", "format": dtype, "shape": [256 * rows, columns], "tokens": m},
            calls=[partial(ops.embedding, table, ids) for ids in picks],
            moved_bytes=m * row_bytes,
            cold=cold,
        )


def norm_cases(ops: Ops, columns: int, tokens: Sequence[int]) -> Iterator[Case]:
    """RMS norm of x [M, K], which is in a cache as it is in a model: read once, written once."""
    norm = Norm(np.ones(columns, np.float32), 1e-6)
    for m in tokens:
        x = _activations(m, columns)
        labels = {"op": "rms_norm", "shape": [m, columns], "tokens": m}
        yield Case(labels, [partial(ops.rms_norm, x, norm)], moved_bytes=2 * x.nbytes, cold=False)


def attention_cases(ops: Ops) -> Iterator[Case]:
    """Per KV format and shape: one query at the end of a long context, and a prompt of its length as a whole.

    Pages lie where no cache holds them all.
    """
    for dtype in KV_DTYPES:
        for spec in ATTENTION:
            token_bytes = KVStore.page_bytes(1, PAGE, spec.kv_heads, spec.head_dim, dtype) // PAGE
            count, cold = copies_past_cache(CONTEXT * token_bytes)
            kv = _filled_store(count * CONTEXT // PAGE, dtype, spec)
            yield _attention_case(ops, kv, spec, 1, {"phase": "decode"}, cold)
            yield _attention_case(ops, kv, spec, CONTEXT, {"phase": "prefill"}, False)


def _attention_case(
    ops: Ops, kv: KVStore, spec: AttentionSpec, tokens: int, labels: dict[str, Any], cold: bool
) -> Case:
    """The last `tokens` of a context; each call sees other pages."""
    pages = CONTEXT // PAGE
    q = _activations(tokens, spec.heads * spec.head_dim)
    tables = [np.arange(at, at + pages, dtype=np.int32)[None] for at in range(0, kv.num_pages - pages + 1, pages)]
    batches = [
        RaggedBatch(
            tokens=np.zeros(tokens, np.int32),
            positions=np.arange(CONTEXT - tokens, CONTEXT, dtype=np.int32),
            query_starts=np.array([0, tokens], np.int32),
            kv_lens=np.array([CONTEXT], np.int32),
            page_tables=table,
            logit_rows=np.zeros(0, np.int32),
        )
        for table in tables
    ]
    shape = {"heads": spec.heads, "kv_heads": spec.kv_heads, "head_dim": spec.head_dim}
    seen = sum(range(CONTEXT - tokens + 1, CONTEXT + 1))
    return Case(
        labels={"op": "attention", "kv_dtype": kv.dtype, **labels, "context": CONTEXT, "tokens": tokens, **shape},
        calls=[partial(ops.attention, q, kv, 0, batch, spec) for batch in batches],
        moved_bytes=KVStore.page_bytes(1, PAGE, spec.kv_heads, spec.head_dim, kv.dtype) * pages,
        cold=cold,
        macs=2 * seen * spec.heads * spec.head_dim,
    )


def _filled_store(pages: int, dtype: str, spec: AttentionSpec) -> KVStore:
    """One layer of random keys and values. Pages left as they were made would all be the system's one zero page."""
    kv = KVStore(1, pages, PAGE, spec.kv_heads, spec.head_dim, dtype)
    values = np.random.default_rng(0).standard_normal(kv.k[0][0].size, np.float32)
    page = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else values.astype(kv.k[0].dtype)
    kv.k[0][:] = page.reshape(kv.k[0][0].shape)
    kv.v[0][:] = page.reshape(kv.v[0][0].shape)
    return kv


def _activations(rows: int, columns: int) -> F32:
    return np.random.default_rng(1).standard_normal((rows, columns), np.float32)
