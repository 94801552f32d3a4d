"""The swap space: pages come back as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo.engine.swap import SwapSpace

PAGES = 12


class Pages:
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.k = rng.integers(0, 2**16, (PAGES, 3, 5), np.uint16)
        self.v = rng.normal(size=(PAGES, 7)).astype(np.float32)

    def parts(self, page: int) -> list[NDArray[Any]]:
        return [self.k[page], self.v[page]]

    def bytes(self, page: int) -> bytes:
        return b"".join(part.tobytes() for part in self.parts(page))


@given(st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=5, unique=True), st.data())
def test_restores_bytes_into_other_pages(source: list[int], data: st.DataObject) -> None:
    pages = Pages()
    space = SwapSpace(8 * 58, pages.parts)
    assert space.page_bytes == 58
    assert space.capacity == 8
    before = [pages.bytes(page) for page in source]
    saved = space.save(source, 99)
    assert saved is not None
    assert saved.computed == 99
    assert space.used == len(source)
    pages.k[:], pages.v[:] = 0, 0
    target = data.draw(st.permutations(range(PAGES)))[: len(source)]
    first = data.draw(st.integers(0, len(source)))
    space.restore(saved, target, first)
    assert [pages.bytes(page) for page in target][first:] == before[first:]
    assert [pages.bytes(page) for page in target][:first] == [bytes(58)] * first
    assert space.used == 0


def test_refuses_what_it_has_no_room_for_and_keeps_what_it_has() -> None:
    pages = Pages()
    space = SwapSpace(3 * 58 + 57, pages.parts)
    kept = space.save([0, 1], 20)
    assert kept is not None
    assert space.save([2, 3], 20) is None
    assert space.used == 2
    expected = [pages.bytes(0), pages.bytes(1)]
    pages.k[:2] = 0
    space.restore(kept, [5, 6], 0)
    assert [pages.bytes(5), pages.bytes(6)] == expected


def test_learns_how_long_a_copy_takes() -> None:
    space = SwapSpace(4 * 58, Pages().parts)
    before = space.copy_s(10)
    space.save([0, 1, 2], 3)
    assert space.copy_s(10) != before
    assert space.copy_s(20) == 2 * space.copy_s(10)
