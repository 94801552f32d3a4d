"""FP8 E4M3 as neural networks use it (OCP 8-bit Floating Point Specification, revision 1.0; "e4m3fn" elsewhere).

A sign, 4 exponent bits with bias 7, 3 mantissa bits; no infinities, S.1111.111 is NaN. The largest number is 448, the
smallest normal one 2**-6, the smallest one above zero 2**-9.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["E4M3_MAX", "E4M3_VALUES", "encode_e4m3"]

E4M3_MAX = 448.0

_MANTISSA_BITS = 3
_LEAST_EXPONENT = -6  # of normal numbers; subnormal ones have the same step
_NAN = 0x7F


def _values() -> NDArray[np.float32]:
    codes = np.arange(128)
    exponent, mantissa = codes >> _MANTISSA_BITS, (codes & 7) / 8
    magnitude = np.ldexp(np.where(exponent > 0, 1 + mantissa, mantissa), np.maximum(exponent - 7, _LEAST_EXPONENT))
    magnitude[_NAN] = np.nan
    return np.concatenate([magnitude, -magnitude]).astype(np.float32)


E4M3_VALUES: NDArray[np.float32] = _values()
"""f32 [256]: what each byte means."""


def encode_e4m3(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """values f32 [...] -> u8 [...]: the nearest E4M3 number, ties to the even mantissa.

    Saturates: what is past 448, infinities included, becomes 448 of its sign. NaN becomes NaN.
    """
    magnitude = np.minimum(np.abs(values), np.float32(E4M3_MAX))
    nan = np.isnan(magnitude)
    magnitude[nan] = 0
    _, exponent = np.frexp(magnitude)  # magnitude = [0.5, 1) * 2**exponent; 0 has exponent 0
    exponent = np.where(magnitude > 0, np.maximum(exponent - 1, _LEAST_EXPONENT), _LEAST_EXPONENT)
    # Steps of the binade: 8..15 for normal numbers, whose hidden bit adds one to the exponent field; 16 is the next.
    steps = np.rint(np.ldexp(magnitude, _MANTISSA_BITS - exponent)).astype(np.int32)
    codes = ((exponent - _LEAST_EXPONENT) << _MANTISSA_BITS) + steps
    codes[nan] = _NAN
    result: NDArray[np.uint8] = (codes | np.signbit(values) * 128).astype(np.uint8)
    return result
