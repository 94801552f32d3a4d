"""The disk store: what is put comes back bit for bit or not at all, within the cap, without anyone waiting."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from helpers.disk_pages import (
    FILE_BYTES,
    IDENTITY,
    PAGE_BYTES,
    bytes_below,
    chain,
    files_below,
    page_of,
    put_all,
    read_page,
)
from octavo.cache.disk import DiskStore
from octavo.cache.disk_files import PageFiles
from octavo.cache.disk_format import PageKey, page_keys
from octavo.core.errors import ConfigError
from octavo.ops.kv import KVStore

MIB = 1 << 20


@contextmanager
def paused_writer(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The writer stops before its next write; yields the event that is set once it has. Goes on at the end."""
    waiting, go = threading.Event(), threading.Event()
    real = PageFiles.write

    def write(self: PageFiles, name: str, record: Sequence[bytes], stamp: int) -> None:
        waiting.set()
        go.wait()
        real(self, name, record, stamp)

    with monkeypatch.context() as patch:
        patch.setattr(PageFiles, "write", write)
        try:
            yield waiting
        finally:
            go.set()
            store.flush()


def test_pages_come_back_now_and_after_a_restart(tmp_path: Path) -> None:
    keys = chain(5)
    with DiskStore(tmp_path, MIB) as store:
        assert store.longest_prefix(keys) == 0
        put_all(store, keys)
        assert store.longest_prefix(keys) == 5
        assert [read_page(store, key) for key in keys] == [page_of(key) for key in keys]
    with DiskStore(tmp_path, MIB) as store:
        assert store.longest_prefix(keys) == 5
        assert store.longest_prefix(chain(5, first_token=1)) == 0
        assert [read_page(store, key) for key in keys] == [page_of(key) for key in keys]
        stats = store.stats()
    assert (stats.pages, stats.hits, stats.misses, stats.corrupt) == (5, 5, 0, 0)
    assert stats.disk_bytes == bytes_below(tmp_path) == 5 * FILE_BYTES


def test_close_writes_what_is_queued(tmp_path: Path) -> None:
    keys = chain(40)
    with DiskStore(tmp_path, MIB) as store:
        assert all(store.put(key, [page_of(key)]) for key in keys)
    store.close()  # twice is no error
    with pytest.raises(ValueError, match="closed"):
        store.put(keys[0], [page_of(keys[0])])
    with DiskStore(tmp_path, MIB) as store:
        assert [read_page(store, key) for key in keys] == [page_of(key) for key in keys]


def test_pages_of_a_kv_store_move_between_pools(tmp_path: Path) -> None:
    kv = KVStore(layers=3, num_pages=4, page_size=16, kv_heads=2, head_dim=8, dtype="float16")
    rng = np.random.default_rng(0)
    for layer in (*kv.k, *kv.v):
        layer[:] = rng.integers(0, 1 << 16, layer.shape, dtype=np.uint16).view(np.float16)  # NaNs and denormals too
    key = page_keys(IDENTITY, range(16))[0]
    with DiskStore(tmp_path, MIB) as store:
        assert store.put(key, [layer[2] for layer in (*kv.k, *kv.v)])
        store.flush()
        before = [layer.tobytes() for layer in (*kv.k, *kv.v)]
        assert store.get(key, [layer[0] for layer in (*kv.k, *kv.v)])
    for layer, old in zip((*kv.k, *kv.v), before, strict=True):
        page = len(old) // 4
        assert layer[0].tobytes() == layer[2].tobytes() == old[2 * page : 3 * page]
        assert layer.tobytes()[page:] == old[page:]


def test_the_caller_may_change_its_page_after_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = chain(1)[0]
    page = bytearray(page_of(key))
    with DiskStore(tmp_path, MIB) as store:
        with paused_writer(store, monkeypatch) as waiting:
            store.put(key, [page])
            waiting.wait()
            page[:] = bytes(len(page))
            assert read_page(store, key) == page_of(key), "a queued page is served from its copy"
        assert read_page(store, key) == page_of(key)


