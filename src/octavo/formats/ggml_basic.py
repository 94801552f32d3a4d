"""Decoders of plain floats and of 32-value blocks.

Every decoder takes blocks u8 [n, block_bytes] and fills out f32 [n, block_elements]. Integers are written into
`out` first and scaled in place: they are exact in float32, so the one rounding per product is ggml's own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "IQ4_LEVELS",
    "decode_bf16",
    "decode_f16",
    "decode_f32",
    "decode_iq4_nl",
    "decode_mxfp4",
    "decode_q4_0",
    "decode_q4_1",
    "decode_q5_0",
    "decode_q5_1",
    "decode_q8_0",
    "half",
]

Blocks = NDArray[np.uint8]
Values = NDArray[np.float32]

# The 16 levels of the IQ4 formats: denser near zero, slightly skewed to the negative side.
IQ4_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)  # fmt: skip

# FP4 e2m1 (OCP Microscaling Formats 1.0), times two so that all are integers; the scale below is halved instead.
_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def _e8m0_halved() -> Values:
    """f32 [256]: 2**(e - 128), half of what an E8M0 exponent byte e means."""
    return np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


_E8M0_HALVED = _e8m0_halved()


def half(blocks: Blocks, at: int) -> Values:
    """The float16 at byte `at` of every block: f32 [n, 1]."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def _nibbles(packed: Blocks, out: Values) -> None:
    """packed u8 [n, 16] -> out [n, 32]: low nibbles are the first 16 values, high nibbles the last 16."""
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4


def _five_bits(packed: Blocks, top: Blocks, out: Values) -> None:
    """packed u8 [n, 16] and one more bit per value in top u8 [n, 4] -> out [n, 32], each 0..31."""
    high = np.unpackbits(top, axis=1, bitorder="little") << 4
    out[:, :16] = (packed & 15) | high[:, :16]
    out[:, 16:] = (packed >> 4) | high[:, 16:]


def decode_f32(blocks: Blocks, out: Values) -> None:
    """IEEE float32, little-endian."""
    out.reshape(-1)[:] = blocks.reshape(-1).view("<f4")


def decode_f16(blocks: Blocks, out: Values) -> None:
    """IEEE float16, little-endian."""
    out.reshape(-1)[:] = blocks.reshape(-1).view("<f2")


def decode_bf16(blocks: Blocks, out: Values) -> None:
    """The upper half of a float32."""
    bits = out.reshape(-1).view(np.uint32)
    bits[:] = blocks.reshape(-1).view("<u2")
    bits <<= 16


def decode_q4_0(blocks: Blocks, out: Values) -> None:
    """d f16, 16 bytes of nibbles: d * (q - 8)."""
    _nibbles(blocks[:, 2:], out)
    out -= 8
    out *= half(blocks, 0)


def decode_q4_1(blocks: Blocks, out: Values) -> None:
    """d f16, m f16, 16 bytes of nibbles: d * q + m."""
    _nibbles(blocks[:, 4:], out)
    out *= half(blocks, 0)
    out += half(blocks, 2)


def decode_q5_0(blocks: Blocks, out: Values) -> None:
    """d f16, 32 fifth bits, 16 bytes of nibbles: d * (q - 16)."""
    _five_bits(blocks[:, 6:], blocks[:, 2:6], out)
    out -= 16
    out *= half(blocks, 0)


def decode_q5_1(blocks: Blocks, out: Values) -> None:
    """d f16, m f16, 32 fifth bits, 16 bytes of nibbles: d * q + m."""
    _five_bits(blocks[:, 8:], blocks[:, 4:8], out)
    out *= half(blocks, 0)
    out += half(blocks, 2)


def decode_q8_0(blocks: Blocks, out: Values) -> None:
    """d f16, 32 signed bytes: d * q."""
    out[:] = blocks[:, 2:].view(np.int8)
    out *= half(blocks, 0)


def decode_iq4_nl(blocks: Blocks, out: Values) -> None:
    """d f16, 16 bytes of nibbles that choose among 16 unevenly spaced levels: d * level[q]."""
    out[:, :16] = IQ4_LEVELS[blocks[:, 2:] & 15]
    out[:, 16:] = IQ4_LEVELS[blocks[:, 2:] >> 4]
    out *= half(blocks, 0)


def decode_mxfp4(blocks: Blocks, out: Values) -> None:
    """e8m0 exponent, 16 bytes of e2m1 nibbles: 2**(e - 127) * q."""
    out[:, :16] = _E2M1_DOUBLED[blocks[:, 1:] & 15]
    out[:, 16:] = _E2M1_DOUBLED[blocks[:, 1:] >> 4]
    out *= _E8M0_HALVED[blocks[:, :1]]
