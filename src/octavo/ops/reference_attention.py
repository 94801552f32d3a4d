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
    """Put k, v [T, kv_heads, D] at the batch's positions, rounded to the store's dtype."""
    sequence = np.repeat(np.arange(batch.num_sequences), np.diff(batch.query_starts))
    pages = batch.page_tables[sequence, batch.positions // kv.page_size]
    assert np.all((pages >= 0) & (pages < kv.num_pages)), "the page table has no page for a position of the batch"
    slots = batch.positions % kv.page_size
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
            result[rows] = _attend(q[rows], keys, values, batch.positions[rows], spec)
    return result


def _attend(q: F32, keys: F32, values: F32, positions: NDArray[np.int32], spec: AttentionSpec) -> F32:
    """One sequence: q [n, heads * D], keys, values [kv_heads, L, D], positions [n] -> [n, heads * D]."""
    n, group = len(q), spec.heads // spec.kv_heads
    queries = q.reshape(n, spec.heads, spec.head_dim)
    hidden = ~_visible(positions, keys.shape[1], spec.window)
    result = np.empty_like(queries)
    for head in range(spec.heads):
        scores = softcap(queries[:, head] @ keys[head // group].T * np.float32(spec.scale), spec.softcap)
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        result[:, head] = weights @ values[head // group] / weights.sum(axis=1, keepdims=True)
    return result.reshape(n, -1)


def _visible(positions: NDArray[np.int32], length: int, window: int) -> NDArray[np.bool_]:
    """bool [n, length]: the query at position p sees keys max(0, p - window + 1)..p (0..p if window is 0)."""
    key, query = np.arange(length)[None, :], positions[:, None]
    visible = key <= query
    return visible & (key > query - window) if window else visible
