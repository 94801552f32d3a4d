"""Swap space: where the pages of a preempted sequence wait in memory, to be copied back instead of computed again."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as List
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PageParts", "SavedPages", "SwapSpace"]

PageParts = Callable[[int], List[NDArray[Any]]]
"""A page's number -> its writable, C-contiguous pieces, in an order that is always the same."""

# Bytes a second before the first copy has been timed; any machine that runs a model copies faster.
_FIRST_RATE = 2e9


class SavedPages:
    """The pages of the first `computed` tokens of a sequence, in slots of the swap space."""

    __slots__ = ("computed", "slots")

    def __init__(self, slots: list[int], computed: int) -> None:
        self.slots, self.computed = slots, computed


class SwapSpace:
    """Copies of whole pages, `capacity_bytes` at most. Memory is touched when a slot is first used."""

    def __init__(self, capacity_bytes: int, parts: PageParts) -> None:
        self._parts = parts
        self.page_bytes = sum(part.nbytes for part in parts(0))
        self.capacity = capacity_bytes // self.page_bytes
        self._memory = np.empty((self.capacity, self.page_bytes), np.uint8)
        self._free = list(range(self.capacity - 1, -1, -1))
        self._rate = _FIRST_RATE

    @property
    def used(self) -> int:
        """Pages that are kept now."""
        return self.capacity - len(self._free)

    def copy_s(self, pages: int) -> float:
        """What it takes to copy pages out and back, by the copies made so far."""
        return 2 * pages * self.page_bytes / self._rate

    def save(self, pages: List[int], computed: int) -> SavedPages | None:
        """Copy pages out; None when there are too few slots."""
        if len(pages) > len(self._free):
            return None
        start = time.perf_counter()
        slots = [self._free.pop() for _ in pages]
        for slot, page in zip(slots, pages, strict=True):
            for row, part in self._pieces(slot, page):
                row[:] = part
        self._timed(len(slots), time.perf_counter() - start)
        return SavedPages(slots, computed)

    def restore(self, saved: SavedPages, pages: List[int], first: int) -> None:
        """Copy pages back, from index `first` on, and give up the slots. pages: the sequence's, from index 0 on."""
        for slot, page in zip(saved.slots[first:], pages[first:], strict=False):
            for row, part in self._pieces(slot, page):
                part[:] = row
        self.drop(saved)

    def drop(self, saved: SavedPages) -> None:
        """Give up the slots."""
        self._free.extend(saved.slots)
        saved.slots = []

    def clear(self) -> None:
        """Forget everything; SavedPages made before must not be used any more."""
        self._free = list(range(self.capacity - 1, -1, -1))

    def _pieces(self, slot: int, page: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """For each part of a page: its place in the slot and itself, both as bytes."""
        pieces, start, row = [], 0, self._memory[slot]
        for part in self._parts(page):
            flat = part.reshape(-1).view(np.uint8)
            pieces.append((row[start : start + part.nbytes], flat))
            start += part.nbytes
        return pieces

    def _timed(self, pages: int, seconds: float) -> None:
        if pages and seconds > 0:
            self._rate += 0.25 * (pages * self.page_bytes / seconds - self._rate)
