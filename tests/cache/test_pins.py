"""Pins: pages of a pinned prefix stay, those that come later too, and no more than may be pinned."""

from __future__ import annotations

from array import array

import pytest

from octavo.cache.manager import CacheManager
from octavo.cache.radix import Namespace
from octavo.core.errors import ConfigError

SIZE = 4
PLAIN = Namespace()


def run(cache: CacheManager, tokens: list[int], namespace: Namespace = PLAIN) -> None:
    """A sequence that computes and publishes all its tokens, and ends."""
    data = array("i", tokens)
    table = cache.begin(data, limit=len(data) - 1, namespace=namespace)
    assert table is not None
    cache.copies_done()
    cache.publish(table, data, len(data))
    cache.free(table)


def fill(cache: CacheManager, seed: int) -> None:
    """Something that needs every page that can be had."""
    run(cache, [seed] * cache.available * SIZE)


def cached(cache: CacheManager, tokens: list[int], namespace: Namespace = PLAIN) -> int:
    cache.check()
    return cache.tree.match(tokens, namespace).tokens


def test_a_pinned_prefix_outlives_what_needs_all_pages() -> None:
    cache = CacheManager(8, SIZE)
    run(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    assert cache.pin([1, 2, 3, 4, 5, 6, 7, 8, 0, 0], PLAIN) == 2
    usage = cache.usage()
    assert (usage.used_pages, usage.pinned_pages, usage.cached_pages) == (2, 2, 1)
    fill(cache, 7)
    fill(cache, 8)
    assert cached(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]) == 8
    assert cache.unpin([1, 2, 3, 4, 5, 6, 7, 8], PLAIN)
    assert cache.usage().pinned_pages == cache.usage().used_pages == 0
    fill(cache, 9)
    assert cached(cache, [1, 2, 3, 4]) == 0


def test_a_prefix_can_be_pinned_before_it_is_computed() -> None:
    cache = CacheManager(8, SIZE)
    prefix = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert cache.pin(prefix, PLAIN) == 0
    run(cache, prefix[:7])
    assert cache.usage().pinned_pages == 1
    fill(cache, 7)
    assert cached(cache, prefix) == 4
    run(cache, [*prefix, 13, 14, 15, 16])
    assert cache.usage().pinned_pages == 3
    fill(cache, 8)
    assert cached(cache, [*prefix, 13, 14, 15, 16]) == 12


def test_a_pinned_page_that_two_sequences_compute_is_held_once() -> None:
    cache = CacheManager(8, SIZE)
    tokens = array("i", [1, 2, 3, 4, 5])
    cache.pin(tokens, PLAIN)
    a, b = (cache.begin(tokens, limit=4, namespace=PLAIN) for _ in range(2))
    assert a is not None
    assert b is not None
    for table in (a, b):
        cache.publish(table, tokens, 5)
    assert cache.pool.refs(a.pages[0]) == 3
    cache.free(a)
    cache.free(b)
    assert cache.usage().used_pages == cache.usage().pinned_pages == 1
    cache.check()


def test_pins_that_begin_alike_share_pages_and_end_apart() -> None:
    cache = CacheManager(8, SIZE)
    short, long, other = [1] * 4, [1] * 8, [1] * 4 + [2] * 4
    for tokens in (long, other):
        run(cache, tokens)
        cache.pin(tokens, PLAIN)
    assert cache.pin(short, PLAIN) == 1
    assert cache.pin(short, PLAIN) == 1, "again is no other pin"
    assert cache.usage().pinned_pages == len(cache.pins) == 3
    assert cache.unpin(long, PLAIN)
    assert not cache.unpin(long, PLAIN)
    assert cache.usage().pinned_pages == 2
    assert cache.unpin(other, PLAIN)
    assert cache.usage().pinned_pages == 1
    fill(cache, 7)
    assert cached(cache, long) == 4
    assert cache.unpin(short, PLAIN)
    assert cache.usage().pinned_pages == len(cache.pins) == 0
    assert not cache.unpin([], PLAIN)


