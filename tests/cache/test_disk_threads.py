"""Many threads on one disk store with a tight cap: nobody sees a wrong page, and the books balance at the end."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.disk_pages import FILE_BYTES, PAGE_BYTES, bytes_below, chain, files_below, page_of, read_page
from octavo.cache.disk import DiskStore
from octavo.cache.disk_files import PageFiles

PREFIXES = [chain(6, first) for first in range(4)]


def use(store: DiskStore, seed: int, rounds: int) -> int:
    """Random calls; returns how many pages were served."""
    draw = random.Random(seed)  # of the calls; which thread goes first is the machine's choice
    served = 0
    for _ in range(rounds):
        keys = draw.choice(PREFIXES)
        key = draw.choice(keys)
        op = draw.randrange(8)
        if op < 3:
            store.put(key, [page_of(key)])
            if op == 0:
                store.flush()  # or the queue would be full most of the time
        elif op < 5:
            page = read_page(store, key)
            assert page in (None, page_of(key))
            served += page is not None
        elif op < 7:
            pages = [bytearray(PAGE_BYTES) for _ in keys]
            count = store.fetch(keys, [[page] for page in pages]).result()
            assert pages == [page_of(key) if i < count else bytes(PAGE_BYTES) for i, key in enumerate(keys)]
            served += count
        elif draw.randrange(20):
            store.remove(key)
        else:
            store.clear()
    return served


def test_threads_share_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cap, above = 9 * FILE_BYTES, []
    real = PageFiles.write

    def write(self: PageFiles, name: str, record: tuple[bytes, ...], stamp: int) -> None:
        real(self, name, record, stamp)
        # The writer holds the files still, so this sum is exact.
        used = bytes_below(tmp_path)
        above.extend([used] if used > cap else [])

    monkeypatch.setattr(PageFiles, "write", write)
    with DiskStore(tmp_path, cap, queue_bytes=4 * PAGE_BYTES) as store:
        with ThreadPoolExecutor(4) as pool:
            served = list(pool.map(lambda seed: use(store, seed, 250), range(4)))
        store.flush()
        stats = store.stats()
        store._index.check()
        assert (stats.pages, stats.disk_bytes) == (len(files_below(tmp_path)), bytes_below(tmp_path))
        assert (stats.queued_pages, stats.queued_bytes, stats.corrupt, stats.writes_off) == (0, 0, 0, None)
        assert stats.hits == sum(served)
        assert min(stats.hits, stats.misses, stats.written, stats.evictions) > 0
    assert above == []
