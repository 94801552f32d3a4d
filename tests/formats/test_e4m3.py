"""E4M3 against the definition in the OCP specification, byte by byte, and rounding against a search of all numbers."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.formats.e4m3 import E4M3_MAX, E4M3_VALUES, encode_e4m3


def defined(byte: int) -> float:
    """Section 5 of the specification: S.EEEE.MMM."""
    sign = -1.0 if byte >= 128 else 1.0
    exponent, mantissa = byte // 8 % 16, byte % 8
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def test_every_byte_means_what_the_specification_says() -> None:
    assert E4M3_VALUES.dtype == np.float32
    for byte, value in enumerate(E4M3_VALUES.tolist()):
        wanted = defined(byte)
        assert math.isnan(value) if math.isnan(wanted) else value == wanted
        assert math.copysign(1, value) == (-1 if byte >= 128 else 1) or math.isnan(value)
    named = {0x01: 2**-9, 0x07: 0.875 * 2**-6, 0x08: 2**-6, 0x38: 1.0, 0x7E: 448.0, 0xFE: -E4M3_MAX}
    assert {byte: float(E4M3_VALUES[byte]) for byte in named} == named


def test_every_number_comes_back() -> None:
    codes = np.array([code for code in range(256) if code & 127 != 127], np.uint8)
    assert np.array_equal(encode_e4m3(E4M3_VALUES[codes]), codes)


def nearest(value: float) -> int:
    """By looking at all 127 magnitudes; of two equally near ones the even code."""
    code = min(range(127), key=lambda c: (abs(defined(c) - abs(value)), c % 2))
    return code + 128 * (math.copysign(1, value) < 0)


@given(st.lists(st.floats(-500, 500, width=32) | st.floats(-0.0625, 0.0625, width=32), min_size=1, max_size=20))
def test_rounding_is_to_the_nearest_and_saturates(values: list[float]) -> None:
    assert encode_e4m3(np.array(values, np.float32)).tolist() == [nearest(value) for value in values]


def test_ties_go_to_even_and_their_neighbours_do_not() -> None:
    numbers = np.array([defined(code) for code in range(127)], np.float32)
    ties = (numbers[:-1] + numbers[1:]) / 2  # exact in float32
    even = np.arange(126) + np.arange(126) % 2
    assert np.array_equal(encode_e4m3(ties), even)
    assert np.array_equal(encode_e4m3(np.nextafter(ties, np.float32(np.inf))), np.arange(1, 127))
    assert np.array_equal(encode_e4m3(np.nextafter(ties, np.float32(-np.inf))), np.arange(126))


def test_what_is_no_number_of_the_format() -> None:
    odd = np.array([np.inf, -np.inf, 1e30, np.nan, -0.0, 1e-45], np.float32)
    assert encode_e4m3(odd).tolist() == [0x7E, 0xFE, 0x7E, 0x7F, 0x80, 0x00]
