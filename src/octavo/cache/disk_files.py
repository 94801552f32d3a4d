"""The directory of the disk store: one file a page, private to its owner, one process writing.

    DIRECTORY/octavo-kv/            mode 0700
      lock                          held while a process writes here; its number is inside
      3f/3f9a..-07c1...kv1          a page: its digest and its parent's in hex, then the format version; mode 0600
      3f/3f9a..-07c1...kv1.tmp      a page that is being written

One file a page, not segments: pages are about a megabyte, so 100 GB are 100,000 names in 256 directories, which any
file system carries; any page can be given up at once, in exact order of recency, whatever the sizes of its neighbours,
where segments would have to copy live pages out (compaction) or give up hot ones with cold. Names hold all that the
index needs, so opening reads no page.

A file gets its name by a rename once it is complete, so a process killed at any moment leaves whole pages and at most
one .tmp, which the next writer deletes. Nothing is synced: after a power failure a file may hold less than its name
promises, which its checksum tells on every read. Syncing would buy only that fewer pages are lost then, and pages can
be computed again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from octavo.cache.disk_format import DIGEST_BYTES, FORMAT_VERSION
from octavo.cache.disk_index import DiskIndex, Entry
from octavo.core.errors import ConfigError

__all__ = ["BLOCK_BYTES", "SUBDIRECTORY", "PageFiles", "disk_bytes", "page_name"]

SUBDIRECTORY = "octavo-kv"
BLOCK_BYTES = 4096
_NAME = re.compile(rf"([0-9a-f]{{{2 * DIGEST_BYTES}}})-([0-9a-f]{{{2 * DIGEST_BYTES}}})\.kv\d+")
_TEMPORARY = ".tmp"
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC

logger = logging.getLogger(__name__)


def disk_bytes(size: int) -> int:
    """What a file of `size` bytes takes: whole blocks. Directory entries, about 100 bytes a page, are not counted."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def page_name(digest: bytes, parent: bytes) -> str:
    """Name of a page's file below the store's directory."""
    name = digest.hex()
    return f"{name[:2]}/{name}-{parent.hex()}.kv{FORMAT_VERSION}"


