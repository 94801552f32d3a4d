"""Decoders of the int4, int8 and FP8 formats against loops over single values."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import ModelFormatError
from octavo.formats import ggml
from octavo.formats.e4m3 import E4M3_VALUES
from octavo.formats.ggml import FORMATS

NAMES = [name for name, stored in FORMATS.items() if stored.ggml_id is None]
f32 = np.float32


def nibble(packed: bytes, index: int) -> int:
    """Value `index` of a group: runs of 32 in 16 bytes, the first 16 of them in the low nibbles."""
    byte = packed[index // 32 * 16 + index % 16]
    return byte >> 4 if index % 32 >= 16 else byte & 15


def loop(name: str, row: bytes) -> list[np.float32]:
    """One row, value by value."""
    stored, values = FORMATS[name], []
    if name in ("INT8", "FP8_E4M3"):
        (scale,) = struct.unpack("<f", row[:4])
        for byte in row[4:]:
            value = byte - 256 * (byte > 127) if name == "INT8" else E4M3_VALUES[byte]
            values.append(f32(scale) * f32(value))
        return values
    for at in range(0, len(row), stored.block_bytes):
        block = row[at : at + stored.block_bytes]
        if name == "FP8_E4M3_B128":
            (scale,) = struct.unpack("<f", block[:4])
            values += [f32(scale) * E4M3_VALUES[byte] for byte in block[4:]]
            continue
        (scale,) = struct.unpack("<e", block[:2])
        zero, packed = (block[2], block[3:]) if name.endswith("_Z") else (8, block[2:])
        values += [f32(scale) * f32(nibble(packed, i) - zero) for i in range(stored.block_elements)]
    return values


def random_rows(name: str, rows: int, blocks: int, seed: int) -> np.ndarray:
    stored = FORMATS[name]
    shape = (rows, stored.header_bytes + blocks * stored.block_bytes)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bits, any NaN for any NaN."""
    nan = np.isnan(a)
    return bool(np.array_equal(nan, np.isnan(b)) and np.array_equal(a.view(np.uint32)[~nan], b.view(np.uint32)[~nan]))


def test_the_names_and_sizes() -> None:
    sizes = {
        name: (FORMATS[name].header_bytes, FORMATS[name].block_elements, FORMATS[name].block_bytes) for name in NAMES
    }
    assert sizes == {
        "INT4_G32": (0, 32, 18), "INT4_G64": (0, 64, 34), "INT4_G128": (0, 128, 66),
        "INT4_G32_Z": (0, 32, 19), "INT4_G64_Z": (0, 64, 35), "INT4_G128_Z": (0, 128, 67),
        "INT8": (4, 32, 32), "FP8_E4M3": (4, 32, 32), "FP8_E4M3_B128": (0, 128, 132),
    }  # fmt: skip


@given(
    name=st.sampled_from(NAMES),
    rows=st.integers(0, 3),
    blocks=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
    fill=st.sampled_from([None, 0, 0x7C, 0x7F, 0xFF]),
)
@settings(deadline=None, max_examples=200)
def test_any_bytes_decode_as_the_loop_does(name: str, rows: int, blocks: int, seed: int, fill: int | None) -> None:
    """`fill` makes runs of bytes zero, infinite or NaN."""
    data = random_rows(name, rows, blocks, seed)
    if fill is not None:
        data[np.random.default_rng(seed).random(data.shape) < 0.3] = fill
    values = ggml.dequantize(name, data)
    assert values.shape == (rows, blocks * FORMATS[name].block_elements)
    assert values.dtype == np.float32
    with np.errstate(all="ignore"):
        wanted = np.array([loop(name, row.tobytes()) for row in data], np.float32).reshape(values.shape)
    assert same(values, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_rows_longer_than_a_chunk_strided_and_read_only(name: str) -> None:
    blocks = 140_000 // FORMATS[name].block_elements
    whole = random_rows(name, 4, blocks, seed=5)
    whole.flags.writeable = False
    values = ggml.dequantize(name, whole[::2])
    start = 1111 // FORMATS[name].block_elements
    piece = [FORMATS[name].header_bytes + at * FORMATS[name].block_bytes for at in (start, start + 2)]
    for row, got in zip(whole[::2], values, strict=True):
        cut = np.concatenate([row[: FORMATS[name].header_bytes], row[piece[0] : piece[1]]]).tobytes()
        size = FORMATS[name].block_elements
        assert same(got[start * size : (start + 2) * size], np.array(loop(name, cut), np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_memory_beyond_the_result_is_bounded(name: str) -> None:
    data = random_rows(name, 64, 65536 // FORMATS[name].block_elements, seed=0)
    tracemalloc.start()
    try:
        values = ggml.dequantize(name, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes + (2 << 20)


def test_int4_by_hand() -> None:
    block = bytes([*struct.pack("<e", 0.5), 16, 0xF1, *([0] * 31)])
    values = ggml.dequantize("INT4_G64_Z", np.frombuffer(block, np.uint8)[None])[0]
    assert (values[0], values[16], values[1], values[63]) == (-7.5, -0.5, -8.0, -8.0)


def test_partial_rows_are_refused() -> None:
    assert ggml.row_bytes("INT8", 64) == 68
    assert ggml.row_bytes("INT4_G64_Z", 128) == 70
    assert ggml.row_bytes("FP8_E4M3_B128", 256) == 264
    with pytest.raises(ModelFormatError, match="a row of 48 values cannot be INT8, which stores multiples of 32"):
        ggml.row_bytes("INT8", 48)
    with pytest.raises(
        ModelFormatError, match="40 bytes are no whole number of INT8 blocks of 32 bytes, after a header"
    ):
        ggml.dequantize("INT8", np.zeros((1, 40), np.uint8))
    with pytest.raises(ModelFormatError, match="3 bytes are no whole number of FP8_E4M3"):
        ggml.dequantize("FP8_E4M3", np.zeros((1, 3), np.uint8))
