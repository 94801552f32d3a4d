"""Which pages are on disk, and which of them goes next.

The same rule as in the prefix tree: least recently used first, children before parents, because without its parent no
request reaches a page. Parents may be absent (the RAM tier gives up children first, so they often come later): then
the page waits for its parent and ages like any other.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["DiskIndex", "DiskStats", "Entry", "Victim"]


@dataclass(frozen=True)
class DiskStats:
    """What is there, and what happened since the store was opened.

    Attributes:
        pages, disk_bytes, max_bytes: on disk now, in whole blocks, and the cap. Pages of other models and of other
            format versions count as bytes; the latter not as pages.
        queued_pages, queued_bytes: accepted and not yet written, in RAM.
        hits, misses: pages asked for with get or fetch. A fetch ends at its first miss.
        written, evictions: pages written; files deleted for room.
        corrupt: pages found damaged or unreadable, and deleted.
        dropped: pages not taken: queue full, larger than the cap, or writes are off.
        writes_off: why nothing is written, or None.
    """

    pages: int
    disk_bytes: int
    max_bytes: int
    queued_pages: int
    queued_bytes: int
    hits: int
    misses: int
    written: int
    evictions: int
    corrupt: int
    dropped: int
    writes_off: str | None


class Victim(NamedTuple):
    """A file to be deleted: its name below the store's directory, and what it takes on disk."""

    name: str
    disk_bytes: int


class Entry:
    """One page file. `disk_bytes`: whole blocks of its file. `stamp`: when it was last used, ns; `touched`: the file
    does not say so yet. `queued`: it is in the heap.
    """

    __slots__ = ("digest", "disk_bytes", "name", "parent", "queued", "stamp", "touched")

    def __init__(self, digest: bytes, parent: bytes, name: str, disk_bytes: int, stamp: int) -> None:
        self.digest, self.parent, self.name = digest, parent, name
        self.disk_bytes, self.stamp = disk_bytes, stamp
        self.queued = self.touched = False


class DiskIndex:
    """Entries by digest, their sizes, and a heap of those without children. Not thread-safe.

    `strangers`: files of other format versions. They take room and serve nothing, so they go first.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self.strangers: deque[Victim] = deque()
        self._entries: dict[bytes, Entry] = {}
        self._children: dict[bytes, int] = {}
        self._heap: list[tuple[int, bytes, Entry]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, digest: bytes) -> Entry | None:
        return self._entries.get(digest)

    def add(self, entry: Entry) -> None:
        """A page that was not there."""
        assert entry.digest not in self._entries
        self._entries[entry.digest] = entry
        self._children[entry.parent] = self._children.get(entry.parent, 0) + 1
        self.used_bytes += entry.disk_bytes
        self._enqueue(entry)

    def add_stranger(self, name: str, disk_bytes: int) -> None:
        self.strangers.append(Victim(name, disk_bytes))
        self.used_bytes += disk_bytes

    def remove(self, entry: Entry) -> None:
        """Forget a page that is there."""
        self._forget(entry)
        if len(self._heap) > 2 * len(self._entries) + 64:  # mostly pages that were removed, not evicted
            self._heap = [item for item in self._heap if self._entries.get(item[1]) is item[2]]
            heapq.heapify(self._heap)

    def victim(self) -> Victim | None:
        """Forget what has to go next, and say what it was. None when nothing is left."""
        if self.strangers:
            stranger = self.strangers.popleft()
            self.used_bytes -= stranger.disk_bytes
            return stranger
        while self._heap:
            stamp, digest, entry = heapq.heappop(self._heap)
            entry.queued = False
            if self._entries.get(digest) is not entry or digest in self._children:
                continue  # gone, or queued again when its last child goes
            if stamp != entry.stamp:
                self._enqueue(entry)  # used since it was queued
                continue
            self._forget(entry)
            return Victim(entry.name, entry.disk_bytes)
        assert not self._entries, "pages that cannot be evicted"
        return None

    def check(self) -> None:
        """Assert the invariants; for tests."""
        used = sum(e.disk_bytes for e in self) + sum(s.disk_bytes for s in self.strangers)
        assert used == self.used_bytes, "used bytes are not the sum of the entries"
        children: dict[bytes, int] = {}
        for entry in self:
            children[entry.parent] = children.get(entry.parent, 0) + 1
        assert children == self._children, "children are counted wrong"
        queued = {id(item[2]) for item in self._heap}
        for entry in self:
            assert entry.queued == (id(entry) in queued), "the mark of a queued page is wrong"
            assert entry.queued or entry.digest in children, "a page without children is not queued"

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.digest]
        self.used_bytes -= entry.disk_bytes
        left = self._children[entry.parent] - 1
        if left:
            self._children[entry.parent] = left
            return
        del self._children[entry.parent]
        parent = self._entries.get(entry.parent)
        if parent is not None:
            self._enqueue(parent)

    def _enqueue(self, entry: Entry) -> None:
        if not entry.queued and entry.digest not in self._children:
            entry.queued = True
            heapq.heappush(self._heap, (entry.stamp, entry.digest, entry))
