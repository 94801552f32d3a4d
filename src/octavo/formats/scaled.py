"""Decoders of the formats that quantized checkpoints use: int4 groups (GPTQ, AWQ), int8 per channel, FP8.

They are Octavo's own arrangement of what such checkpoints hold in several tensors: scales lie beside their values, so
that a row is one run of bytes, as in GGUF. Values are exact integers or E4M3 numbers times a scale, one f32 product.

`decode_int4*` and `decode_e4m3_blocks` take blocks u8 [n, block_bytes] and fill out f32 [n, block_elements];
`decode_int8_rows` and `decode_e4m3_rows` take whole rows u8 [n, row_bytes] and fill out f32 [n, columns].
"""

from __future__ import annotations

from octavo.formats.e4m3 import E4M3_VALUES
from octavo.formats.ggml_basic import Blocks, Values, half

__all__ = [
    "RUN",
    "decode_e4m3_blocks",
    "decode_e4m3_rows",
    "decode_int4",
    "decode_int4_z",
    "decode_int8_rows",
]

RUN = 32
"""Values that share 16 bytes of nibbles: the low ones are the first 16, the high ones the last 16."""


def _nibble_runs(packed: Blocks, out: Values) -> None:
    """packed u8 [n, g / 2] -> out [n, g]."""
    count, group = out.shape
    nibbles = packed.reshape(count, group // RUN, RUN // 2)
    runs = out.reshape(count, group // RUN, RUN)
    runs[:, :, : RUN // 2] = nibbles & 15
    runs[:, :, RUN // 2 :] = nibbles >> 4


def decode_int4(blocks: Blocks, out: Values) -> None:
    """d f16, g / 2 bytes of nibbles: d * (q - 8)."""
    _nibble_runs(blocks[:, 2:], out)
    out -= 8
    out *= half(blocks, 0)


def decode_int4_z(blocks: Blocks, out: Values) -> None:
    """d f16, zero point z u8, g / 2 bytes of nibbles: d * (q - z)."""
    _nibble_runs(blocks[:, 3:], out)
    out -= blocks[:, 2:3]
    out *= half(blocks, 0)


def decode_int8_rows(rows: Blocks, out: Values) -> None:
    """s f32, signed bytes: s * q."""
    out[:] = rows[:, 4:].view("i1")
    out *= rows[:, :4].view("<f4")


def decode_e4m3_rows(rows: Blocks, out: Values) -> None:
    """s f32, E4M3 bytes: s * value."""
    out[:] = E4M3_VALUES[rows[:, 4:]]
    out *= rows[:, :4].view("<f4")


decode_e4m3_blocks = decode_e4m3_rows
"""A block of FP8_E4M3_B128 has the layout of a row of FP8_E4M3: s f32, 128 E4M3 bytes."""
