"""A cache with a disk tier over pages whose contents say what they should be, and a process that serves from one.

    python -m helpers.tiers DIRECTORY

serves prompts with a pool too small for them, and prints a line after each, until it is killed.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import zlib
from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.disk import DiskStore
from octavo.cache.disk_format import PageIdentity, PageKey, Part
from octavo.cache.manager import CacheManager, PageTable
from octavo.cache.tier import Tier

SIZE = 4
FILE_BYTES = 4096  # of a page here with its record, in whole blocks
PAGE_BYTES = SIZE * (4 + 8)
ROOMY = 1000 * FILE_BYTES


def tokens_of(*tokens: int) -> array[int]:
    return array("i", tokens)


def identity_of(namespace: Hashable) -> PageIdentity:
    salt = None if namespace is None else str(namespace)
    return PageIdentity(
        model="m", producer="p", dtype="float32", page_size=SIZE, layers=1, kv_heads=1, head_dim=1, salt=salt
    )


class SteppedStore(DiskStore):
    """Reads in the background happen page by page, when a test says so, in the test's own thread.

    may_write: writes wait while it is not set.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.reads: list[Iterator[None]] = []
        self.may_write = threading.Event()
        self.may_write.set()
        super().__init__(*args, **kwargs)

    def fetch(self, keys: Sequence[PageKey], into: Iterable[Sequence[Part]]) -> Future[int]:
        future: Future[int] = Future()
        self.reads.append(self._steps(future, keys, into))
        return future

    def step(self, read: int = 0) -> None:
        """Go on with a read: write the page that it has a place for, and take the place of the next."""
        assert self.reads, "nothing is being read"
        if next(self.reads[read], self) is self:
            del self.reads[read]

    def finish(self) -> None:
        """Read all that is to be read."""
        while self.reads:
            self.step()

    def _store(self, item):  # type: ignore[no-untyped-def]
        self.may_write.wait()
        super()._store(item)

    def _steps(self, future: Future[int], keys: Sequence[PageKey], into: Iterable[Sequence[Part]]) -> Iterator[None]:
        if not future.set_running_or_notify_cancel():
            return
        count = 0
        for key, parts in zip(keys, into, strict=False):
            yield
            if not self.get(key, parts):
                break
            count += 1
        future.set_result(count)


class TieredCache:
    """A manager, its tier and their memory. A page holds its tokens, and for each a number made of the whole prefix.

    So a page of another prefix, another namespace or a half-written one is seen when it is read.
    """

    def __init__(
        self, directory: Path, pages: int = 16, max_bytes: int = ROOMY, *, stepped: bool = False, **store: Any
    ) -> None:
        self.ids = np.full((pages, SIZE), -1, np.int32)
        self.marks = np.full((pages, SIZE), -1, np.int64)
        self.store = (SteppedStore if stepped else DiskStore)(directory, max_bytes, **store)
        self.tier = Tier(self.store, identity_of, self.parts, SIZE)
        self.cache = CacheManager(pages, SIZE, tier=self.tier)

    def parts(self, page: int) -> list[NDArray[Any]]:
        return [self.ids[page], self.marks[page]]

    def begin(self, tokens: array[int], namespace: Hashable = None, **options: Any) -> PageTable | None:
        """A table with its copy made; not waited for."""
        table = self.cache.begin(tokens, limit=len(tokens) - 1, namespace=namespace, **options)
        if table is not None:
            self.copy(table)
        return table

    def copy(self, table: PageTable) -> None:
        """What the runner does before a step."""
        if table.copy is not None:
            source, target = table.copy
            self.ids[target], self.marks[target] = self.ids[source], self.marks[source]
        self.cache.copies_done()

    def loaded(self, table: PageTable) -> None:
        """Wait for what a table loads."""
        while not self.cache.poll(table):
            self.cache.wait([table], 60)

    def run(self, tokens: array[int], namespace: Hashable = None, **options: Any) -> PageTable:
        """A sequence with all its pages: cached ones checked, the rest computed and published."""
        table = self.begin(tokens, namespace, **options)
        assert table is not None, "too few pages"
        self.loaded(table)
        self.compute(table, tokens)
        return table

    def serve(self, tokens: array[int], namespace: Hashable = None, **options: Any) -> tuple[int, int]:
        """The same, ended; returns how many tokens were cached, and how many of them came from disk."""
        table = self.run(tokens, namespace, **options)
        cached, disk = table.cached, table.disk
        self.cache.free(table)
        return cached, disk

    def compute(self, table: PageTable, tokens: array[int]) -> None:
        self.check(table, tokens[: table.cached])
        marks = self._marks(tokens, table.namespace)
        for position in range(table.cached, len(tokens)):
            place = table.pages[position // SIZE], position % SIZE
            self.ids[place], self.marks[place] = tokens[position], marks[position]
        self.cache.publish(table, tokens, len(tokens))

    def check(self, table: PageTable, tokens: array[int]) -> None:
        """Assert that the table's pages hold these tokens, after this very prefix."""
        pages = list(table.pages)
        assert self.ids[pages].reshape(-1)[: len(tokens)].tolist() == tokens.tolist()
        assert self.marks[pages].reshape(-1)[: len(tokens)].tolist() == self._marks(tokens, table.namespace)

    def drain(self) -> None:
        """Write all that waits for the disk."""
        self.cache.pump(None, wait_s=60)
        self.store.flush()
        assert self.tier.backlog == 0

    def check_idle(self) -> None:
        """Nothing is used or on its way."""
        usage = self.cache.usage()
        assert (usage.used_pages, usage.loading_pages) == (0, 0)
        assert usage.cached_pages + usage.free_pages == self.cache.pool.num_pages
        self.cache.check()

    def _marks(self, tokens: array[int], namespace: Hashable) -> list[int]:
        start = zlib.crc32(repr(namespace).encode())
        return list(itertools.accumulate(tokens, lambda crc, token: zlib.crc32(b"%d" % token, crc), initial=start))[1:]


def prompts() -> Iterator[array[int]]:
    """Prompts that share their beginnings, without end."""
    draw = random.Random(1)
    while True:
        yield tokens_of(*(draw.randrange(2) for _ in range(draw.randrange(9, 33))))


def main(directory: str) -> None:
    here = TieredCache(Path(directory), pages=12, max_bytes=40 * FILE_BYTES, queue_bytes=4 * PAGE_BYTES)
    for tokens in prompts():
        here.serve(tokens)
        here.cache.pump(2 * PAGE_BYTES)
        print("served", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
