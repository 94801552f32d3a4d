"""A file as a read-only memory map."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ModelFormatError, ModelNotFoundError

__all__ = ["map_file", "release_pages"]


def map_file(path: Path) -> NDArray[np.uint8]:
    """The whole file as a read-only map: u8 [bytes], unmapped when the last view into it is gone.

    If another program shortens the file meanwhile, touching the lost part ends the process with SIGBUS, as with every
    memory map: replace model files by renaming, never in place.

    Raises ModelNotFoundError if there is no such file or it may not be read, ModelFormatError if it is a directory or
    another thing that has no bytes to map.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ModelNotFoundError(f"there is no file {str(path)!r}; give the path of a .gguf file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelNotFoundError(f"{str(path)!r} cannot be opened: {reason}") from None
    try:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise ModelFormatError(f"{str(path)!r} is a directory; give the path of a .gguf file in it")
        if not stat.S_ISREG(facts.st_mode):
            raise ModelFormatError(f"{str(path)!r} is not a regular file, so it cannot be mapped; copy it to one")
        if facts.st_size == 0:  # mmap refuses it
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise ModelNotFoundError(f"{str(path)!r} cannot be mapped into memory: {error.strerror}") from None
    finally:
        os.close(descriptor)


def release_pages(view: NDArray[np.uint8]) -> None:
    """Take the whole pages of a view into a mapped file out of this process's resident memory.

    The view stays valid: its pages come back from the file (as a rule from the system's cache of it) when they are
    touched. For tensors that have been packed, so that a model being loaded does not count twice. A view of other
    memory is left alone.
    """
    root = view
    while isinstance(root.base, np.ndarray):
        root = root.base
    held: Any = root.base
    if isinstance(held, memoryview):
        held = held.obj
    if not isinstance(held, mmap.mmap) or not view.flags.c_contiguous:
        return
    start = view.ctypes.data - root.ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + view.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and hasattr(mmap, "MADV_DONTNEED"):
        held.madvise(mmap.MADV_DONTNEED, first, last - first)
