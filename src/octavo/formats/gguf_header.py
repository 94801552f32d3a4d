"""The header of a GGUF file: counts, metadata and the tensor table, read from a buffer that may hold anything.

Follows the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md), versions 2 and 3, little-endian. Every count
and length is compared with the bytes that are left before it is used, so work and memory are bounded by the size of
the buffer. Tensor data are not touched here.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ModelFormatError
from octavo.formats.gguf_strings import scan_strings
from octavo.formats.metadata import StringArray, Value, clip

__all__ = ["Header", "TensorInfo", "read_header"]

_U32 = Struct("<I")
_U64 = Struct("<Q")
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: Struct("<B"), 1: Struct("<b"), 2: Struct("<H"), 3: Struct("<h"), 4: Struct("<I"), 5: Struct("<i"),
    6: Struct("<f"), _BOOL: Struct("<B"), 10: Struct("<Q"), 11: Struct("<q"), 12: Struct("<d"),
}  # fmt: skip
_ARRAYS = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_VALUE_TYPES = "0 to 12"

_MAX_NAME_BYTES = 65535  # of a key, by the specification; taken for tensor names too
_MIN_PAIR_BYTES = 8 + 1 + 4 + 1  # key length, key, type, smallest value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, dimension count, one dimension, type, offset
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 24

# What else people hand over by mistake, by the first bytes of the file.
_OTHER_MAGICS = {
    b"FUGG": "a big-endian GGUF file, which is not supported; take a little-endian one",
    b"lmgg": "a GGML file from before GGUF; convert the model anew",
    b"tjgg": "a GGJT file from before GGUF; convert the model anew",
    b"PK\x03\x04": "a zip archive, perhaps a PyTorch checkpoint; a GGUF file is needed",
    b"vers": "perhaps a Git LFS pointer; download the file that it points to",
    b"<!DO": "an HTML page, not a model; check the download",
    b"<htm": "an HTML page, not a model; check the download",
}


@dataclass(frozen=True)
class TensorInfo:
    """One row of the tensor table, as stored.

    Attributes:
        name: of the tensor.
        dimensions: fastest first, as GGUF has them; 1 to 4 of them, none zero.
        ggml_id: number of the storage format.
        offset: bytes from the start of the data section.
    """

    name: str
    dimensions: tuple[int, ...]
    ggml_id: int
    offset: int


@dataclass(frozen=True)
class Header:
    """What stands before the tensor data.

    Attributes:
        version: 2 or 3.
        alignment: bytes; of the data section and of every tensor in it.
        metadata: values by key, in file order.
        tensors: the table, in file order; names are unique.
        header_bytes: bytes up to the end of the table.
        data_start: bytes up to the data section: header_bytes rounded up to the alignment.
    """

    version: int
    alignment: int
    metadata: dict[str, Value]
    tensors: list[TensorInfo]
    header_bytes: int
    data_start: int


class _Cursor:
    """A position in a buffer that cannot leave it. `part` says in messages what is being read."""

    def __init__(self, buffer: NDArray[np.uint8], source: str):
        self.buffer = buffer
        self.view = buffer.data
        self.source = source
        self.part = "the header"
        self.position = 0
        self.size = len(buffer)

    def error(self, problem: str) -> ModelFormatError:
        return ModelFormatError(f"{self.source}: {self.part} {problem}")

    def take(self, count: int) -> int:
        """Moves over `count` bytes and returns where they start."""
        start = self.position
        if count > self.size - start:
            raise self.error(
                f"needs {count} bytes at offset {start}, where the file has {self.size - start} left; it is "
                "truncated or damaged (download it again)"
            )
        self.position = start + count
        return start

    def u32(self) -> int:
        value: int = _U32.unpack_from(self.view, self.take(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self.view, self.take(8))[0]
        return value

    def count(self, of: str, smallest: int) -> int:
        """A stored number of things that take at least `smallest` bytes each: not more than could be there."""
        value = self.u64()
        if value > (self.size - self.position) // smallest:
            raise self.error(f"states {value} {of}, more than the remaining {self.size - self.position} bytes can hold")
        return value

    def text(self, length: int) -> str:
        start = self.take(length)
        try:
            return str(self.view[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"is not valid UTF-8 ({error.reason} at byte {error.start})") from None

    def name(self, thing: str) -> str:
        """A key or tensor name."""
        self.part = thing
        length = self.u64()
        if not 0 < length <= _MAX_NAME_BYTES:
            raise self.error(f"has a name of {length} bytes; 1 to {_MAX_NAME_BYTES} are allowed")
        self.part = f"the name of {thing}"
        return self.text(length)


def read_header(buffer: NDArray[np.uint8], source: str) -> Header:
    """Reads the header at the start of `buffer`, a whole file as u8 [bytes]; `source` names it in messages.

    Arrays are views into the buffer. Raises ModelFormatError if the content breaks the format or is of a version or
    byte order that is not read.
    """
    cursor = _Cursor(buffer, source)
    version = _read_version(cursor)
    cursor.part = "the header"
    tensor_count = cursor.count("tensors", _MIN_TENSOR_BYTES)
    pair_count = cursor.count("metadata keys", _MIN_PAIR_BYTES)
    metadata: dict[str, Value] = {}
    for index in range(pair_count):
        key = cursor.name(f"metadata key {index} of {pair_count}")
        cursor.part = f"metadata key {clip(key)}"
        if key in metadata:
            raise cursor.error("appears twice")
        metadata[key] = _read_value(cursor)
    tensors = _read_tensor_table(cursor, tensor_count)
    cursor.part = "metadata key 'general.alignment'"
    alignment = _check_alignment(cursor, metadata.get("general.alignment", 32))
    data_start = -(-cursor.position // alignment) * alignment
    return Header(version, alignment, metadata, tensors, cursor.position, data_start)


def _read_version(cursor: _Cursor) -> int:
    """Checks the magic and returns the version."""
    if cursor.size == 0:
        raise ModelFormatError(f"{cursor.source}: the file is empty")
    magic = bytes(cursor.view[:4])
    if magic in _OTHER_MAGICS:
        raise ModelFormatError(f"{cursor.source}: not a GGUF file but {_OTHER_MAGICS[magic]}")
    if not b"GGUF".startswith(magic):
        raise ModelFormatError(f"{cursor.source}: not a GGUF file: it starts with {magic!r}, not with b'GGUF'")
    cursor.take(4)
    version = cursor.u32()
    if version in (2, 3):
        return version
    if version and version & 0xFFFF == 0:
        raise ModelFormatError(f"{cursor.source}: a big-endian GGUF file; take or make a little-endian one")
    raise ModelFormatError(f"{cursor.source}: GGUF version {version}; only 2 and 3 are read, so convert the model anew")


def _check_alignment(cursor: _Cursor, alignment: Value) -> int:
    if isinstance(alignment, bool) or not isinstance(alignment, int):
        raise cursor.error("is not an integer")
    if not 8 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(f"is {alignment}; a power of two from 8 to {_MAX_ALIGNMENT} is needed")
    return alignment


def _read_value(cursor: _Cursor) -> Value:
    kind = cursor.u32()
    if kind == _STRING:
        return cursor.text(cursor.u64())
    if kind == _ARRAY:
        return _read_array(cursor)
    layout = _SCALARS.get(kind)
    if layout is None:
        raise cursor.error(f"has value type {kind}; types {_VALUE_TYPES} exist")
    value: int | float = layout.unpack_from(cursor.view, cursor.take(layout.size))[0]
    if kind != _BOOL:
        return value
    if value > 1:
        raise cursor.error(f"is a boolean stored as {value}; only 0 and 1 are")
    return bool(value)


def _read_array(cursor: _Cursor) -> NDArray[Any] | StringArray:
    kind = cursor.u32()
    if kind == _STRING:
        return _read_strings(cursor)
    if kind == _ARRAY:
        raise cursor.error("is an array of arrays, which no known model uses and this reader refuses")
    if kind not in _ARRAYS:
        raise cursor.error(f"is an array of value type {kind}; types {_VALUE_TYPES} exist")
    dtype = np.dtype(_ARRAYS[kind])
    count = cursor.count("array elements", dtype.itemsize)
    start = cursor.take(count * dtype.itemsize)
    values = np.frombuffer(cursor.view, dtype, count, start)
    if kind != _BOOL:
        return values
    if count and values.max() > 1:
        raise cursor.error("is an array of booleans that holds bytes other than 0 and 1")
    return values.view(np.bool_)


def _read_strings(cursor: _Cursor) -> StringArray:
    count = cursor.count("strings", 8)
    start = cursor.position
    starts, end = scan_strings(cursor.buffer[start:], count)
    if len(starts) < count:
        raise cursor.error(f"holds {count} strings of which number {len(starts)} runs past the end of the file")
    cursor.take(end)
    return StringArray(cursor.buffer[start : cursor.position], starts, f"{cursor.source}: {cursor.part}")


def _read_tensor_table(cursor: _Cursor, count: int) -> list[TensorInfo]:
    seen: set[str] = set()
    table = []
    for index in range(count):
        name = cursor.name(f"tensor {index} of {count}")
        cursor.part = f"tensor {clip(name)}"
        if name in seen:
            raise cursor.error("appears twice")
        seen.add(name)
        rank = cursor.u32()
        if not 1 <= rank <= _MAX_DIMENSIONS:
            raise cursor.error(f"has {rank} dimensions; 1 to {_MAX_DIMENSIONS} are allowed")
        dimensions = tuple(cursor.u64() for _ in range(rank))
        if 0 in dimensions:
            raise cursor.error(f"has a dimension of zero: {dimensions}")
        table.append(TensorInfo(name, dimensions, cursor.u32(), cursor.u64()))
    return table
