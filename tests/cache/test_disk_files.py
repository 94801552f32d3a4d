"""The directory of the disk tier: private, locked, tidy after a crash, careful with what is not its own."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path

import pytest

from helpers.disk_pages import FILE_BYTES, chain, files_below, page_of
from octavo.cache import disk_files
from octavo.cache.disk_files import SUBDIRECTORY, PageFiles, page_name
from octavo.cache.disk_format import pack_record
from octavo.core.errors import ConfigError


def write_pages(files: PageFiles, count: int, first_stamp: int = 1) -> list[str]:
    names = []
    for stamp, key in enumerate(chain(count), start=first_stamp):
        name = page_name(key.digest, key.parent)
        files.write(name, pack_record(key, page_of(key)), stamp)
        files.publish(name)
        names.append(name)
    return names


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_directories_and_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = PageFiles(tmp_path / "new" / "cache")
        (name,) = write_pages(files, 1)
    finally:
        os.umask(before)
    page = Path(files.path) / name
    assert [mode(p) for p in (page, page.parent.parent / "lock")] == [0o600, 0o600]
    assert [mode(p) for p in (page.parent, page.parent.parent)] == [0o700, 0o700]
    files.close()


def test_modes_opened_by_someone_are_closed_again_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = PageFiles(tmp_path)
    (name,) = write_pages(files, 1)
    files.close()
    page = Path(files.path) / name
    for path, wide in ((page, 0o644), (page.parent, 0o755), (page.parent.parent, 0o755)):
        path.chmod(wide)
    files = PageFiles(tmp_path)
    files.scan()
    files.close()
    assert [mode(p) for p in (page, page.parent, page.parent.parent)] == [0o600, 0o700, 0o700]
    assert "prompts are private" in caplog.text
    assert "2 files were open to others" in caplog.text


def test_a_scan_finds_pages_with_parent_size_and_time(tmp_path: Path) -> None:
    files = PageFiles(tmp_path)
    names = write_pages(files, 3, first_stamp=10**18)
    index = files.scan()
    files.close()
    assert {e.digest: (e.parent, e.name, e.disk_bytes, e.stamp) for e in index} == {
        key.digest: (key.parent, name, FILE_BYTES, 10**18 + i)
        for i, (key, name) in enumerate(zip(chain(3), names, strict=True))
    }
    assert index.used_bytes == 3 * FILE_BYTES


def test_unfinished_files_go_and_foreign_ones_stay(tmp_path: Path) -> None:
    files = PageFiles(tmp_path)
    (name,) = write_pages(files, 1)
    key = chain(2)[1]
    files.write(page_name(key.digest, key.parent), [b"half"], 1)
    root = Path(files.path)
    mine = [root / "notes.txt", root / name[:2] / "photo.kv1", root / name[:2] / "draft.tmp", tmp_path / "other"]
    for path in mine:
        path.write_bytes(b"not yours")
    assert len(files.scan()) == 1
    files.close()
    assert set(files_below(tmp_path)) == {root / name, *mine[:3]}
    assert mine[3].read_bytes() == b"not yours"


def test_other_versions_and_wrong_places_are_strangers_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = PageFiles(tmp_path)
    old, moved, _ = write_pages(files, 3)
    root = Path(files.path)
    (root / old).rename((root / old).with_suffix(".kv0"))
    elsewhere = root / ("00" if moved[:2] != "00" else "01") / Path(moved).name
    elsewhere.parent.mkdir(exist_ok=True)
    (root / moved).rename(elsewhere)
    index = files.scan()
    files.close()
    assert (len(index), len(index.strangers), index.used_bytes) == (1, 2, 3 * FILE_BYTES)
    assert "2 pages of another format version are ignored" in caplog.text


def test_one_writer_at_a_time_the_second_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = PageFiles(tmp_path)
    key = chain(1)[0]
    unfinished = page_name(key.digest, key.parent)
    first.write(unfinished, [b"being written"], 1)
    second = PageFiles(tmp_path)
    assert first.read_only is None
    assert second.read_only == f"process {os.getpid()} writes there; give each process a directory of its own"
    assert "pages are read and none are written" in caplog.text
    second.scan()
    first.publish(unfinished)  # the reader has not deleted it
    second.close()
    first.close()
    third = PageFiles(tmp_path)
    assert third.read_only is None
    third.close()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_directory_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    files = PageFiles(tmp_path)
    (name,) = write_pages(files, 1)
    files.close()
    real = os.open

    def denied(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(code, os.strerror(code), path)
        return real(path, flags, mode)

    monkeypatch.setattr(disk_files.os, "open", denied)
    files = PageFiles(tmp_path)
    assert files.read_only == f"the directory cannot be written ({os.strerror(code)})"
    assert [entry.name for entry in files.scan()] == [name]
    assert files.read(name, memoryview(bytearray(FILE_BYTES))) > 0
    files.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission_is_read(tmp_path: Path) -> None:
    files = PageFiles(tmp_path)
    files.close()
    root = Path(files.path)
    (root / "lock").unlink()
    root.chmod(0o500)
    try:
        assert PageFiles(tmp_path).read_only is not None
    finally:
        root.chmod(0o700)


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"prefix_cache_dir .* cannot be made"):
        PageFiles(tmp_path / "file")
    (tmp_path / "target").mkdir()
    (tmp_path / SUBDIRECTORY).symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match="is not a directory"):
        PageFiles(tmp_path)


def test_links_in_the_place_of_pages_are_not_followed(tmp_path: Path) -> None:
    files = PageFiles(tmp_path)
    (name,) = write_pages(files, 1)
    page, target = Path(files.path) / name, tmp_path / "target"
    page.rename(target)
    page.symlink_to(target)
    assert len(files.scan()) == 0
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        files.read(name, memoryview(bytearray(FILE_BYTES)))
    files.close()


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PageFiles(tmp_path).close()
    monkeypatch.setattr(disk_files.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="belongs to user"):
        PageFiles(tmp_path)


def test_a_write_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = PageFiles(tmp_path)
    key = chain(1)[0]
    name = page_name(key.digest, key.parent)
    real, calls = os.write, []

    def full(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(disk_files.os, "write", full)
        with pytest.raises(OSError, match="No space"):
            files.write(name, pack_record(key, page_of(key)), 1)
    assert len(calls) == 2
    assert files_below(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        files.publish(name)
    files.close()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = PageFiles(tmp_path)
    key = chain(1)[0]
    real = os.write
    monkeypatch.setattr(disk_files.os, "write", lambda fd, data: real(fd, data[:1000]))
    (name,) = write_pages(files, 1)
    monkeypatch.undo()
    record = b"".join(pack_record(key, page_of(key)))
    buffer = memoryview(bytearray(len(record) + 1))
    assert files.read(name, buffer) == len(record)
    assert buffer[: len(record)] == record
    files.close()


def test_deleting_what_is_gone_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = PageFiles(tmp_path)
    (name,) = write_pages(files, 1)
    files.delete(name)
    files.delete(name)
    files.touch(name, 1)
    with pytest.raises(FileNotFoundError):
        files.read(name, memoryview(bytearray(1)))
    assert caplog.record_tuples == []
    assert logging.getLogger("octavo.cache.disk_files").isEnabledFor(logging.WARNING)
    files.close()
