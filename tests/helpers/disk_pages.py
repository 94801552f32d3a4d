"""Small pages with known contents for the disk tier, and a process that writes them until it is killed.

    python -m helpers.disk_pages DIRECTORY MAX_BYTES WHERE N

puts pages one after the other and prints a line for each one that has its name. WHERE says what happens at the N-th
(from 0): "published" goes on writing, the others stop for good, "torn" with half of its file written, "unnamed" with
all of it before the rename, "evicting" once room was made for it.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from octavo.cache import disk_files
from octavo.cache.disk import DiskStore
from octavo.cache.disk_files import SUBDIRECTORY, PageFiles
from octavo.cache.disk_format import PageIdentity, PageKey, page_keys

PAGE_SIZE = 16
PAGE_BYTES = 6000
FILE_BYTES = 8192  # of a page with its record, in whole blocks
IDENTITY = PageIdentity(
    model="m" * 64, producer="native 1", dtype="float16", page_size=PAGE_SIZE, layers=2, kv_heads=1, head_dim=64
)


def chain(pages: int, first_token: int = 0, identity: PageIdentity = IDENTITY) -> list[PageKey]:
    """Keys of one prefix; prefixes with different first tokens have no page in common."""
    return page_keys(identity, [first_token, *range(1, pages * PAGE_SIZE)])


@cache
def page_of(key: PageKey, size: int = PAGE_BYTES) -> bytes:
    """The contents that belong to a key: random, and others for every key."""
    return random.Random(key.digest).randbytes(size)


def read_page(store: DiskStore, key: PageKey, size: int = PAGE_BYTES) -> bytes | None:
    """What the store serves, or None. Asserts that a miss leaves the buffer alone."""
    buffer = bytearray(b"\xa5" * size)
    if store.get(key, [buffer]):
        return bytes(buffer)
    assert buffer == b"\xa5" * size, "a miss wrote into the page"
    return None


def put_all(store: DiskStore, keys: Sequence[PageKey]) -> None:
    """Put pages one at a time, each written before the next."""
    for key in keys:
        assert store.put(key, [page_of(key)])
        store.flush()


def files_below(directory: Path) -> list[Path]:
    """Every file of a store but its lock, sorted."""
    return sorted(p for p in (directory / SUBDIRECTORY).rglob("*") if p.is_file() and p.name != "lock")


def bytes_below(directory: Path) -> int:
    """What these files take, in whole blocks."""
    return sum(disk_files.disk_bytes(p.stat().st_size) for p in files_below(directory))


def killed_keys() -> Iterator[PageKey]:
    """The pages that the process below puts, in order: prefixes of three pages."""
    return itertools.chain.from_iterable(chain(3, first) for first in itertools.count())


class StoppingFiles(PageFiles):
    """Stops for good at a given page and place, once it has said so."""

    where = ""
    last = 0
    count = 0

    def write(self, name: str, record: Sequence[bytes], stamp: int) -> None:
        if self.count == self.last and self.where == "evicting":
            _stop()
        if self.count == self.last and self.where == "torn":
            whole = b"".join(record)
            super().write(name, [whole[: len(whole) // 2]], stamp)
            _stop()
        super().write(name, record, stamp)

    def publish(self, name: str) -> None:
        if self.count == self.last and self.where == "unnamed":
            _stop()
        super().publish(name)
        self.count += 1
        print("published", flush=True)


def _stop() -> None:
    print("stopped", flush=True)
    sys.stdin.read()  # until the kill
    os._exit(1)


def main(directory: str, max_bytes: str, where: str, last: str) -> None:
    StoppingFiles.where, StoppingFiles.last = where, int(last)
    module: Any = sys.modules[DiskStore.__module__]
    module.PageFiles = StoppingFiles
    store = DiskStore(directory, int(max_bytes))
    for key in killed_keys():
        store.put(key, [page_of(key)])
        store.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
