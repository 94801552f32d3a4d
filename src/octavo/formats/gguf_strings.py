"""Finding the strings of a long GGUF array without decoding them.

Each string is a length (u64, little-endian) and that many bytes, so the place of one is known only after the one
before it: a chain, a quarter of a million links long in a large vocabulary.
"""

from __future__ import annotations

from array import array
from struct import Struct

import numpy as np
from numpy.typing import NDArray

__all__ = ["scan_strings"]

_U64 = Struct("<Q")


def scan_strings(buffer: NDArray[np.uint8], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Follows `count` strings from the start of buffer u8 [bytes].

    Returns where the texts start and end: i64 [n] each, n = count, or less if a string does not fit into the buffer
    (then it is number n).
    """
    view = buffer.data
    starts, ends = array("q"), array("q")
    position, last = 0, len(buffer) - 8
    unpack = _U64.unpack_from
    for _ in range(count):
        if position > last:
            break
        start = position + 8
        position = start + unpack(view, position)[0]
        if position > last + 8:
            break
        starts.append(start)
        ends.append(position)
    return np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64)
