"""The windowed search for strings against a plain walk, and decoding against decoding one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.gguf_bytes import string
from octavo.formats import gguf_strings
from octavo.formats.gguf_strings import decode_strings, scan_strings


def walk(content: bytes, count: int) -> list[int]:
    """Where texts start, one at a time."""
    starts, position = [], 0
    for _ in range(count):
        end = position + 8 + int.from_bytes(content[position : position + 8], "little")
        if position + 8 > len(content) or end > len(content):
            break
        starts.append(position + 8)
        position = end
    return starts


def check(content: bytes, count: int) -> None:
    starts, end = scan_strings(np.frombuffer(content, np.uint8), count)
    expected = walk(content, count)
    assert starts.tolist() == expected
    assert starts.dtype == np.int64
    if expected and len(expected) == count:
        assert end == expected[-1] + int.from_bytes(content[expected[-1] - 8 : expected[-1]], "little")


short = st.binary(max_size=12)
zeros = st.integers(0, 600).map(bytes)
long = st.integers(200, 1500).map(lambda n: b"x" * n)


@given(
    texts=st.lists(st.one_of(short, short, short, zeros, long), max_size=200),
    repeat=st.integers(1, 6),
    cut=st.integers(0, 40),
    extra=st.binary(max_size=40),
    window=st.sampled_from([270, 300, 1024, 1 << 18]),
    few=st.sampled_from([0, 32]),
)
def test_any_strings_are_found_where_a_walk_finds_them(
    texts: list[bytes], repeat: int, cut: int, extra: bytes, window: int, few: int
) -> None:
    content = b"".join(map(string, texts)) * repeat
    content = content[: len(content) - cut] + extra
    count = min(len(texts) * repeat, len(content) // 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_strings, "_WINDOW_BYTES", window)
        patch.setattr(gguf_strings, "_FEW", few)
        check(content, count)


@given(content=st.binary(max_size=400).map(lambda b: bytes(x if x < 12 else 0 for x in b)))
def test_bytes_that_are_full_of_zeros(content: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_strings, "_WINDOW_BYTES", 280)
        patch.setattr(gguf_strings, "_FEW", 0)
        check(content, len(content) // 8)


@pytest.mark.parametrize("text", [b"token", b"a\0b", bytes(9), b"", b"x" * 255, b"x" * 256, b"x" * 70_000])
def test_long_arrays_of_one_text(text: bytes) -> None:
    """More than one window of each: the fast path, and strings that never fit it."""
    count = 600_000 // (len(text) + 8) + 40
    content = string(text) * count
    check(content, count)
    check(content[:-1], count)
    starts, end = scan_strings(np.frombuffer(content, np.uint8), count)
    assert end == len(content)
    assert decode_strings(np.frombuffer(content, np.uint8), starts) == [text.decode()] * count


@given(st.lists(st.text(max_size=8), max_size=50))
def test_decoding(texts: list[str]) -> None:
    stored = np.frombuffer(b"".join(string(text) for text in texts), np.uint8)
    starts, _ = scan_strings(stored, len(texts))
    assert decode_strings(stored, starts) == texts


@pytest.mark.parametrize("texts", [[b"ok", b"\xff"], [b"\xc3", b"\xa9"], [b"a\0", b"\xc3"]])
def test_decoding_what_is_not_utf8(texts: list[bytes]) -> None:
    """A character that is spread over two strings is none, in either of the two ways of decoding."""
    stored = np.frombuffer(b"".join(map(string, texts)), np.uint8)
    starts, _ = scan_strings(stored, len(texts))
    with pytest.raises(UnicodeDecodeError):
        decode_strings(stored, starts)
