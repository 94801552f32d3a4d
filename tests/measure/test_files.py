"""Files in and out of the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.measure import files
from octavo.measure.files import drop_cached, file_system, files_below, read_all, resident_fraction, total_bytes


def write(path: Path, size: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(os.urandom(size))
    return path


def test_files_are_found_and_added_up(tmp_path: Path) -> None:
    one, two = write(tmp_path / "b" / "one", 1000), write(tmp_path / "a" / "two", 24)
    (tmp_path / "link").symlink_to(one)
    assert files_below(tmp_path) == [two, one]
    assert total_bytes([one, two]) == 1024


def test_the_share_in_memory_is_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [write(tmp_path / "one", 3 * 65536), write(tmp_path / "two", 65536 + 1)]
    absent = {(made[0].stat().st_ino, 65536), (made[1].stat().st_ino, 0)}

    def preadv(descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        if (os.fstat(descriptor).st_ino, offset) in absent:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return len(buffers[0])

    monkeypatch.setattr(os, "preadv", preadv)
    assert resident_fraction(made) == 3 / 5
    assert resident_fraction(made[1:]) == 1 / 2


def test_what_is_dropped_has_been_written(tmp_path: Path) -> None:
    made = [write(tmp_path / str(number), 300_000) for number in range(4)]
    content = [path.read_bytes() for path in made]
    drop_cached(made)
    dropped = resident_fraction(made)
    assert read_all(made) > 0
    if dropped is not None:  # how much a kernel lets go, and keeps of what is read, is its own affair
        assert 0 <= dropped <= 1
    assert [path.read_bytes() for path in made] == content


def test_files_are_synced_and_then_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(("fsync",)))
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, *rest: calls.append(rest))
    drop_cached([write(tmp_path / "one", 10)])
    assert calls == [("fsync",), (0, 0, os.POSIX_FADV_DONTNEED)]


def test_a_file_system_that_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    assert resident_fraction([write(tmp_path / "file", 10)]) is None
    assert resident_fraction([]) is None


def test_the_nearest_mount_point_tells_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a disk" / "inner"
    inner.mkdir(parents=True)
    table = tmp_path / "mountinfo"
    name = str(tmp_path / "a disk").replace(" ", r"\040")
    table.write_text(
        f"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n30 22 0:26 / {name} rw - tmpfs tmpfs rw,size=4k\n"
    )
    monkeypatch.setattr(files, "_MOUNTS", table)
    assert file_system(inner) == "tmpfs"
    assert file_system(tmp_path) == "ext4"
    monkeypatch.setattr(files, "_MOUNTS", tmp_path / "none")
    assert file_system(inner) is None