class PageFiles:
    """Opens, locks, lists, reads and writes the files of one store. Names are relative to `path`.

    read_only: why nothing is written here, or None: another process writes, or the directory does not allow it.

    Raises:
        ConfigError: there is no directory and none can be made, or it belongs to someone else.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = str(Path(directory).expanduser().absolute() / SUBDIRECTORY)
        self._lock: int | None = None
        self._make_directory(Path(self.path).parent)
        self.read_only = self._take_lock()
        if self.read_only:
            logger.warning("prefix_cache_dir %s: pages are read and none are written: %s", self.path, self.read_only)

    def close(self) -> None:
        """Let others write here."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def scan(self) -> DiskIndex:
        """All pages here. A writer also deletes what a killed process left, and takes away what others may read."""
        index = DiskIndex()
        tightened = 0
        try:
            for shard in sorted(e.name for e in os.scandir(self.path) if re.fullmatch("[0-9a-f]{2}", e.name)):
                if not self.read_only:
                    tightened += self._tighten(shard, 0o700)
                for each in os.scandir(f"{self.path}/{shard}"):
                    tightened += self._list(f"{shard}/{each.name}", each, index)
        except OSError as error:
            raise ConfigError(f"prefix_cache_dir {self.path} cannot be read: {error.strerror}") from error
        if tightened:
            logger.warning("prefix_cache_dir %s: %d files were open to others; not any more", self.path, tightened)
        if index.strangers:
            logger.warning(
                "prefix_cache_dir %s: %d pages of another format version are ignored, and deleted when room is needed",
                self.path,
                len(index.strangers),
            )
        return index

    def read(self, name: str, buffer: memoryview) -> int:
        """Read a file into `buffer` until either ends; returns how many bytes. Raises OSError."""
        fd = os.open(f"{self.path}/{name}", os.O_RDONLY | _FLAGS)
        try:
            at = 0
            while at < len(buffer) and (count := os.readv(fd, [buffer[at:]])):
                at += count
            return at
        finally:
            os.close(fd)

    def write(self, name: str, record: Sequence[bytes], stamp: int) -> None:
        """Write a record to the temporary file of `name`. Raises OSError, and leaves no file then."""
        path = f"{self.path}/{name}{_TEMPORARY}"
        try:
            fd = self._create(path)
            try:
                for piece in record:
                    _write_all(fd, piece)
                os.utime(fd, ns=(stamp, stamp))
            finally:
                os.close(fd)
        except OSError:
            self.discard(name)
            raise

    def publish(self, name: str) -> None:
        """The temporary file of `name` is complete: it gets its name. Raises OSError, and leaves no file then."""
        path = f"{self.path}/{name}"
        try:
            os.rename(path + _TEMPORARY, path)
        except OSError:
            self.discard(name)
            raise

    def discard(self, name: str) -> None:
        """The temporary file of `name` is not wanted."""
        with contextlib.suppress(OSError):
            os.unlink(f"{self.path}/{name}{_TEMPORARY}")

    def touch(self, name: str, stamp: int) -> None:
        """Keep the time of last use, ns, for the next start. A page that is gone by now stays so."""
        with contextlib.suppress(OSError):
            os.utime(f"{self.path}/{name}", ns=(stamp, stamp))

    def delete(self, name: str) -> None:
        """Delete a page's file; it is no error that there is none. Raises OSError where that is not allowed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.path}/{name}")

    def _make_directory(self, parent: Path) -> None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
            status = os.lstat(self.path)
        except OSError as error:
            raise ConfigError(f"prefix_cache_dir {parent} cannot be made: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"prefix_cache_dir: {self.path} is not a directory; move it away or set another one")
        if status.st_uid != os.geteuid():
            raise ConfigError(
                f"prefix_cache_dir: {self.path} belongs to user {status.st_uid}, who could change what this one is "
                f"answered; set a directory of your own"
            )

    def _take_lock(self) -> str | None:
        """Become the one who writes here; returns why that is not possible, or None."""
        path = f"{self.path}/lock"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        except OSError as error:
            if error.errno not in _DENIED:
                raise ConfigError(f"prefix_cache_dir: {path} cannot be opened: {error.strerror}") from error
            return f"the directory cannot be written ({error.strerror})"
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise ConfigError(
                    f"prefix_cache_dir {self.path} is on a file system without locks ({error.strerror}); "
                    f"set a directory on a local disk"
                ) from error
            return f"process {holder or '?'} writes there; give each process a directory of its own"
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock = fd
        if self._tighten("", 0o700):
            logger.warning("prefix_cache_dir %s was open to others; not any more: prompts are private", self.path)
        return None

    def _list(self, name: str, each: os.DirEntry[str], index: DiskIndex) -> int:
        """Enter one file, as a page or as a stranger; returns 1 where its mode was tightened."""
        if each.name.endswith(_TEMPORARY) and _NAME.fullmatch(each.name.removesuffix(_TEMPORARY)):
            if not self.read_only:
                self.delete(name)
            return 0
        match = _NAME.fullmatch(each.name)
        if match is None:
            return 0
        try:
            status = each.stat(follow_symlinks=False)
        except FileNotFoundError:
            return 0  # deleted meanwhile by the process that writes here
        if not stat.S_ISREG(status.st_mode):
            return 0
        digest, parent = bytes.fromhex(match[1]), bytes.fromhex(match[2])
        size = disk_bytes(status.st_size)
        if name == page_name(digest, parent) and digest not in index:
            index.add(Entry(digest, parent, name, size, status.st_mtime_ns))
        else:
            index.add_stranger(name, size)
        return 0 if self.read_only or not status.st_mode & 0o077 else self._tighten(name, 0o600)

    def _tighten(self, name: str, mode: int) -> int:
        """Take away what group and others may do; returns 1 if that was anything."""
        path = f"{self.path}/{name}"
        if not stat.S_IMODE(os.lstat(path).st_mode) & 0o077:
            return 0
        os.chmod(path, mode)
        return 1

    def _create(self, path: str) -> int:
        create = partial(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o600)
        try:
            return create()
        except FileNotFoundError:  # the first page of its directory
            os.mkdir(os.path.dirname(path), 0o700)
            return create()


def _write_all(fd: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]
