"""The page pool: three states, counted references, nothing lost."""

import pytest

from octavo.cache.pages import PagePool
from octavo.core.errors import ConfigError


def test_a_page_goes_from_free_to_used_and_back() -> None:
    pool = PagePool(3)
    page = pool.alloc()
    assert (pool.num_used, pool.num_idle, pool.num_free) == (1, 0, 2)
    pool.incref(page)
    assert pool.decref(page) == 1
    assert pool.decref(page) == 0
    assert (pool.num_used, pool.num_idle, pool.num_free) == (0, 0, 3)
    pool.check([])


def test_a_cached_page_stays_idle_until_it_is_uncached() -> None:
    pool = PagePool(2)
    page = pool.alloc()
    pool.cache(page)
    pool.decref(page)
    assert (pool.num_used, pool.num_idle, pool.num_free) == (0, 1, 1)
    pool.check([page])
    pool.incref(page)
    assert (pool.num_used, pool.num_idle) == (1, 0)
    pool.decref(page)
    pool.uncache(page)
    assert pool.num_free == 2
    pool.check([])


def test_every_page_is_handed_out_once() -> None:
    pool = PagePool(5)
    assert sorted(pool.alloc() for _ in range(5)) == list(range(5))
    with pytest.raises(AssertionError, match="no free page"):
        pool.alloc()


def test_misuse_is_caught() -> None:
    pool = PagePool(2)
    with pytest.raises(AssertionError, match="is free"):
        pool.incref(0)
    with pytest.raises(AssertionError, match="no reference"):
        pool.decref(0)
    with pytest.raises(AssertionError, match="not in use"):
        pool.cache(0)
    with pytest.raises(AssertionError, match="not cached"):
        pool.uncache(0)
    page = pool.alloc()
    pool.cache(page)
    with pytest.raises(AssertionError, match="already cached"):
        pool.cache(page)
    with pytest.raises(AssertionError, match="differ from the tree"):
        pool.check([])


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match="kv_cache_bytes"):
        PagePool(0)
