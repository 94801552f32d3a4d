"""Decoders of 256-value super-blocks: the k-quants and IQ4_XS.

Every decoder takes blocks u8 [n, block_bytes] and fills out f32 [n, 256]. A super-block has one or two float16
scales and a small integer scale for each group of 16 or 32 values. Integers are written into `out` first and scaled
in place, group by group, in the order of products that ggml uses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.formats.ggml_basic import IQ4_LEVELS, Blocks, Values, half

__all__ = ["decode_iq4_xs", "decode_q2_k", "decode_q3_k", "decode_q4_k", "decode_q5_k", "decode_q6_k"]


def _six_bit_pairs(packed: Blocks) -> tuple[Values, Values]:
    """packed u8 [n, 12] -> eight 6-bit scales and eight 6-bit minima, f32 [n, 8, 1] each.

    Bytes 0-3 and 4-7 hold the first four scales and minima in their low six bits; their top two bits are the top of
    the last four, whose low nibbles (scale low, minimum high) are bytes 8-11.
    """
    first, second, last = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (last & 15) | ((first >> 2) & 48)], axis=1)
    minima = np.concatenate([second & 63, (last >> 4) | ((second >> 2) & 48)], axis=1)
    return scales.astype(np.float32)[:, :, None], minima.astype(np.float32)[:, :, None]


def _q3_scales(packed: Blocks) -> NDArray[np.uint8]:
    """packed u8 [n, 12] -> sixteen 6-bit scales u8 [n, 16], offset 32.

    Scale j has its low nibble in byte j % 8 (high nibble of it for j >= 8) and its top bits in byte 8 + j % 4.
    """
    top = packed[:, 8:]
    scales: NDArray[np.uint8] = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    scales |= np.concatenate([(top >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1) << 4
    return scales


def _bit_planes(packed: Blocks) -> NDArray[np.uint8]:
    """packed u8 [n, 32] -> u8 [n, 8, 32]: bit j of each byte."""
    planes: NDArray[np.uint8] = packed[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None]
    planes &= 1
    return planes


def decode_q2_k(blocks: Blocks, out: Values) -> None:
    """16 x (scale 4 bits, minimum 4 bits), 256 x 2 bits, d f16, dmin f16: d * scale * q - dmin * minimum."""
    packed = blocks[:, 16:80].reshape(-1, 2, 32)
    quarters = out.reshape(-1, 2, 4, 32)
    for i in range(4):
        quarters[:, :, i] = (packed >> (2 * i)) & 3
    scales = half(blocks, 80) * (blocks[:, :16] & 15)
    minima = half(blocks, 82) * (blocks[:, :16] >> 4)
    groups = out.reshape(-1, 16, 16)
    groups *= scales[:, :, None]
    groups -= minima[:, :, None]


def decode_q3_k(blocks: Blocks, out: Values) -> None:
    """256 third bits, 256 x 2 bits, 16 scales of 6 bits, d f16: d * (scale - 32) * (q - 4)."""
    values = (_bit_planes(blocks[:, :32]) << 2).reshape(-1, 2, 4, 32)
    values |= (blocks[:, 32:96].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & 3
    out[:] = values.reshape(-1, 256)
    out -= 4
    scales = half(blocks, 108) * (_q3_scales(blocks[:, 96:108]).astype(np.float32) - 32)
    groups = out.reshape(-1, 16, 16)
    groups *= scales[:, :, None]


def decode_q4_k(blocks: Blocks, out: Values) -> None:
    """d f16, dmin f16, 8 x (scale, minimum) of 6 bits, 256 nibbles: d * scale * q - dmin * minimum."""
    packed = blocks[:, 16:].reshape(-1, 4, 32)
    pairs = out.reshape(-1, 4, 2, 32)
    pairs[:, :, 0] = packed & 15
    pairs[:, :, 1] = packed >> 4
    _scale_eight_groups(blocks, out)


def decode_q5_k(blocks: Blocks, out: Values) -> None:
    """As Q4_K, with 256 fifth bits before the nibbles: bit j of byte i belongs to value 32 * j + i."""
    packed = blocks[:, 48:].reshape(-1, 4, 32)
    values = (_bit_planes(blocks[:, 16:48]) << 4).reshape(-1, 4, 2, 32)
    values[:, :, 0] |= packed & 15
    values[:, :, 1] |= packed >> 4
    out[:] = values.reshape(-1, 256)
    _scale_eight_groups(blocks, out)


def _scale_eight_groups(blocks: Blocks, out: Values) -> None:
    """out [n, 256] of integers -> d * scale * q - dmin * minimum, with the header that Q4_K and Q5_K share."""
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    groups = out.reshape(-1, 8, 32)
    groups *= half(blocks, 0)[:, :, None] * scales
    groups -= half(blocks, 2)[:, :, None] * minima


def decode_q6_k(blocks: Blocks, out: Values) -> None:
    """256 nibbles, 256 x 2 top bits, 16 signed scales of 8 bits, d f16: d * scale * (q - 32)."""
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    top = blocks[:, 128:192].reshape(-1, 2, 32)
    quarters = out.reshape(-1, 2, 4, 32)
    for i in range(4):
        nibble = low[:, :, i % 2] & 15 if i < 2 else low[:, :, i % 2] >> 4
        quarters[:, :, i] = nibble | (((top >> (2 * i)) & 3) << 4)
    out -= 32
    scales = half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    groups = out.reshape(-1, 16, 16)
    groups *= scales[:, :, None]


def decode_iq4_xs(blocks: Blocks, out: Values) -> None:
    """d f16, 8 x 2 top bits and 8 x 4 low bits of scales, 256 nibbles: d * (scale - 32) * level[q]."""
    packed = blocks[:, 8:].reshape(-1, 8, 16)
    pairs = out.reshape(-1, 8, 2, 16)
    pairs[:, :, 0] = IQ4_LEVELS[packed & 15]
    pairs[:, :, 1] = IQ4_LEVELS[packed >> 4]
    top = blocks[:, 2:4].view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    scales = (low | ((top & 3) << 4)).astype(np.float32) - 32
    groups = out.reshape(-1, 8, 32)
    groups *= (half(blocks, 0) * scales)[:, :, None]
