"""The KV store: one piece of memory a page, views per layer that lie in it."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.core.errors import ConfigError
from octavo.ops.kv import KV_DTYPES, KVStore


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize(("layers", "page_size", "heads", "dim"), [(1, 16, 1, 16), (3, 32, 2, 64), (5, 64, 3, 48)])
def test_a_page_holds_keys_and_values_of_all_layers_and_nothing_else(
    layers: int, page_size: int, heads: int, dim: int, dtype: str
) -> None:
    kv = KVStore(layers, 4, page_size, heads, dim, dtype)
    (page,) = kv.page_parts(2)
    assert page.flags.c_contiguous
    assert page.nbytes == KVStore.page_bytes(layers, page_size, heads, dim, dtype)
    page[:] = 255
    for array in (*kv.k, *kv.v):
        assert (array[2].view(np.uint8) == 255).all()
        assert not array[[0, 1, 3]].any()
        assert array[2].flags.c_contiguous
        assert array.ctypes.data % 64 == 0
    total = sum(array[2].nbytes for array in (*kv.k, *kv.v))
    assert total == page.nbytes
    assert kv.k[0].shape == (4, heads, page_size // 16, dim, 16)
    assert kv.v[0].shape == (4, heads, page_size, dim)


def test_copies_every_layer_of_a_page() -> None:
    kv = KVStore(3, 4, 16, 2, 16, "float32")
    for number, array in enumerate((*kv.k, *kv.v)):
        array[1] = number + 1
    kv.copy_page(1, 3)
    for number, array in enumerate((*kv.k, *kv.v)):
        assert (array[3] == number + 1).all()
        assert not array[[0, 2]].any()


@pytest.mark.parametrize(
    "shape", [(30, 32, 3, 64), (28, 32, 2, 128), (24, 32, 2, 64), (18, 32, 1, 256), (32, 64, 8, 128)]
)
def test_pages_of_a_layer_are_spread_over_the_cache_sets(shape: tuple[int, int, int, int]) -> None:
    size, stride = KVStore.page_bytes(*shape, "float16"), KVStore.page_stride(*shape, "float16")
    assert size <= stride < size + 8192
    assert stride % 64 == 0
    starts = [page * stride % (1 << 16) // 4096 for page in range(160)]
    assert all(8 <= starts.count(place) <= 12 for place in range(16))


@pytest.mark.parametrize(("dtype", "page_size"), [("int3", 16), ("float16", 8), ("float16", 24)])
def test_refuses_what_it_cannot_hold(dtype: str, page_size: int) -> None:
    with pytest.raises(ConfigError):
        KVStore(1, 1, page_size, 1, 16, dtype)
