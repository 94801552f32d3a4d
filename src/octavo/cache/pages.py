"""The page pool: which KV pages are used, cached or free.

A page is in exactly one state:

    used    references > 0           some sequence reads or writes it, or a pin holds it (it may be cached as well)
    idle    references = 0, cached   the prefix tree names it; it can be evicted at any time
    free    references = 0           on the free list

Every operation on one page is O(1).
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.errors import ConfigError

__all__ = ["PagePool"]


class PagePool:
    """Reference counts and the free list of `num_pages` pages, numbered from 0.

    References count sequences (and pins); the prefix tree's own claim is the `cached` mark, so a page that only the
    tree names has a reference count of zero.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ConfigError(f"a KV cache of {num_pages} pages cannot hold a token; raise kv_cache_bytes")
        self.num_pages = num_pages
        self._refs = [0] * num_pages
        self._cached = bytearray(num_pages)
        # A stack: the page freed last is taken first, while it is still warm in the processor's caches.
        self._free = list(range(num_pages - 1, -1, -1))
        self._idle = 0

    @property
    def num_free(self) -> int:
        """Pages on the free list."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Cached pages that no sequence uses and no pin holds."""
        return self._idle

    @property
    def num_used(self) -> int:
        """Pages that at least one sequence uses or a pin holds."""
        return self.num_pages - len(self._free) - self._idle

    def refs(self, page: int) -> int:
        """How many sequences use the page; its pin counts as one."""
        return self._refs[page]

    def is_cached(self, page: int) -> bool:
        return bool(self._cached[page])

    def alloc(self) -> int:
        """Take a free page with one reference. The caller has made sure that there is one."""
        assert self._free, "no free page; evict first"
        page = self._free.pop()
        self._refs[page] = 1
        return page

    def incref(self, page: int) -> None:
        """One more user of a page that is used or idle."""
        refs = self._refs[page]
        if refs == 0:
            assert self._cached[page], f"page {page} is free"
            self._idle -= 1
        self._refs[page] = refs + 1

    def decref(self, page: int) -> int:
        """One user fewer; returns how many are left. At zero the page is idle if cached, else free."""
        refs = self._refs[page] - 1
        assert refs >= 0, f"page {page} has no reference to give back"
        self._refs[page] = refs
        if refs == 0:
            if self._cached[page]:
                self._idle += 1
            else:
                self._free.append(page)
        return refs

    def cache(self, page: int) -> None:
        """The prefix tree starts to name a page that a sequence has filled and still uses."""
        assert self._refs[page] > 0, f"page {page} is not in use"
        assert not self._cached[page], f"page {page} is already cached"
        self._cached[page] = 1

    def uncache(self, page: int) -> None:
        """The prefix tree stops naming a page; without users it is free."""
        assert self._cached[page], f"page {page} is not cached"
        self._cached[page] = 0
        if self._refs[page] == 0:
            self._idle -= 1
            self._free.append(page)

    def check(self, cached: Iterable[int]) -> None:
        """Assert every invariant against the pages that the tree says it names. O(num_pages); for tests and soaks."""
        named = list(cached)
        assert len(named) == len(set(named)), "a page is cached twice"
        assert {p for p in range(self.num_pages) if self._cached[p]} == set(named), "cached marks differ from the tree"
        free = set(self._free)
        assert len(free) == len(self._free), "a page is on the free list twice"
        for page in range(self.num_pages):
            is_free = self._refs[page] == 0 and not self._cached[page]
            assert (page in free) == is_free, f"page {page} is in two states"
        assert self._idle == sum(1 for p in named if self._refs[p] == 0), "the count of idle pages is wrong"
