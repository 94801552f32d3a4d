"""Long GGUF string arrays: finding the strings without decoding them, and decoding all of them at once.

Each string is a length (u64, little-endian) and that many bytes, so the place of one is known only after the one
before it: a chain, a quarter of a million links long in a large vocabulary. Nearly all lengths are below 256, that is
one byte and seven zeros; such places are found for a whole window with a few NumPy operations, and comparing each
with the end of the string before proves the chain. Whatever does not fit the pattern is walked link by link.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
from numpy.typing import NDArray

__all__ = ["decode_strings", "scan_strings"]

_U64 = Struct("<Q")
_WINDOW_BYTES = 1 << 18  # with its temporaries it stays in a core's L2 cache
_LONGEST_SHORT = 8 + 255  # bytes of the longest string whose length has seven zeros
_FEW = 32  # strings up to which walking is cheaper than a window


def scan_strings(buffer: NDArray[np.uint8], count: int) -> tuple[NDArray[np.int64], int]:
    """Follows `count` strings from the start of buffer u8 [bytes]; `count` <= bytes / 8.

    Returns where the texts start, i64 [n], and where the last one ends. n = count, or less if a string does not fit
    into the buffer (then it is number n). Work is linear in the bytes passed over, whatever they are.
    """
    starts = np.empty(count, np.int64)
    found, position = 0, 0
    while found < count:
        stop = position + _WINDOW_BYTES
        if count - found > _FEW:
            links, reached = _short_links(buffer[position:stop])
            links = links[: count - found]
            starts[found : found + len(links)] = links + (position + 8)
            found += len(links)
            if found == count:
                last = int(starts[-1])
                return starts, last + int(buffer[last - 8])
            position += reached
            if stop - position < _LONGEST_SHORT and stop < len(buffer):
                continue
        walked, position = _walk(buffer, position, stop, starts[found:])
        found += walked
        if found < count and position < stop:
            break
    return starts[:found], position


def _short_links(window: NDArray[np.uint8]) -> tuple[NDArray[np.int64], int]:
    """The unbroken chain of strings shorter than 256 bytes from the start of window u8 [bytes].

    Returns where their lengths lie, i64 [n], and where the chain ends.
    """
    zero = window == 0
    two = zero[:-1] & zero[1:]
    four = two[:-2] & two[2:]
    seven = four[:-3] & four[3:]  # seven[i]: bytes i to i + 6 are zero
    links = np.flatnonzero(seven[1:])
    following = links + 8 + window[links]
    # True where a link is at the end of the one before; the first has to be at 0.
    joined = np.empty(len(links), np.bool_)
    joined[:1] = links[:1] == 0
    np.equal(links[1:], following[:-1], out=joined[1:])
    joined &= following <= len(window)
    broken = np.flatnonzero(~joined)
    proven = int(broken[0]) if len(broken) else len(links)
    return links[:proven], int(following[proven - 1]) if proven else 0


def _walk(buffer: NDArray[np.uint8], position: int, stop: int, starts: NDArray[np.int64]) -> tuple[int, int]:
    """Follows strings one by one from `position` until `stop` is reached or `starts` is full.

    Returns how many were found and where the last ended; that is before `stop` if one does not fit into the buffer.
    """
    view, size = buffer.data, len(buffer)
    for index in range(len(starts)):
        if position >= stop:
            return index, position
        if position + 8 > size:
            return index, position
        following = position + 8 + _U64.unpack_from(view, position)[0]
        if following > size:
            return index, position
        starts[index] = position + 8
        position = following
    return len(starts), position


def decode_strings(stored: NDArray[np.uint8], starts: NDArray[np.int64]) -> list[str]:
    """All texts of an array. stored u8 [bytes]: lengths and texts; starts i64 [count]: where the texts start.

    Raises UnicodeDecodeError if one is not UTF-8.
    """
    # The top byte of each length is zero. With the other seven taken out, it separates texts that hold no zero.
    kept = np.ones(len(stored), np.bool_)
    for back in range(2, 9):
        kept[starts - back] = False
    texts = stored[kept].tobytes().decode().split("\0")
    if len(texts) == len(starts) + 1:
        return texts[1:]
    raw = stored.tobytes()
    ends = [*(starts[1:] - 8).tolist(), len(raw)]
    return [raw[a:b].decode() for a, b in zip(starts.tolist(), ends, strict=True)]
