"""Pages on their way from disk into the page tables of sequences, in the background.

A page that a load writes belongs to the load until its future is done, whatever becomes of the table meanwhile. A load
whose table has been freed is given up: it ends after the page that is being read.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from octavo.cache.disk import DiskStore
from octavo.cache.disk_format import PageKey, Part
from octavo.cache.pages import PagePool

__all__ = ["Load", "Loads"]

logger = logging.getLogger(__name__)


class Load:
    """A run of pages that is read from disk into `pages` of one table.

    keys: what is read, page by page. tokens, limit: of the table, as given to `CacheManager.begin`. wanted: the table
    still exists.
    """

    __slots__ = ("future", "keys", "limit", "pages", "tokens", "wanted")

    def __init__(self, keys: list[PageKey], pages: Sequence[int], tokens: array[int], limit: int) -> None:
        self.keys, self.pages, self.tokens, self.limit = keys, pages, tokens, limit
        self.wanted = True
        self.future: Future[int] | None = None

    @property
    def done(self) -> bool:
        """Whether nothing is written to its pages any more."""
        return self.future is not None and self.future.done()

    def count(self) -> int:
        """How many pages came, once it is done. What broke a read is a miss, like everything that fails on disk."""
        assert self.future is not None
        try:
            return self.future.result()
        except Exception:
            logger.exception("%d KV pages could not be read from disk", len(self.pages))
            return 0


class Loads:
    """All loads under way. `parts(page)` are the writable pieces of a KV page."""

    def __init__(self, store: DiskStore, parts: Callable[[int], Sequence[Part]]) -> None:
        self._store, self._parts = store, parts
        self._wanted: list[Load] = []
        self._given_up: list[Load] = []

    def __iter__(self) -> Iterator[Load]:
        yield from self._wanted
        yield from self._given_up

    @property
    def given_up(self) -> bool:
        """Whether pages of freed tables are still being written."""
        return bool(self._given_up)

    @property
    def num_pages(self) -> int:
        """Pages that are being written, or about to be."""
        return sum(len(load.pages) for load in self)

    def start(self, keys: list[PageKey], pages: Sequence[int], tokens: array[int], limit: int) -> Load:
        """Start to read; nobody else touches these pages from now on."""
        load = Load(keys, pages, tokens, limit)
        self._wanted.append(load)
        load.future = self._store.fetch(keys, self._places(load))
        return load

    def finish(self, load: Load) -> int:
        """Forget a load that is done; returns how many of its pages came."""
        self._wanted.remove(load)
        return load.count()

    def give_up(self, load: Load) -> bool:
        """End a load early. True: its pages can be used now; False: `reap` will return them."""
        load.wanted = False
        self._wanted.remove(load)
        if load.future is None or load.future.cancel() or load.future.done():
            return True
        self._given_up.append(load)
        return False

    def reap(self) -> list[int]:
        """Pages of loads that were given up and are done: they can be used now."""
        done = [load for load in self._given_up if load.done]
        if done:
            self._given_up = [load for load in self._given_up if load not in done]
        return [page for load in done for page in load.pages]

    def wait_given_up(self) -> None:
        """Block until one of the loads that were given up is done: at most the read of a page."""
        self.wait(self._given_up, None)

    def wait(self, loads: Iterable[Load], timeout_s: float | None) -> None:
        """Block until one of these is done."""
        futures = [load.future for load in loads if load.future is not None]
        if futures:
            wait(futures, timeout_s, return_when=FIRST_COMPLETED)

    def end(self) -> list[int]:
        """Give everything up and block until nothing is written any more; returns all pages that were to be."""
        pages = [page for load in self for page in load.pages]
        for load in list(self._wanted):
            self.give_up(load)
        while self._given_up:
            self.wait_given_up()
            self.reap()
        return pages

    def check(self, pool: PagePool) -> None:
        """Assert that each page under way has one user and is not cached; for tests and soaks."""
        pages = [page for load in self for page in load.pages]
        assert len(pages) == len(set(pages)), "two reads from disk write the same page"
        for page in pages:
            assert pool.refs(page) == 1, f"page {page} is written from disk, and has not one user"
            assert not pool.is_cached(page), f"page {page} is written from disk, and cached"

    def _places(self, load: Load) -> Iterator[Sequence[Part]]:
        """Runs in the reading thread, which thereby stops soon once the load is given up."""
        for page in load.pages:
            if not load.wanted:
                return
            yield self._parts(page)
