"""GGUF model files, memory-mapped.

`GGUFFile.open` reads the header, checks every tensor against the file and gives views: nothing is copied, so a model
of any size opens in a few hundredths of a second and its pages come in as they are touched.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from hashlib import blake2b
from itertools import pairwise
from math import prod
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from octavo.formats.ggml import BlockFormat, format_of_id, row_bytes
from octavo.formats.gguf_header import Header, TensorInfo, read_header
from octavo.formats.metadata import TypedMetadata, Value, clip
from octavo.formats.tensor import Tensor

__all__ = ["GGUFFile", "parse"]

_SAMPLE_BYTES = 4096


class GGUFFile(TypedMetadata):
    """An open GGUF file; use it in a `with` statement or call `close`.

    Metadata arrays and tensors are read-only views into the map. The map goes away when the file is closed *and* the
    last view is gone, so a view never dangles. A file that another program shortens meanwhile ends the process with
    SIGBUS, as with every memory map: replace model files by renaming, never in place.

    Attributes:
        version: of the GGUF format, 2 or 3.
        alignment: bytes; every tensor starts at a multiple of it.
        size_bytes: of the file.
    """

    def __init__(self, path: Path, buffer: NDArray[np.uint8]):
        """buffer: the whole file, u8 [bytes]. Use `open`."""
        header, tensors = parse(buffer, path.name)
        super().__init__(path, MappingProxyType(header.metadata))
        self.version = header.version
        self.alignment = header.alignment
        self.size_bytes = len(buffer)
        self._tensors: Mapping[str, Tensor] = MappingProxyType(tensors)
        self._header_bytes = header.header_bytes
        self._buffer: NDArray[np.uint8] | None = buffer

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """Opens and checks a file.

        Raises ModelNotFoundError if there is no such file or it may not be read, ModelFormatError if it breaks the
        format or is cut off, UnsupportedModelError if it is sound but holds what this version does not read.
        """
        where = Path(fspath(path))
        return cls(where, _map_file(where))

    @property
    def metadata(self) -> Mapping[str, Value]:
        """All values by key, in the order of the file. ValueError after `close`."""
        self._check_open()
        return self._metadata

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors by name, in the order of the file. ValueError after `close`."""
        self._check_open()
        return self._tensors

    @property
    def fingerprint(self) -> str:
        """A cheap identity of the content: 32 hexadecimal digits, a few milliseconds.

        BLAKE2b over the header (all metadata, the vocabulary, the tensor table), the file size, and 4 KiB from the
        middle of each tensor. A copy has the same; another model, quantization, vocabulary or fine-tune another one.
        It is no proof against tampering: bytes between the samples are not read. ValueError after `close`.
        """
        buffer = self._check_open()
        digest = blake2b(digest_size=16)
        digest.update(self.size_bytes.to_bytes(8, "little"))
        digest.update(buffer[: self._header_bytes].data)
        for tensor in self.tensors.values():
            stored = tensor.data.reshape(-1)
            middle = max(0, (stored.size - _SAMPLE_BYTES) // 2)
            digest.update(stored[middle : middle + _SAMPLE_BYTES].data)
        return digest.hexdigest()

    def close(self) -> None:
        """Lets go of the map. Views that others hold stay valid. May be called twice."""
        self._buffer = None
        self._tensors = MappingProxyType({})
        self._metadata = MappingProxyType({})

    def _check_open(self) -> NDArray[np.uint8]:
        if self._buffer is None:
            raise ValueError(f"{self.path} is closed; read metadata and tensors before close()")
        return self._buffer

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._buffer is None:
            return f"<GGUFFile {str(self.path)!r}, closed>"
        return f"<GGUFFile {str(self.path)!r}: {len(self._metadata)} keys, {len(self._tensors)} tensors>"


def _map_file(path: Path) -> NDArray[np.uint8]:
    """The whole file as a read-only map: u8 [bytes]."""
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ModelNotFoundError(f"there is no file {str(path)!r}; give the path of a .gguf file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelNotFoundError(f"{str(path)!r} cannot be opened: {reason}") from None
    try:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise ModelFormatError(f"{str(path)!r} is a directory; give the path of a .gguf file in it")
        if not stat.S_ISREG(facts.st_mode):
            raise ModelFormatError(f"{str(path)!r} is not a regular file, so it cannot be mapped; copy it to one")
        if facts.st_size == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise ModelNotFoundError(f"{str(path)!r} cannot be mapped into memory: {error.strerror}") from None
    finally:
        os.close(descriptor)


def parse(buffer: NDArray[np.uint8], source: str) -> tuple[Header, dict[str, Tensor]]:
    """Header and tensors of a file held in buffer u8 [bytes]; `source` names it in messages.

    Raises ModelFormatError and UnsupportedModelError as `GGUFFile.open` does.
    """
    header = read_header(buffer, source)
    available = len(buffer) - header.data_start
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int, str]] = []
    for info in header.tensors:
        try:
            stored = format_of_id(info.ggml_id, info.name)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{source}: {error}") from None
        size = _checked_size(info, stored, header.alignment, available, source)
        start = header.data_start + info.offset
        shape = info.dimensions[::-1]
        data = buffer[start : start + size].reshape(prod(shape[:-1]), -1)
        tensors[info.name] = Tensor(info.name, stored.name, shape, data)
        spans.append((info.offset, info.offset + size, info.name))
    spans.sort()
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end:
            raise ModelFormatError(f"{source}: tensor {clip(other)} overlaps tensor {clip(name)}; the file is damaged")
    return header, tensors


def _checked_size(info: TensorInfo, stored: BlockFormat, alignment: int, available: int, source: str) -> int:
    """Bytes of a tensor that lies, aligned, within `available` bytes. Python integers do not overflow."""
    where = f"{source}: tensor {clip(info.name)}"
    try:
        size = row_bytes(stored.name, info.dimensions[0]) * prod(info.dimensions[1:])
    except ModelFormatError as error:
        raise ModelFormatError(f"{where}: {error}") from None
    if info.offset % alignment:
        raise ModelFormatError(f"{where} starts at offset {info.offset}, which is no multiple of {alignment}")
    if info.offset + size > available:
        raise ModelFormatError(
            f"{where} of shape {info.dimensions[::-1]} ({stored.name}) ends at byte {info.offset + size} of the data "
            f"section, which has {max(available, 0)}; the file is truncated or damaged (download it again)"
        )
    return size