def test_a_full_queue_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = chain(4)
    with DiskStore(tmp_path, MIB, queue_bytes=2 * PAGE_BYTES) as store:
        with paused_writer(store, monkeypatch) as waiting:
            assert store.put(keys[0], [page_of(keys[0])])
            waiting.wait()
            assert [store.put(key, [page_of(key)]) for key in keys] == [True, True, False, False]
            stats = store.stats()
            assert (stats.queued_pages, stats.queued_bytes, stats.dropped) == (2, 2 * PAGE_BYTES, 2)
            assert store.longest_prefix(keys) == 2
        assert store.stats().queued_bytes == 0
        assert store.put(keys[2], [page_of(keys[2])]), "there is room again"
        store.flush()
        assert store.longest_prefix(keys) == 3


def test_a_page_larger_than_the_queue_passes_alone(tmp_path: Path) -> None:
    key = chain(1)[0]
    with DiskStore(tmp_path, MIB, queue_bytes=10) as store:
        put_all(store, [key])
        assert read_page(store, key) == page_of(key)


def test_a_fetch_ends_at_the_first_page_that_is_not_there(tmp_path: Path) -> None:
    keys = chain(4)
    with DiskStore(tmp_path, MIB) as store:
        put_all(store, [keys[0], keys[1], keys[3]])
        pages = [bytearray(PAGE_BYTES) for _ in keys]
        assert store.fetch(keys, [[memoryview(p)[:1000], memoryview(p)[1000:]] for p in pages]).result() == 2
        assert pages == [page_of(keys[0]), page_of(keys[1]), bytes(PAGE_BYTES), bytes(PAGE_BYTES)]
        stats = store.stats()
        assert (stats.hits, stats.misses) == (2, 1)
        assert store.fetch([], []).result() == 0


def test_fetches_do_not_wait_for_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = chain(2)
    with DiskStore(tmp_path, MIB) as store:
        put_all(store, keys[:1])
        with paused_writer(store, monkeypatch) as waiting:
            store.put(keys[1], [page_of(keys[1])])
            waiting.wait()
            pages = [bytearray(PAGE_BYTES) for _ in keys]
            assert store.fetch(keys, [[p] for p in pages]).result(60) == 2
        assert pages == [page_of(key) for key in keys]


def test_the_oldest_pages_go_first_also_after_a_restart(tmp_path: Path) -> None:
    prefixes = [chain(1, first) for first in range(5)]
    with DiskStore(tmp_path, 4 * FILE_BYTES) as store:
        for (key,) in prefixes[:4]:
            put_all(store, [key])
        assert read_page(store, prefixes[0][0]) is not None
    with DiskStore(tmp_path, 4 * FILE_BYTES) as store:
        put_all(store, prefixes[4])
        assert [store.longest_prefix(keys) for keys in prefixes] == [1, 0, 1, 1, 1]
        assert store.stats().evictions == 1
        put_all(store, prefixes[2])  # there already: counts as a use
    with DiskStore(tmp_path, 4 * FILE_BYTES) as store:
        put_all(store, prefixes[1])
        assert [store.longest_prefix(keys) for keys in prefixes] == [1, 1, 1, 0, 1]


def test_a_prefix_is_given_up_from_its_end(tmp_path: Path) -> None:
    long, other = chain(4), chain(2, first_token=5)
    with DiskStore(tmp_path, 4 * FILE_BYTES) as store:
        put_all(store, long)
        put_all(store, other)
        assert store.longest_prefix(long) == 2
        assert store.longest_prefix(other) == 2


def test_a_lowered_cap_keeps_the_pages_used_last(tmp_path: Path) -> None:
    prefixes = [chain(1, first) for first in range(5)]
    with DiskStore(tmp_path, MIB) as store:
        for keys in prefixes:
            put_all(store, keys)
    with DiskStore(tmp_path, 2 * FILE_BYTES + 100) as store:
        assert bytes_below(tmp_path) == 2 * FILE_BYTES
        assert [store.longest_prefix(keys) for keys in prefixes] == [0, 0, 0, 1, 1]


def test_a_page_above_the_cap_is_dropped(tmp_path: Path) -> None:
    key = chain(1)[0]
    with DiskStore(tmp_path, FILE_BYTES - 1) as store:
        assert not store.put(key, [page_of(key)])
        assert store.stats().dropped == 1
    assert files_below(tmp_path) == []


