"""Quantizing by rounding: what comes back is the nearest level of the scale that the format's rule gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import ModelFormatError, UnsupportedModelError
from octavo.formats.e4m3 import E4M3_VALUES
from octavo.formats.ggml import FORMATS, dequantize_tensor, row_bytes
from octavo.formats.quantize import QUANTIZABLE, quantize

NUMBERS = np.sort(E4M3_VALUES[np.isfinite(E4M3_VALUES)]).astype(np.float64)


def matrix(rows: int, columns: int, seed: int, spread: float = 0.05, offset: float = 0.0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((rows, columns)) * spread + offset
    return values.astype(np.float32)


def scales(name: str, tensor_data: np.ndarray, columns: int) -> np.ndarray:
    """The stored scale of every value: f64 [rows, columns]."""
    stored = FORMATS[name]
    if stored.header_bytes:
        return np.repeat(tensor_data[:, :4].copy().view("<f4").astype(np.float64), columns, axis=1)
    blocks = tensor_data.reshape(len(tensor_data), -1, stored.block_bytes)
    width, kind = (4, "<f4") if name.startswith("FP8") else (2, "<f2")
    each = np.ascontiguousarray(blocks[:, :, :width]).view(kind)[:, :, 0].astype(np.float64)
    return np.repeat(each, stored.block_elements, axis=1)


@given(
    name=st.sampled_from(QUANTIZABLE),
    rows=st.integers(1, 5) | st.sampled_from([127, 128, 129, 260]),
    blocks=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([1e-3, 0.05, 30.0]),
    offset=st.sampled_from([0.0, 0.1, -40.0]),
)
@settings(deadline=None, max_examples=150)
def test_what_comes_back_is_near(name: str, rows: int, blocks: int, seed: int, spread: float, offset: float) -> None:
    columns = blocks * FORMATS[name].block_elements
    x = matrix(rows, columns, seed, spread, offset)
    tensor = quantize(x, name, name="w")
    assert (tensor.name, tensor.dtype, tensor.shape) == ("w", name, (rows, columns))
    assert tensor.data.shape == (rows, row_bytes(name, columns))
    scale = scales(name, tensor.data, columns)
    error = np.abs(dequantize_tensor(tensor) - x.astype(np.float64))
    exact = x / np.where(scale == 0, 1, scale)
    if name.startswith("FP8"):
        at = np.clip(np.searchsorted(NUMBERS, exact), 1, len(NUMBERS) - 1)
        bound = (NUMBERS[at] - NUMBERS[at - 1]) / 2
    elif name.startswith("INT4") and not name.endswith("_Z"):
        bound = np.maximum(0.5, exact - 7)  # past 7 steps is clipped
        assert exact.max() < 8.01
    else:
        bound = np.full_like(exact, 0.5)
        if name.endswith("_Z"):  # the ends of the range move by the rounding of the zero point and of the scale
            bound += 0.5 + 15 * 2**-10
    assert (error <= (bound + 1e-4) * np.abs(scale)).all()


# With a zero point the ends of a range may both round inwards, so that the second time it is shorter.
@given(name=st.sampled_from([name for name in QUANTIZABLE if name[-1] != "Z"]), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_what_was_quantized_quantizes_to_itself(name: str, seed: int) -> None:
    once = dequantize_tensor(quantize(matrix(130, 256, seed), name))
    np.testing.assert_allclose(dequantize_tensor(quantize(once, name)), once, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_keeps_the_extreme_and_clips_its_opposite(group: int) -> None:
    x = np.zeros((2, group), np.float32)
    x[0, :4] = [4.0, -4.0, 0.75, 0.25]  # d = -0.5 or 0.5: the tie goes to the negative extreme
    x[1, :4] = [-1.0, 4.0, 0.75, 0.25]
    values = dequantize_tensor(quantize(x, f"INT4_G{group}"))
    assert values[0, :5].tolist() == [3.5, -4.0, 1.0, 0.0, 0.0]  # 1.5 and 0.5 steps: ties to even
    assert values[1, :5].tolist() == [-1.0, 4.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_with_a_zero_point_keeps_zero_and_uses_the_whole_range(group: int) -> None:
    x = np.zeros((2, group), np.float32)
    x[0, :3] = [-0.5, 7.0, 0.5]  # d = 0.5, z = 1
    x[1] = -3.0  # all on one side: zero is the other end
    tensor = quantize(x, f"INT4_G{group}_Z")
    assert tensor.data[:, 2].tolist() == [1, 15]
    values = dequantize_tensor(tensor)
    assert values[0, :4].tolist() == [-0.5, 7.0, 0.5, 0.0]
    np.testing.assert_allclose(values[1], -3.0, rtol=2**-11)


def test_int8_and_fp8_rows_have_scales_of_their_own() -> None:
    x = np.zeros((3, 32), np.float32)
    x[0, :4] = [127.0, -127.0, 2.5, 3.5]
    x[1, :3] = [-0.127, 0.001, 0.0005]
    assert dequantize_tensor(quantize(x, "INT8"))[0, :4].tolist() == [127.0, -127.0, 2.0, 4.0]
    assert (quantize(x, "INT8").data[2] == 0).all()
    x[0, :4] = [448.0, -20.0, 17.0, 2.0**-10]  # 17 lies between 16 and 18, 2^-10 between 0 and 2^-9
    x[1, :2] = [-1e-3, 5e-4]
    got = dequantize_tensor(quantize(x, "FP8_E4M3"))
    assert got[0, :4].tolist() == [448.0, -20.0, 16.0, 0.0]
    np.testing.assert_allclose(got[1, :2], [-1e-3, 5e-4], rtol=1e-6)


def test_fp8_tiles_share_a_scale() -> None:
    x = matrix(200, 256, 3)
    x[5, 7], x[150, 200] = 4.48, -8.96
    tensor = quantize(x, "FP8_E4M3_B128")
    each = scales("FP8_E4M3_B128", tensor.data, 256)[:, ::128]
    largest = [[np.abs(x[r : r + 128, c : c + 128]).max() for c in (0, 128)] for r in (0, 128)]
    np.testing.assert_array_equal(each[:128], np.broadcast_to(np.float32(largest[0]) / np.float32(448), (128, 2)))
    np.testing.assert_array_equal(each[128:], np.broadcast_to(np.float32(largest[1]) / np.float32(448), (72, 2)))
    values = dequantize_tensor(tensor)
    np.testing.assert_allclose([values[5, 7], values[150, 200]], [4.48, -8.96], rtol=1e-6)


@pytest.mark.parametrize("name", QUANTIZABLE)
def test_zeros_stay_zeros_and_tiny_numbers_end_as_zeros(name: str) -> None:
    x = np.zeros((129, 128), np.float32)
    x[3, 5] = 1e-45
    x[4, 6] = -0.0
    assert (dequantize_tensor(quantize(x, name)) == 0).all()
    assert quantize(np.zeros((0, 128), np.float32), name).data.shape == (0, row_bytes(name, 128))


@pytest.mark.parametrize("name", QUANTIZABLE)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_place(name: str, bad: float) -> None:
    x = matrix(300, 128, 0)
    x[299, 31] = bad
    with pytest.raises(ModelFormatError, match=rf"blk\.0\.x\[299, 31\] is {bad}; only finite"):
        quantize(x, name, name="blk.0.x")


def test_scales_past_float16_are_refused() -> None:
    x = matrix(140, 128, 0)
    x[130, 0] = -1e6
    for group in (32, 64, 128):
        with pytest.raises(ModelFormatError, match=r"weight: a group needs a scale of .*; rows 128\.\.139, INT4_G"):
            quantize(x, f"INT4_G{group}")
        with pytest.raises(ModelFormatError, match="65504"):
            quantize(3.4e38 * np.sign(x), f"INT4_G{group}_Z")
    assert dequantize_tensor(quantize(x, "INT8"))[130, 0] == pytest.approx(-1e6)


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"w cannot be quantized to 'Q4_K'; possible: INT4_G32, .*B128"):
        quantize(matrix(2, 256, 0), "Q4_K", name="w")
    with pytest.raises(ModelFormatError, match="a row of 96 values cannot be INT4_G64"):
        quantize(matrix(2, 96, 0), "INT4_G64")
    for wrong in (np.zeros(64, np.float32), np.zeros((2, 64)), np.zeros((2, 64), np.int8)):
        with pytest.raises(ModelFormatError, match="must be a float32 matrix"):
            quantize(wrong, "INT8")
