"""Paged attention of the reference ops: writing K and V to their pages, reading them back, softmax(q.k) v."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.core.batch import RaggedBatch
from octavo.ops.api import F32, AttentionSpec
from octavo.ops.kv import LANES, KVStore
from octavo.ops.reference_math import from_storage, softcap, to_storage

__all__ = ["attention", "read_kv", "write_kv"]


def write_kv(k: F32, v: F32, kv: KVStore, layer: int, batch: RaggedBatch) -> None:
    """Put k, v [T, kv_heads, D] at the batch's slots, rounded to the store's dtype."""
    sequence = np.repeat(np.arange(batch.num_sequences), np.diff(batch.query_starts))
    pages = batch.page_tables[sequence, batch.slots // kv.page_size]
    assert np.all((pages >= 0) & (pages < kv.num_pages)), "the page table has no page for a position of the batch"
    slots = batch.slots % kv.page_size
    # Advanced indices split by a slice put the token axis first: both targets are [T, kv_heads, D].
    kv.k[layer][pages, :, slots // LANES, :, slots % LANES] = to_storage(k, kv.dtype)
    kv.v[layer][pages, :, slots, :] = to_storage(v, kv.dtype)


def read_kv(kv: KVStore, layer: int, pages: NDArray[np.int32], length: int) -> tuple[F32, F32]:
    """K and V of a sequence's first `length` tokens, each f32 [kv_heads, length, D]; pages [>= length / page_size]."""
    used = pages[: -(-length // kv.page_size)]
    assert np.all((used >= 0) & (used < kv.num_pages)), "the page table has no page for a position of the sequence"
    heads, dim = kv.kv_heads, kv.head_dim
    # [pages, heads, groups, D, lanes] -> [heads, pages * groups * lanes, D]
    k = from_storage(kv.k[layer][used], kv.dtype).transpose(1, 0, 2, 4, 3).reshape(heads, -1, dim)
    v = from_storage(kv.v[layer][used], kv.dtype).transpose(1, 0, 2, 3).reshape(heads, -1, dim)
    return k[:, :length], v[:, :length]


def attention(q: F32, kv: KVStore, layer: int, batch: RaggedBatch, spec: AttentionSpec) -> F32:
    """Causal attention over pages; q [T, heads * D] -> [T, heads * D]. See Ops.attention."""
    result = np.empty_like(q)
    for s in range(batch.num_sequences):
        rows = slice(int(batch.query_starts[s]), int(batch.query_starts[s + 1]))
        if rows.start < rows.stop:
            keys, values = read_kv(kv, layer, batch.page_tables[s], int(batch.kv_lens[s]))
            tree = None if batch.tree is None else batch.tree[rows]
            result[rows] = _attend(
                q[rows], keys, values, _visible(batch.positions[rows], len(keys[0]), spec.window, tree), spec
            )
    return result


def _attend(q: F32, keys: F32, values: F32, visible: NDArray[np.bool_], spec: AttentionSpec) -> F32:
    """One sequence: q [n, heads * D], keys, values [kv_heads, L, D], visible [n, L] -> [n, heads * D]."""
    n, group = len(q), spec.heads // spec.kv_heads
    queries = q.reshape(n, spec.heads, spec.head_dim)
    result = np.empty_like(queries)
    for head in range(spec.heads):
        scores = softcap(queries[:, head] @ keys[head // group].T * np.float32(spec.scale), spec.softcap)
        scores[~visible] = -np.inf
        top = scores.max(axis=1, keepdims=True)
        if spec.sinks is not None:
            top = np.maximum(top, spec.sinks[head])
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True)
        if spec.sinks is not None:
            total += np.exp(spec.sinks[head] - top)
        result[:, head] = weights @ values[head // group] / total
    return result.reshape(n, -1)


def _visible(
    positions: NDArray[np.int32], length: int, window: int, tree: NDArray[np.uint64] | None
) -> NDArray[np.bool_]:
    """bool [n, length]: the query at position p sees keys max(0, p - window + 1)..p (0..p if window is 0).

    With a tree (see RaggedBatch), of the n new keys the ones whose bit is set.
    """
    n, key, query = len(positions), np.arange(length), positions[:, None]
    if tree is None:
        visible = key <= query
    else:
        key = np.concatenate([key[: length - n], positions])
        bits = tree[:, None] >> np.arange(n, dtype=np.uint64) & np.uint64(1)
        visible = np.concatenate([np.ones((n, length - n), bool), bits.astype(bool)], axis=1)
    return visible & (key > query - window) if window else visible