def test_a_pin_is_of_one_namespace() -> None:
    cache = CacheManager(8, SIZE)
    salted = Namespace(salt="a")
    cache.pin([1] * 4, salted)
    run(cache, [1] * 4)
    assert cache.usage().pinned_pages == 0
    run(cache, [1] * 4, salted)
    assert cache.usage().pinned_pages == 1
    assert not cache.unpin([1] * 4, PLAIN)
    fill(cache, 7)
    assert (cached(cache, [1] * 4), cached(cache, [1] * 4, salted)) == (0, 4)


def test_at_most_half_of_the_pages_can_be_pinned_cached_or_not() -> None:
    cache = CacheManager(8, SIZE)
    cache.pin([1] * 12, PLAIN)
    with pytest.raises(ConfigError, match=r"cannot pin 2 pages, 2 of them new: 3 are pinned.*8 pages at most 4 can be"):
        cache.pin([2] * 8, PLAIN)
    assert cache.pin([1] * 4 + [2] * 4, PLAIN) == 0, "only one page more"
    with pytest.raises(ConfigError, match="kv_cache_bytes"):
        cache.pin([3] * 4, PLAIN)
    cache.unpin([1] * 12, PLAIN)
    cache.pin([3] * 4, PLAIN)
    cache.check()


def test_the_limit_can_be_lowered_for_long_sequences() -> None:
    cache = CacheManager(8, SIZE)
    cache.pins.limit = 1
    with pytest.raises(ConfigError, match="at most 1 can be"):
        cache.pin([1] * 8, PLAIN)
    assert len(cache.pins) == 0


def test_what_cannot_be_pinned_is_refused() -> None:
    cache = CacheManager(8, SIZE)
    with pytest.raises(ConfigError, match="one has 4 tokens"):
        cache.pin([1, 2, 3], PLAIN)
    off = CacheManager(8, SIZE, enable_prefix_caching=False)
    with pytest.raises(ConfigError, match="enable_prefix_caching"):
        off.pin([1] * 4, PLAIN)


def test_pins_are_listed_and_survive_a_manager_whose_books_are_broken() -> None:
    cache = CacheManager(16, SIZE)
    cache.pins.limit = 5
    pinned = [(PLAIN, [1] * 8), (PLAIN, [1] * 4), (PLAIN, [1] * 4 + [2] * 4), (Namespace("a"), [1] * 4)]
    for namespace, tokens in pinned:
        run(cache, tokens, namespace)
        cache.pin([*tokens, 9], namespace)
    renewed = cache.renewed()
    for listed in (cache.pins, renewed.pins):
        assert sorted((str(n), tokens.tolist()) for n, tokens in listed) == sorted((str(n), t) for n, t in pinned)
        assert (len(listed), listed.limit) == (4, 5)
    assert renewed.usage().pinned_pages == 0
    run(renewed, [1] * 8)
    assert renewed.usage().pinned_pages == 2
    renewed.check()


def test_reset_leaves_pinned_pages() -> None:
    cache = CacheManager(8, SIZE)
    run(cache, [1] * 8)
    cache.pin([1] * 4, PLAIN)
    assert cache.reset() == 1
    assert cached(cache, [1] * 8) == 4


def test_a_pinned_prefix_serves_sequences_and_stays_when_they_end() -> None:
    cache = CacheManager(8, SIZE)
    run(cache, [1] * 8)
    cache.pin([1] * 8, PLAIN)
    tokens = array("i", [1] * 9)
    table = cache.begin(tokens, limit=8, namespace=PLAIN)
    assert table is not None
    assert table.cached == 8
    assert cache.unpin([1] * 8, PLAIN), "the sequence goes on with its pages"
    assert cache.usage().used_pages == 3
    cache.pin([1] * 8, PLAIN)
    cache.free(table)
    assert cache.usage().used_pages == 2
    cache.check()
