"""The reference decoders against the public `gguf` package, and the table of formats."""

from __future__ import annotations

import tracemalloc

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import ModelFormatError, UnsupportedModelError
from octavo.formats import ggml
from octavo.formats.tensor import Tensor

NAMES = [name for name, stored in ggml.FORMATS.items() if stored.ggml_id is not None]


def random_rows(name: str, rows: int, blocks: int, seed: int) -> np.ndarray:
    stored = ggml.FORMATS[name]
    return np.random.default_rng(seed).integers(0, 256, (rows, blocks * stored.block_bytes), dtype=np.uint8)


def oracle(name: str, data: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(data, GGMLQuantizationType[name])


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal shapes and bits (so -0 is not 0), any NaN for any NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    nan = np.isnan(a)
    return bool(np.array_equal(nan, np.isnan(b)) and np.array_equal(a.view(np.uint32)[~nan], b.view(np.uint32)[~nan]))


def test_table_agrees_with_the_public_one() -> None:
    assert len({ggml.FORMATS[name].ggml_id for name in NAMES}) == len(NAMES) == 16
    for name in NAMES:
        stored, kind = ggml.FORMATS[name], GGMLQuantizationType[name]
        assert (stored.name, stored.ggml_id) == (name, int(kind))
        assert (stored.block_elements, stored.block_bytes) == GGML_QUANT_SIZES[kind]
        assert ggml.format_of_id(int(kind), "t") is stored


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (3, 7), (129, 2), (0, 3), (5, 0)])
def test_random_blocks_equal_the_oracle_bit_for_bit(name: str, rows: int, blocks: int) -> None:
    data = random_rows(name, rows, blocks, seed=rows)
    values = ggml.dequantize(name, data)
    assert values.shape == (rows, blocks * ggml.FORMATS[name].block_elements)
    assert values.dtype == np.float32
    if data.size:  # the public package cannot take an empty array
        assert same_bits(values, oracle(name, data))


@pytest.mark.parametrize("name", NAMES)
def test_tensors_longer_than_a_chunk_and_unaligned_views(name: str) -> None:
    blocks = 300_000 // ggml.FORMATS[name].block_elements
    data = random_rows(name, 1, blocks, seed=9)
    shifted = np.empty(data.size + 1, np.uint8)[1:]
    shifted[:] = data.reshape(-1)
    shifted.flags.writeable = False
    assert same_bits(ggml.dequantize(name, shifted.reshape(1, -1)), oracle(name, data))


@given(name=st.sampled_from(NAMES), seed=st.integers(0, 2**32 - 1), fill=st.sampled_from([None, 0, 0x7C, 0xFC, 0xFF]))
@settings(deadline=None, max_examples=150)
def test_any_bytes_equal_the_oracle(name: str, seed: int, fill: int | None) -> None:
    """`fill` makes whole runs of bytes zero, infinite or NaN scales."""
    data = random_rows(name, 4, 3, seed)
    if fill is not None:
        rng = np.random.default_rng(seed)
        data[rng.random(data.shape) < 0.3] = fill
    assert same_bits(ggml.dequantize(name, data), oracle(name, data))


def test_every_exponent_of_mxfp4_and_every_half_scale() -> None:
    data = random_rows("MXFP4", 256, 1, seed=1)
    data[:, 0] = np.arange(256)
    assert same_bits(ggml.dequantize("MXFP4", data), oracle("MXFP4", data))
    data = random_rows("Q4_0", 1 << 16, 1, seed=2)
    data[:, :2] = np.arange(1 << 16, dtype="<u2").reshape(-1, 1).view(np.uint8)
    assert same_bits(ggml.dequantize("Q4_0", data), oracle("Q4_0", data))


def test_strided_rows_are_accepted() -> None:
    data = random_rows("Q8_0", 8, 2, seed=3)
    assert same_bits(ggml.dequantize("Q8_0", data[::2]), oracle("Q8_0", data[::2].copy()))


def test_the_result_is_a_new_writable_array_in_the_shape_of_the_tensor() -> None:
    stored = np.arange(12, dtype=np.float32)
    data = stored.view(np.uint8).reshape(6, 8)
    values = ggml.dequantize_tensor(Tensor("t", "F32", (2, 3, 2), data))
    assert np.array_equal(values, stored.reshape(2, 3, 2))
    values[:] = 0
    assert stored[5] == 5


def test_q4_0_by_hand() -> None:
    block = np.zeros((1, 18), np.uint8)
    block[0, :2] = np.array([0.5], "<f2").view(np.uint8)
    block[0, 2] = 0xF1  # value 0 is 1 - 8, value 16 is 15 - 8
    values = ggml.dequantize("Q4_0", block)[0]
    assert values[0] == -3.5
    assert values[16] == 3.5
    assert values[1] == -4.0


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "IQ4_XS", "BF16"])
def test_memory_beyond_the_result_is_bounded(name: str) -> None:
    stored = ggml.FORMATS[name]
    data = np.zeros((64, 65536 // stored.block_elements * stored.block_bytes), np.uint8)
    tracemalloc.start()
    try:
        values = ggml.dequantize(name, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes + (2 << 20)


def test_row_bytes() -> None:
    assert ggml.row_bytes("Q4_0", 576) == 576 // 32 * 18
    assert ggml.row_bytes("F32", 3) == 12
    assert ggml.row_bytes("Q6_K", 0) == 0
    with pytest.raises(ModelFormatError, match="a row of 576 values cannot be Q4_K, which stores multiples of 256"):
        ggml.row_bytes("Q4_K", 576)
    with pytest.raises(ModelFormatError, match="17 bytes are no whole number of Q4_0 blocks"):
        ggml.dequantize("Q4_0", np.zeros((1, 17), np.uint8))


def test_unsupported_formats_say_what_is_supported() -> None:
    for kind in GGMLQuantizationType:
        if kind.name not in ggml.FORMATS:
            with pytest.raises(
                UnsupportedModelError, match=rf"'blk\.0\.x'.*type {int(kind)}, {kind.name};.*IQ4_XS, MXFP4$"
            ):
                ggml.format_of_id(int(kind), "blk.0.x")
    with pytest.raises(UnsupportedModelError, match="type 4242, unknown"):
        ggml.format_of_id(4242, "x")
    for call in (lambda: ggml.row_bytes("Q9_9", 1), lambda: ggml.dequantize("Q9_9", np.zeros((1, 1), np.uint8))):
        with pytest.raises(UnsupportedModelError, match=r"'Q9_9'.*Q4_0"):
            call()
