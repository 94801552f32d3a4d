"""GGUF files put together byte by byte, so that any part of them can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

__all__ = ["array", "as_buffer", "gguf_bytes", "pair", "string", "strings", "tensor", "write_every_kind"]

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    """One metadata entry."""
    return string(key) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes) -> bytes:
    """The payload of an array entry."""
    return struct.pack("<IQ", kind, count) + payload


def strings(*texts: str | bytes) -> bytes:
    """The payload of an array of strings."""
    return array(STRING, len(texts), b"".join(map(string, texts)))


def tensor(name: str | bytes, dimensions: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """One row of the tensor table; dimensions are fastest first."""
    sizes = struct.pack(f"<{len(dimensions)}Q", *dimensions)
    return string(name) + struct.pack("<I", len(dimensions)) + sizes + struct.pack("<IQ", kind, offset)


def gguf_bytes(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    pair_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file. The counts are those of the lists unless given."""
    counts = struct.pack(
        "<QQ",
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if pair_count is None else pair_count,
    )
    header = magic + struct.pack("<I", version) + counts + b"".join(pairs) + b"".join(tensors)
    padding = -len(header) % alignment if data else 0
    return header + bytes(padding) + data


def as_buffer(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, np.uint8)


def write_every_kind(path: Path) -> dict[str, object]:
    """A small file with every kind of metadata and several tensors, by the public writer; returns the metadata."""
    writer = gguf.GGUFWriter(path, "test")
    rng = np.random.default_rng(0)
    scalars: dict[str, tuple[object, int]] = {
        "s.u8": (255, U8), "s.i8": (-128, I8), "s.u16": (65535, U16), "s.i16": (-32768, I16),
        "s.u32": (2**32 - 1, U32), "s.i32": (-(2**31), I32), "s.u64": (2**64 - 1, U64), "s.i64": (-(2**63), I64),
        "s.f32": (0.5, F32), "s.f64": (0.1, F64), "s.true": (True, BOOL), "s.false": (False, BOOL),
        "s.text": ("héllo\n🦙", STRING), "s.empty": ("", STRING),
    }  # fmt: skip
    arrays: dict[str, tuple[list[object], int]] = {
        "a.u8": ([0, 255], U8), "a.i8": ([-1, 1], I8), "a.u16": ([0, 65535], U16), "a.i16": ([-5], I16),
        "a.u32": ([1, 2**32 - 1], U32), "a.i32": ([-7, 7, 0], I32), "a.u64": ([2**64 - 1], U64),
        "a.i64": ([-(2**63), 5], I64), "a.f32": ([0.5, -1.25], F32), "a.f64": ([0.1], F64),
        "a.bool": ([True, False, True], BOOL), "a.text": (["", "a", "bc\0d", "é" * 200, "🦙"], STRING),
        "a.many": ([f"token{i}" for i in range(50)], STRING),
    }  # fmt: skip
    for key, (value, kind) in scalars.items():
        writer.add_key_value(key, value, gguf.GGUFValueType(kind))
    for key, (values, kind) in arrays.items():
        writer.add_key_value(key, values, gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType(kind))
    writer.add_tensor("token_embd.weight", rng.standard_normal((7, 32), np.float32))
    writer.add_tensor("norm.weight", rng.standard_normal(33).astype(np.float16))
    quantized = rng.integers(0, 256, (5, 2 * 18), dtype=np.uint8)
    writer.add_tensor("blk.0.w", quantized, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor(
        "cube", rng.integers(0, 256, (2, 3, 34), dtype=np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    named: dict[str, object] = {"general.architecture": "test"}
    return named | {k: v for k, (v, _) in scalars.items()} | {k: v for k, (v, _) in arrays.items()}
