"""The paged KV store: plain arrays in the one layout that all CPU backends share.

A page holds `page_size` tokens (a multiple of 16) of all layers in one piece, keys before values in each layer, so that
it moves between tiers by one copy, and memory is touched page by page: with an array for each layer, all of them would
reach a new huge page in the same step, which then waits for 100 MB of zeros. Views per layer, for `num_pages` pages:

    k [num_pages, kv_heads, page_size / 16, head_dim, 16]   lanes are keys: q.k is a sum over head_dim of 16-wide rows
    v [num_pages, kv_heads, page_size, head_dim]            lanes are head dimensions

What a page has of one head is contiguous, so attention streams it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ConfigError

__all__ = ["KV_DTYPES", "LANES", "KVStore"]

LANES = 16
_ALIGNMENT = 4096
# Pages are an odd number of lines of 64 bytes apart, so that those of one layer start in all sets of the caches; with
# the powers of two that sizes are made of, they would share a few of them. 65 lines more than a multiple of 128.
_LINES_APART = 65 * 64
_OF_LINES = 128 * 64
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
        stride = self.page_stride(layers, page_size, kv_heads, head_dim, dtype)
        self._used = self.page_bytes(layers, page_size, kv_heads, head_dim, dtype)
        self._pages = _zeros(num_pages * stride).reshape(num_pages, stride)
        k_shape = (num_pages, kv_heads, page_size // LANES, head_dim, LANES)
        v_shape = (num_pages, kv_heads, page_size, head_dim)
        each = self._used // (2 * layers)
        parts = [self._pages[:, at : at + each].view(storage) for at in range(0, self._used, each)]
        self.k: list[NDArray[np.generic]] = [part.reshape(k_shape) for part in parts[::2]]
        self.v: list[NDArray[np.generic]] = [part.reshape(v_shape) for part in parts[1::2]]

    @staticmethod
    def page_bytes(layers: int, page_size: int, kv_heads: int, head_dim: int, dtype: str) -> int:
        """Bytes of one page over all layers, K and V."""
        return 2 * layers * page_size * kv_heads * head_dim * KV_DTYPES[dtype]

    @staticmethod
    def page_stride(layers: int, page_size: int, kv_heads: int, head_dim: int, dtype: str) -> int:
        """Bytes of memory that a page takes, up to the start of the next."""
        size = KVStore.page_bytes(layers, page_size, kv_heads, head_dim, dtype)
        return size + (_LINES_APART - size) % _OF_LINES

    @property
    def nbytes(self) -> int:
        return self._pages.nbytes

    def page_parts(self, page: int) -> list[NDArray[np.generic]]:
        """One page as contiguous, writable views of bytes; here it is a single one."""
        return [self._pages[page, : self._used]]

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page in every layer (copy-on-write)."""
        self._pages[target] = self._pages[source]


def _zeros(count: int) -> NDArray[np.uint8]:
    """Bytes that start on a page of memory, so that no vector of K or V lies across two cache lines."""
    # np.zeros maps memory without touching it: a page costs RAM only once it is used.
    raw = np.zeros(count + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + count]
