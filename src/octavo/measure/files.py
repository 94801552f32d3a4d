"""Files between page cache and disk: what of them is in memory, putting it out, reading them as fast as it goes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["drop_cached", "file_system", "files_below", "read_all", "resident_fraction", "total_bytes"]

_PROBE_BYTES = 4096
_PROBE_EVERY = 64 << 10  # bytes; the kernel caches and reads ahead in larger pieces than this
_READ_BYTES = 1 << 20
_MOUNTS = Path("/proc/self/mountinfo")


def files_below(folder: Path) -> list[Path]:
    """Every regular file, in order of name."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def total_bytes(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def drop_cached(files: Sequence[Path]) -> None:
    """Write the files to the disk and ask the kernel to let go of its copies (posix_fadvise, DONTNEED)."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # what has not been written cannot be let go
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_fraction(files: Sequence[Path]) -> float | None:
    """Share of the files that can be read without the disk; None where the system or file system cannot tell.

    Asked for a few bytes of each 64 KiB with RWF_NOWAIT, which fails rather than wait for the disk.
    """
    found = asked = 0
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            for offset in range(0, os.fstat(descriptor).st_size, _PROBE_EVERY):
                asked += 1
                try:
                    os.preadv(descriptor, [bytearray(_PROBE_BYTES)], offset, os.RWF_NOWAIT)
                    found += 1
                except BlockingIOError:
                    continue
                except OSError:  # not supported here
                    return None
        finally:
            os.close(descriptor)
    return found / asked if asked else None


def read_all(files: Sequence[Path]) -> float:
    """Seconds to read them one after another, in large pieces, and do nothing with them."""
    buffer = bytearray(_READ_BYTES)
    start = time.perf_counter()
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - start


def file_system(folder: Path) -> str | None:
    """The kind of file system a folder is on ("ext4", "tmpfs", ...), as Linux tells; None elsewhere."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    mounts = {}
    for line in lines:
        before, _, after = line.partition(" - ")
        mounts[_unescaped(before.split()[4])] = after.split()[0]
    place = folder.resolve()
    for parent in (place, *place.parents):
        if str(parent) in mounts:
            return mounts[str(parent)]
    return None


def _unescaped(name: str) -> str:
    r"""Blanks and the like in the names of mount points are octal numbers: \040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), name)