def test_remove_and_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = chain(4)
    with DiskStore(tmp_path, MIB) as store:
        put_all(store, keys[:2])
        assert store.remove(keys[1])
        assert not store.remove(keys[1])
        assert store.longest_prefix(keys) == 1
        with paused_writer(store, monkeypatch) as waiting:
            store.put(keys[2], [page_of(keys[2])])
            waiting.wait()
            store.put(keys[3], [page_of(keys[3])])
            assert store.remove(keys[2]), "while it is being written"
            assert store.remove(keys[3]), "while it is queued"
        assert len(files_below(tmp_path)) == 1
        with paused_writer(store, monkeypatch) as waiting:
            store.put(keys[2], [page_of(keys[2])])
            waiting.wait()
            store.put(keys[3], [page_of(keys[3])])
            clearing = threading.Thread(target=store.clear)
            clearing.start()
            while store.stats().queued_pages:  # it waits for the page that is being written
                pass
        clearing.join()
        assert files_below(tmp_path) == []
        assert (store.stats().pages, store.stats().disk_bytes, store.stats().queued_bytes) == (0, 0, 0)


def test_a_page_removed_while_it_is_written_can_be_put_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = chain(1)[0]
    with DiskStore(tmp_path, MIB) as store:
        with paused_writer(store, monkeypatch) as waiting:
            store.put(key, [page_of(key)])
            waiting.wait()
            store.remove(key)
            assert store.put(key, [page_of(key)])
        assert read_page(store, key) == page_of(key)
        assert store.stats().written == 1


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("bit", [0, 8 * 20 + 1, 8 * 300 + 7, 8 * 3000, -1])
def test_a_flipped_bit_is_a_miss_and_the_page_goes(tmp_path: Path, bit: int, caplog: pytest.LogCaptureFixture) -> None:
    keys = chain(2)
    with DiskStore(tmp_path, MIB) as store:
        put_all(store, keys)
        (path,) = (p for p in files_below(tmp_path) if p.name.startswith(keys[1].digest.hex()))
        flip(path, bit % (8 * path.stat().st_size))
        assert read_page(store, keys[1]) is None
        assert "checksum is wrong" in caplog.text
        stats = store.stats()
        assert (stats.corrupt, stats.misses, stats.pages, stats.disk_bytes) == (1, 1, 1, bytes_below(tmp_path))
        assert not path.exists()
        put_all(store, keys[1:])
        assert read_page(store, keys[1]) == page_of(keys[1])


@pytest.mark.parametrize("length", [0, 1, 60, 1000, PAGE_BYTES, FILE_BYTES * 2])
def test_a_file_of_another_length_is_a_miss(tmp_path: Path, length: int) -> None:
    keys = chain(2)
    with DiskStore(tmp_path, MIB) as store:
        put_all(store, keys)
    for path in files_below(tmp_path):
        os.truncate(path, length)
    with DiskStore(tmp_path, MIB) as store:
        pages = [bytearray(PAGE_BYTES) for _ in keys]
        assert store.longest_prefix(keys) == 2
        assert store.fetch(keys, [[p] for p in pages]).result() == 0
        assert pages == [bytes(PAGE_BYTES)] * 2
        assert store.stats().corrupt == 1
        assert store.longest_prefix(keys) == 0


def test_an_equal_digest_alone_serves_nothing(tmp_path: Path) -> None:
    asked, other = chain(2)[1], chain(2, 9)[1]
    collision = PageKey(asked.digest, asked.parent, bytes(len(asked.tokens)), IDENTITY)
    with DiskStore(tmp_path, MIB) as store:
        assert store.put(collision, [page_of(other)])
        assert read_page(store, asked) is None
        store.flush()
        assert read_page(store, asked) is None
        assert read_page(store, collision) == page_of(other), "the page is sound and stays"
        assert (store.stats().misses, store.stats().corrupt) == (2, 0)


