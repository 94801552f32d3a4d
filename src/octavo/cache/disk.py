"""The disk tier of the KV cache: pages that outlive RAM and process, read and written in the background.

A page that comes back is bit-identical to what was put: its checksum is verified on every read, and its identity,
parent and tokens are compared. Whatever goes wrong with a file or the disk is a miss for the caller, counted and
logged; it is never an exception in a step, and never a wrong page.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from octavo.cache.disk_files import PageFiles, disk_bytes, page_name
from octavo.cache.disk_format import (
    CorruptPageError,
    PageKey,
    Part,
    as_bytes,
    pack_record,
    record_bytes,
    scatter,
    unpack_record,
)
from octavo.cache.disk_index import DiskStats, Entry
from octavo.core.errors import ConfigError

__all__ = ["DiskStats", "DiskStore"]

logger = logging.getLogger(__name__)

# 64 pages of a megabyte: what a step of many sequences gives up at once; more would be RAM taken from the pages.
QUEUE_BYTES = 64 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


class _Queued:
    """A page on its way to disk: a copy of its bytes, which also serves reads until it is there.

    It is wanted for as long as `DiskStore._queued` names it.
    """

    __slots__ = ("key", "page")

    def __init__(self, key: PageKey, page: bytes) -> None:
        self.key, self.page = key, page


class DiskStore:
    """KV pages of any models in a directory, `max_bytes` at most, shared by nothing but this process's threads.

    directory: made if it is not there. Where another process writes in it, or it cannot be written, the store serves
    what it finds and takes no pages. queue_bytes: copies of pages that may wait for the disk. readers: threads that
    serve `fetch`. Every method may be called from any thread. Opening lists the directory; it reads no page.
    writes_off: why nothing is written, or None.

    Raises:
        ConfigError: a value is impossible, or the directory cannot be used at all.
    """

    def __init__(
        self, directory: str | os.PathLike[str], max_bytes: int, *, queue_bytes: int = QUEUE_BYTES, readers: int = 2
    ) -> None:
        for name, value in (("prefix_cache_bytes", max_bytes), ("queue_bytes", queue_bytes), ("readers", readers)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        self.max_bytes, self.queue_bytes = max_bytes, queue_bytes
        self._files = PageFiles(directory)
        try:
            self._index = self._files.scan()
        except BaseException:
            self._files.close()
            raise
        self.writes_off = self._files.read_only
        self._stamp = max((entry.stamp for entry in self._index), default=0)
        self._queue: deque[_Queued] = deque()
        self._queued: dict[bytes, _Queued] = {}
        self._queued_bytes = 0
        self._writing = self._closed = False
        self._hits = self._misses = self._written = self._evictions = self._corrupt = self._dropped = 0
        # _state guards all of the above; it is held for dictionary operations and the copy of one page, never over a
        # call to the file system. _disk is held while files are made or deleted, so that the cap counts what exists;
        # who needs both takes _disk first.
        self._state = threading.Condition()
        self._disk = threading.Lock()
        self._scratch = threading.local()
        if self.writes_off is None:
            self._trim()
        self._readers = ThreadPoolExecutor(readers, thread_name_prefix="octavo-kv-read")
        self._writer = threading.Thread(target=self._write_loop, name="octavo-kv-write", daemon=True)
        self._writer.start()

    def __enter__(self) -> DiskStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def put(self, key: PageKey, parts: Sequence[Part]) -> bool:
        """Take a copy of a page; it is written later. Never waits for the disk.

        parts: the page's bytes in order; they are the caller's again on return. Returns False when the page was
        dropped, True when it is queued or was there already.
        """
        views = [as_bytes(part) for part in parts]
        page_bytes = sum(map(len, views))
        with self._state:
            self._check_open()
            entry = self._index.get(key.digest)
            if entry is not None:
                entry.stamp = self._next_stamp()
                entry.touched = True
                return True
            if key.digest in self._queued:
                return True
            if (
                self.writes_off
                or not self._fits(page_bytes)
                or disk_bytes(record_bytes(key, page_bytes)) > self.max_bytes
            ):
                self._dropped += 1
                return False
            item = _Queued(key, b"".join(views))
            self._queue.append(item)
            self._queued[key.digest] = item
            self._queued_bytes += page_bytes
            self._state.notify_all()
            return True

    def longest_prefix(self, keys: Sequence[PageKey]) -> int:
        """How many of these pages, from the first on, are here: on disk or on their way. About 0.2 us a page.

        It reads nothing, so a page may turn out to be damaged later: what a fetch returns counts.
        """
        with self._state:
            self._check_open()
            for count, key in enumerate(keys):
                if key.digest not in self._index and key.digest not in self._queued:
                    return count
        return len(keys)

    def get(self, key: PageKey, into: Sequence[Part]) -> bool:
        """Read a page into writable parts, in the calling thread. False, with nothing written, when it is not here."""
        views = [as_bytes(part) for part in into]
        with self._state:
            self._check_open()
        return self._get(key, views)

    def fetch(self, keys: Sequence[PageKey], into: Iterable[Sequence[Part]]) -> Future[int]:
        """Read pages in the background, in order, up to the first that is not here.

        into: for each page its writable parts; they belong to the fetch until its future is done, cancelled ones
        too. It is iterated in the background, a page at a time, and where it ends the fetch ends: a generator can stop
        it. The future gives n: the first n pages are in place, and the parts of the others are as they were.
        """
        with self._state:
            self._check_open()
            return self._readers.submit(self._fetch, list(keys), into)

    def remove(self, key: PageKey) -> bool:
        """Delete a page, queued or on disk; whether there was one. Deletes the file in the calling thread."""
        with self._state:
            self._check_open()
            if self._queued.pop(key.digest, None) is not None:
                return True
            entry = self._index.get(key.digest)
        return entry is not None and self._forget(entry)

    def clear(self) -> int:
        """Delete every page, of every model and version; returns how many files. Deletes in the calling thread.

        Where the directory is only read, the pages stay and are no longer served.
        """
        with self._state:
            self._check_open()
            self._queued.clear()
        with self._disk:
            with self._state:
                victims = list(iter(self._index.victim, None))
            for victim in victims:
                self._delete(victim.name)
        return len(victims)

    def has_room(self, page_bytes: int, wait_s: float = 0.0) -> bool:
        """Whether `put` would queue a page of that size, now or within `wait_s` seconds."""
        with self._state:
            self._state.wait_for(lambda: self.writes_off is not None or self._fits(page_bytes), wait_s)
            return self.writes_off is None and self._fits(page_bytes)

    def flush(self) -> None:
        """Wait until every page that was put before is written or given up."""
        with self._state:
            self._state.wait_for(lambda: not self._queue and not self._writing)

    def stats(self) -> DiskStats:
        """Counts as of now."""
        with self._state:
            return DiskStats(
                pages=len(self._index),
                disk_bytes=self._index.used_bytes,
                max_bytes=self.max_bytes,
                queued_pages=len(self._queued),
                queued_bytes=self._queued_bytes,
                hits=self._hits,
                misses=self._misses,
                written=self._written,
                evictions=self._evictions,
                corrupt=self._corrupt,
                dropped=self._dropped,
                writes_off=self.writes_off,
            )

    def close(self) -> None:
        """Write what is queued, finish running fetches, let another process have the directory. Twice is no error."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._writer.join()
        self._readers.shutdown()
        if self._files.read_only is None:
            for entry in self._index:
                if entry.touched:
                    self._files.touch(entry.name, entry.stamp)
                    entry.touched = False
        self._files.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the disk store is closed")

    def _fits(self, page_bytes: int) -> bool:
        """Whether the queue has room, under the lock. A page that is larger than the queue passes alone."""
        return self._queued_bytes == 0 or self._queued_bytes + page_bytes <= self.queue_bytes

    def _next_stamp(self) -> int:
        """Nanoseconds, each larger than the last whatever the clock does; under the lock."""
        self._stamp = max(self._stamp + 1, time.time_ns())
        return self._stamp

    # Reading

    def _fetch(self, keys: list[PageKey], into: Iterable[Sequence[Part]]) -> int:
        count = 0
        for key, parts in zip(keys, into, strict=False):
            if not self._get(key, [as_bytes(part) for part in parts]):
                break
            count += 1
        return count

    def _get(self, key: PageKey, into: list[memoryview]) -> bool:
        with self._state:
            item, entry = self._queued.get(key.digest), self._index.get(key.digest)
        if item is not None:
            hit = item.key == key and len(item.page) == sum(map(len, into))
            if hit:
                scatter(item.page, into)
        else:
            hit = entry is not None and self._read(key, entry, into)
        with self._state:
            self._hits += hit
            self._misses += not hit
        return hit

    def _read(self, key: PageKey, entry: Entry, into: list[memoryview]) -> bool:
        """Read through a buffer of the thread: one read and one checksum a page, and a bad one touches no KV page."""
        page_bytes = sum(map(len, into))
        buffer = self._buffer(record_bytes(key, page_bytes) + 1)  # one more than expected shows a file that is too long
        try:
            size = self._files.read(entry.name, buffer)
            page = unpack_record(key, buffer[:size], page_bytes)
        except (CorruptPageError, OSError) as error:
            self._lost(entry, error)
            return False
        if page is None:
            return False
        scatter(page, into)
        with self._state:
            stamp = entry.stamp = self._next_stamp()
        if self._files.read_only is None:
            self._files.touch(entry.name, stamp)
        return True

    def _buffer(self, size: int) -> memoryview:
        buffer: memoryview | None = getattr(self._scratch, "buffer", None)
        if buffer is None or len(buffer) < size:
            buffer = self._scratch.buffer = memoryview(bytearray(size))
        return buffer[:size]

    def _lost(self, entry: Entry, error: CorruptPageError | OSError) -> None:
        """A page cannot be served: deleted if it is damaged, forgotten if it is gone, else (no file handles) kept."""
        damaged = isinstance(error, CorruptPageError) or error.errno == errno.EIO
        gone = isinstance(error, FileNotFoundError)  # evicted meanwhile, or by the process that writes here
        if not gone:
            logger.warning("KV page %s/%s cannot be served: %s", self._files.path, entry.name, error)
        with self._state:
            self._corrupt += damaged
        if damaged or gone:
            self._forget(entry)

    def _forget(self, entry: Entry) -> bool:
        """Delete a page on disk, unless that has happened meanwhile."""
        with self._disk:
            with self._state:
                if self._index.get(entry.digest) is not entry:
                    return False
                self._index.remove(entry)
            self._delete(entry.name)
        return True

    def _delete(self, name: str) -> None:
        """Delete a file where that is this process's to do; a failure ends the writing, not the caller."""
        if self._files.read_only is None:
            try:
                self._files.delete(name)
            except OSError as error:
                self._turn_off(error)

    # Writing

    def _write_loop(self) -> None:
        while (item := self._take()) is not None:
            try:
                self._store(item)
            except Exception as error:  # whatever it is, the engine goes on without new pages on disk
                self._turn_off(error)
                with self._state:
                    self._dropped += 1
            finally:
                self._done(item)

    def _take(self) -> _Queued | None:
        """The next page to write; None once the store is closed and the queue empty."""
        with self._state:
            self._state.wait_for(lambda: self._queue or self._closed)
            if not self._queue:
                return None
            self._writing = True
            return self._queue.popleft()

    def _store(self, item: _Queued) -> None:
        key = item.key
        with self._state:
            if not self._wanted(item):
                return
            if self.writes_off:
                self._dropped += 1
                return
            stamp = self._next_stamp()
        record = pack_record(key, item.page)
        size = disk_bytes(sum(map(len, record)))
        name = page_name(key.digest, key.parent)
        with self._disk:
            self._make_room(size)
            self._files.write(name, record, stamp)
            self._files.publish(name)
            with self._state:
                if self._wanted(item):
                    del self._queued[key.digest]
                    self._index.add(Entry(key.digest, key.parent, name, size, stamp))
                    self._written += 1
                    return
            self._files.delete(name)  # removed while it was written

    def _wanted(self, item: _Queued) -> bool:
        return self._queued.get(item.key.digest) is item

    def _make_room(self, size: int) -> None:
        """Delete files until `size` bytes more are within the cap."""
        while True:
            with self._state:
                if self._index.used_bytes + size <= self.max_bytes:
                    return
                victim = self._index.victim()
                assert victim is not None, "an empty store has no room for a page"
                self._evictions += 1
            self._files.delete(victim.name)

    def _done(self, item: _Queued) -> None:
        with self._state:
            if self._wanted(item):
                del self._queued[item.key.digest]
            self._queued_bytes -= len(item.page)
            self._writing = False
            self._state.notify_all()

    def _turn_off(self, error: Exception) -> None:
        """Nothing is written from now on; said once. What is on disk is still served."""
        with self._state:
            if self.writes_off is None:
                full = isinstance(error, OSError) and error.errno in _FULL
                self.writes_off = "the disk is full" if full else f"writing failed ({error})"
                logger.error("prefix_cache_dir %s: no more pages are written: %s", self._files.path, self.writes_off)

    def _trim(self) -> None:
        """A cap below what is there: pages used last stay."""
        try:
            self._make_room(0)
        except OSError as error:
            self._turn_off(error)
