"""f32 matrices into the int4, int8 and FP8 formats by rounding to the nearest, which is ties to even everywhere.

How a scale is chosen (a group, row or tile of zeros gets scale 0 and decodes to zeros):

    INT4_G*         d = the number of largest magnitude / -8, its sign kept, so that it is level -8 itself; a number of
                    the other sign past 7.5 steps becomes 7 steps
    INT4_G*_Z       d = (max - min) / 15 with 0 inside the range, z = -min / d: zero stays exact
    INT8            s = largest magnitude of the row / 127; -128 is not used
    FP8_E4M3        s = largest magnitude of the row / 448
    FP8_E4M3_B128   the same over a tile of 128 rows and 128 columns; the last rows may be fewer

d is rounded to float16 before anything is divided by it, so what is rounded is what will be decoded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ModelFormatError, UnsupportedModelError
from octavo.formats.e4m3 import E4M3_MAX, encode_e4m3
from octavo.formats.ggml import FORMATS, row_bytes
from octavo.formats.scaled import RUN
from octavo.formats.tensor import Tensor

__all__ = ["QUANTIZABLE", "quantize"]

Values = NDArray[np.float32]
Bytes = NDArray[np.uint8]

TILE = 128
"""Rows quantized at once: those of a tile of FP8_E4M3_B128."""


def quantize(values: Values, dtype: str, *, name: str = "weight") -> Tensor:
    """values f32 [N, K] -> the matrix in this format, one of QUANTIZABLE; `name` is the tensor's.

    Besides the result it allocates about 40 bytes per value of 128 rows.
    Raises UnsupportedModelError: another format. ModelFormatError: not a matrix of float32, K does not fill whole
    blocks, a number that is infinite or NaN, or one too large for a float16 scale.
    """
    encode = _ENCODERS.get(dtype)
    if encode is None:
        raise UnsupportedModelError(f"{name} cannot be quantized to {dtype!r}; possible: {', '.join(QUANTIZABLE)}")
    if values.ndim != 2 or values.dtype != np.float32:
        raise ModelFormatError(f"{name} must be a float32 matrix [N, K], not {values.dtype} {list(values.shape)}")
    rows, columns = values.shape
    data = np.empty((rows, row_bytes(dtype, columns)), np.uint8)
    for start in range(0, rows, TILE):
        tile = values[start : start + TILE]
        _refuse_not_finite(tile, start, name)
        try:
            data[start : start + TILE] = encode(tile, FORMATS[dtype].block_elements).reshape(len(tile), -1)
        except OverflowError as error:
            raise ModelFormatError(f"{name}: {error}; rows {start}..{start + len(tile) - 1}, {dtype}") from None
    return Tensor(name, dtype, (rows, columns), data)


def _refuse_not_finite(tile: Values, start: int, name: str) -> None:
    bad = np.argwhere(~np.isfinite(tile))
    if len(bad):
        row, column = map(int, bad[0])
        raise ModelFormatError(
            f"{name}[{start + row}, {column}] is {tile[row, column]}; only finite numbers can be quantized"
        )


def _int4(tile: Values, group: int) -> Bytes:
    """[n, K] -> u8 [n * K / g, 2 + g / 2]."""
    x = tile.reshape(-1, group)
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    scale = _half(np.where(high > -low, high, low) / np.float32(-8))
    levels = np.rint(_divided(x, scale.astype(np.float32))) + 8
    return np.concatenate([scale.view(np.uint8), _packed(levels)], axis=1)


def _int4_z(tile: Values, group: int) -> Bytes:
    """[n, K] -> u8 [n * K / g, 3 + g / 2]."""
    x = tile.reshape(-1, group)
    low, high = np.minimum(x.min(axis=1, keepdims=True), 0), np.maximum(x.max(axis=1, keepdims=True), 0)
    with np.errstate(over="ignore"):
        scale = _half((high - low) / np.float32(15))
    d = scale.astype(np.float32)
    zero = np.clip(np.rint(_divided(-low, d)), 0, 15)
    levels = np.rint(_divided(x, d)) + zero
    return np.concatenate([scale.view(np.uint8), zero.astype(np.uint8), _packed(levels)], axis=1)


def _int8(tile: Values, _: int) -> Bytes:
    """[n, K] -> u8 [n, 4 + K]."""
    scale = _largest(tile, 1) / np.float32(127)
    levels = np.clip(np.rint(_divided(tile, scale)), -127, 127).astype(np.int8)
    return np.concatenate([_bytes(scale), levels.view(np.uint8)], axis=1)


def _e4m3(tile: Values, _: int) -> Bytes:
    """[n, K] -> u8 [n, 4 + K]."""
    scale = _largest(tile, 1) / np.float32(E4M3_MAX)
    return np.concatenate([_bytes(scale), encode_e4m3(_divided(tile, scale))], axis=1)


def _e4m3_tiles(tile: Values, block: int) -> Bytes:
    """[n, K] of one tile's rows -> u8 [n, K / 128, 4 + 128]."""
    x = tile.reshape(len(tile), -1, block)
    scale = np.broadcast_to(_largest(x, (0, 2)) / np.float32(E4M3_MAX), (*x.shape[:2], 1))
    return np.concatenate([_bytes(scale), encode_e4m3(_divided(x, scale))], axis=2)


_ENCODERS: dict[str, Callable[[Values, int], Bytes]] = {
    **{f"INT4_G{group}": _int4 for group in (32, 64, 128)},
    **{f"INT4_G{group}_Z": _int4_z for group in (32, 64, 128)},
    "INT8": _int8,
    "FP8_E4M3": _e4m3,
    "FP8_E4M3_B128": _e4m3_tiles,
}

QUANTIZABLE = tuple(_ENCODERS)
"""Names of the formats that `quantize` makes."""


def _largest(x: Values, axes: int | tuple[int, ...]) -> Values:
    """Largest magnitude over these axes, which stay with length 1; 0 where they are empty."""
    result: Values = np.abs(x).max(axis=axes, keepdims=True, initial=0)
    return result


def _divided(x: Values, scale: Values) -> Values:
    """x / scale; 0 where the scale is 0 (all of x is, or too small for any scale)."""
    return np.divide(x, scale, out=np.zeros_like(x), where=scale != 0)


def _half(scale: Values) -> NDArray[np.float16]:
    """Rounded to float16. Raises OverflowError."""
    with np.errstate(over="ignore"):
        stored = scale.astype("<f2")
    if not np.isfinite(stored).all():
        raise OverflowError(f"a group needs a scale of {np.abs(scale).max():g}, and float16 ends at 65504")
    return stored


def _bytes(scale: Values) -> Bytes:
    """f32 [..., 1] -> u8 [..., 4]."""
    return np.ascontiguousarray(scale, "<f4").view(np.uint8)


def _packed(levels: Values) -> Bytes:
    """levels [n, g], clipped to 0..15 -> nibbles u8 [n, g / 2]."""
    runs = np.clip(levels, 0, 15).astype(np.uint8).reshape(len(levels), -1, 2, RUN // 2)
    packed = runs[:, :, 0] | (runs[:, :, 1] << np.uint8(4))
    return packed.reshape(len(levels), -1)