def test_a_file_that_someone_deleted_is_a_miss(tmp_path: Path) -> None:
    keys = chain(1)
    with DiskStore(tmp_path, MIB) as store:
        put_all(store, keys)
        files_below(tmp_path)[0].unlink()
        assert read_page(store, keys[0]) is None
        assert (store.stats().corrupt, store.stats().disk_bytes) == (0, 0)


def test_a_process_out_of_file_handles_keeps_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = chain(1)
    with DiskStore(tmp_path, MIB) as store:
        put_all(store, keys)
        with monkeypatch.context() as patch:

            def no_handles(self: PageFiles, name: str, buffer: memoryview) -> int:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

            patch.setattr(PageFiles, "read", no_handles)
            assert read_page(store, keys[0]) is None
        assert read_page(store, keys[0]) == page_of(keys[0])


@pytest.mark.parametrize(
    ("code", "reason"), [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk is full"), (errno.EIO, "failed")]
)
def test_a_full_disk_ends_the_writing_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int, reason: str
) -> None:
    keys = chain(4)
    with DiskStore(tmp_path, MIB) as store:
        put_all(store, keys[:1])

        both, tries = threading.Event(), []

        def full(self: PageFiles, name: str, record: Sequence[bytes], stamp: int) -> None:
            both.wait()
            tries.append(name)
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(PageFiles, "write", full)
        assert [store.put(key, [page_of(key)]) for key in keys[1:3]] == [True, True]
        both.set()
        store.flush()
        assert len(tries) == 1
        assert not store.put(keys[3], [page_of(keys[3])])
        stats = store.stats()
        assert reason in (stats.writes_off or "")
        assert (stats.dropped, stats.queued_pages, stats.queued_bytes) == (3, 0, 0)
        assert caplog.text.count("no more pages are written") == 1
        assert store.longest_prefix(keys) == 1
        assert read_page(store, keys[0]) == page_of(keys[0])


def test_a_file_that_cannot_be_deleted_ends_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = chain(3)
    with DiskStore(tmp_path, MIB) as store:
        put_all(store, keys)

        def denied(self: PageFiles, name: str) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

        monkeypatch.setattr(PageFiles, "delete", denied)
        assert store.remove(keys[2])
        assert store.remove(keys[1])
        assert caplog.text.count("no more pages are written") == 1
        assert not store.put(keys[2], [page_of(keys[2])]), "or the cap would not count what stayed"
        assert read_page(store, keys[0]) == page_of(keys[0])


def test_a_second_process_reads_and_changes_nothing(tmp_path: Path) -> None:
    keys = chain(3)
    with DiskStore(tmp_path, MIB) as first:
        put_all(first, keys[:2])
        with DiskStore(tmp_path, 1) as second:
            assert "writes there" in (second.stats().writes_off or "")
            assert [read_page(second, key) for key in keys[:2]] == [page_of(key) for key in keys[:2]]
            assert not second.put(keys[2], [page_of(keys[2])])
            flip(files_below(tmp_path)[0], 5000)
            assert second.fetch(keys[:2], [[bytearray(PAGE_BYTES)]] * 2).result() < 2
            assert first.remove(keys[1])
            assert second.clear() == 1
        assert len(files_below(tmp_path)) == 1


def test_pages_of_an_older_format_are_ignored_and_make_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, new = chain(2), chain(2, first_token=3)
    with DiskStore(tmp_path, MIB) as store:
        put_all(store, old)
    for path in files_below(tmp_path):
        path.rename(path.with_suffix(".kv0"))
    with DiskStore(tmp_path, 3 * FILE_BYTES) as store:
        assert "2 pages of another format version" in caplog.text
        assert store.longest_prefix(old) == 0
        assert (store.stats().pages, store.stats().disk_bytes) == (0, 2 * FILE_BYTES)
        put_all(store, new)
        assert [p.suffix for p in files_below(tmp_path)].count(".kv0") == 1
        assert store.longest_prefix(new) == 2


@pytest.mark.parametrize(
    "arguments", [{"max_bytes": 0}, {"max_bytes": 1, "queue_bytes": 0}, {"max_bytes": 1, "readers": 0}]
)
def test_impossible_values_are_refused(tmp_path: Path, arguments: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must be at least 1, not 0"):
        DiskStore(tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []
