"""The paged KV store: plain arrays in the one layout that all CPU backends share.

Per layer, for `num_pages` pages of `page_size` tokens (a multiple of 16):

    k [num_pages, kv_heads, page_size / 16, head_dim, 16]   lanes are keys: q.k is a sum over head_dim of 16-wide rows
    v [num_pages, kv_heads, page_size, head_dim]            lanes are head dimensions

A page of one head is contiguous, so attention streams it; a page of all layers moves between tiers as bytes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ConfigError

__all__ = ["KV_DTYPES", "LANES", "KVStore"]

LANES = 16
_ALIGNMENT = 4096
KV_DTYPES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Storage dtype -> bytes per number."""


class KVStore:
    """KV pages of all layers. bfloat16 is kept as u16 (its upper 16 bits of f32)."""

    def __init__(self, layers: int, num_pages: int, page_size: int, kv_heads: int, head_dim: int, dtype: str) -> None:
        if dtype not in KV_DTYPES:
            raise ConfigError(f"kv_cache_dtype {dtype!r} is not known; possible: {', '.join(KV_DTYPES)}")
        if page_size < LANES or page_size % LANES:
            raise ConfigError(f"block_size {page_size} must be a multiple of {LANES}")
        self.layers, self.num_pages, self.page_size = layers, num_pages, page_size
        self.kv_heads, self.head_dim, self.dtype = kv_heads, head_dim, dtype
        storage: np.dtype[np.generic] = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        k_shape = (num_pages, kv_heads, page_size // LANES, head_dim, LANES)
        v_shape = (num_pages, kv_heads, page_size, head_dim)
        self.k: list[NDArray[np.generic]] = [_zeros(k_shape, storage) for _ in range(layers)]
        self.v: list[NDArray[np.generic]] = [_zeros(v_shape, storage) for _ in range(layers)]

    @staticmethod
    def page_bytes(layers: int, page_size: int, kv_heads: int, head_dim: int, dtype: str) -> int:
        """Bytes of one page over all layers, K and V."""
        return 2 * layers * page_size * kv_heads * head_dim * KV_DTYPES[dtype]

    @property
    def nbytes(self) -> int:
        return self.num_pages * self.page_bytes(self.layers, self.page_size, self.kv_heads, self.head_dim, self.dtype)

    def page_parts(self, page: int) -> list[NDArray[np.generic]]:
        """One page as contiguous, writable views: keys of all layers, then values."""
        return [layer[page] for layer in (*self.k, *self.v)]

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page in every layer (copy-on-write)."""
        for layer in (*self.k, *self.v):
            layer[target] = layer[source]


def _zeros(shape: tuple[int, ...], storage: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Zeros that start on a page of memory, so that no vector of K or V lies across two cache lines."""
    count = math.prod(shape) * storage.itemsize
    # np.zeros maps memory without touching it: a page costs RAM only once it is used.
    raw = np.zeros(count + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + count].view(storage).reshape(shape)
