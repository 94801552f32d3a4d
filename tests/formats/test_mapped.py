"""Pages of a mapped file that are let go, and come back."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.formats.mapped import map_file, release_pages

PAGES = 64


def resident_pages(mapped: np.ndarray) -> int:
    """How many pages of the map are in this process's memory, from /proc."""
    address = f"{mapped.ctypes.data:x}-"
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        found = found or line.startswith(address)
        if found and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024 // mmap.PAGESIZE
    raise AssertionError("the map is not listed")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mapped") / "file"
    path.write_bytes(np.random.default_rng(0).bytes(PAGES * mmap.PAGESIZE + 100))
    return path


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc/self/smaps")
def test_whole_pages_leave_the_memory(stored: Path) -> None:
    mapped = map_file(stored)
    assert int(mapped[:: mmap.PAGESIZE].sum()) > 0
    assert resident_pages(mapped) == PAGES + 1
    release_pages(mapped[10 : 30 * mmap.PAGESIZE + 10].reshape(mmap.PAGESIZE, -1))
    assert resident_pages(mapped) == PAGES + 1 - 29, "pages that other views share must stay"
    assert mapped.tobytes() == stored.read_bytes()


@settings(max_examples=30)
@given(start=st.integers(0, PAGES * mmap.PAGESIZE), size=st.integers(0, 5 * mmap.PAGESIZE))
def test_nothing_is_lost(stored: Path, start: int, size: int) -> None:
    mapped = map_file(stored)
    release_pages(mapped[start : start + size])
    assert mapped.tobytes() == stored.read_bytes()


def test_other_memory_is_left_alone() -> None:
    values = np.arange(5 * mmap.PAGESIZE, dtype=np.uint8)
    release_pages(values[100:])
    release_pages(values[::2])
    release_pages(np.frombuffer(values.tobytes(), np.uint8))
    np.testing.assert_array_equal(values, np.arange(5 * mmap.PAGESIZE, dtype=np.uint8))
