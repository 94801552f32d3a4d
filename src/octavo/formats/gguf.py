"""GGUF model files, memory-mapped.

`GGUFFile.open` reads the header, checks every tensor against the file and gives views: nothing is copied, so a model
of any size opens in a few hundredths of a second and its pages come in as they are touched.

    with GGUFFile.open("model.gguf") as file:
        layers = file.integer("llama.block_count")
        values = dequantize_tensor(file.tensors["token_embd.weight"])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ModelFormatError
from octavo.formats.gguf_header import Header, read_header
from octavo.formats.gguf_split import check_part, part_paths
from octavo.formats.gguf_tensors import place_tensors
from octavo.formats.mapped import map_file
from octavo.formats.metadata import TypedMetadata, Value, clip
from octavo.formats.tensor import Tensor

__all__ = ["GGUFFile", "Part", "parse"]

_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class Part:
    """One file.

    Attributes:
        buffer: its bytes, u8 [bytes].
        header: what it says.
        tensors: by name, views into the buffer.
    """

    buffer: NDArray[np.uint8]
    header: Header
    tensors: dict[str, Tensor]


def parse(buffer: NDArray[np.uint8], source: str) -> Part:
    """Reads a file held in buffer u8 [bytes]; `source` names it in messages.

    Raises ModelFormatError if it breaks the format or is cut off, UnsupportedModelError if it is sound but holds what
    this version does not read.
    """
    header = read_header(buffer, source)
    return Part(buffer, header, place_tensors(header, buffer, source))


class GGUFFile(TypedMetadata):
    """An open model: a GGUF file, or all parts of a split one. Use it in a `with` statement or call `close`.

    Metadata arrays and tensors are read-only views into the map. The map goes away when the file is closed *and* the
    last view is gone, so a view never dangles. The getters (`integer`, `string`, ...) are those of `TypedMetadata`.

    Attributes:
        version: of the GGUF format, 2 or 3.
        alignment: bytes; every tensor starts at a multiple of it.
        paths: the files, one unless the model is split.
        size_bytes: of all files.
    """

    def __init__(self, path: Path, paths: list[Path], parts: list[Part]):
        """Use `open`."""
        first = parts[0].header
        super().__init__(path, MappingProxyType(first.metadata))
        self.version = first.version
        self.alignment = first.alignment
        self.paths = paths
        self.size_bytes = sum(len(part.buffer) for part in parts)
        self._tensors: Mapping[str, Tensor] = MappingProxyType(_merge(paths, parts))
        self._parts: list[Part] | None = parts

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """Opens and checks a file; of a split model any part, which opens all.

        Raises ModelNotFoundError if there is no such file or it may not be read, ModelFormatError if it breaks the
        format or is cut off, UnsupportedModelError if it is sound but holds what this version does not read.
        """
        where = Path(fspath(path))
        opened = parse(map_file(where), where.name)
        paths = part_paths(TypedMetadata(where, opened.header.metadata))
        if len(paths) == 1:
            return cls(where, paths, [opened])
        parts = []
        for index, part_path in enumerate(paths):
            part = opened if part_path == where else parse(map_file(part_path), part_path.name)
            check_part(TypedMetadata(part_path, part.header.metadata), index, len(paths))
            parts.append(part)
        file = cls(where, paths, parts)
        stated = file.integer("split.tensors.count", len(file.tensors))
        if stated != len(file.tensors):
            raise ModelFormatError(f"{where.name}: split.tensors.count is {stated}; the parts hold {len(file.tensors)}")
        return file

    @property
    def metadata(self) -> Mapping[str, Value]:
        """All values by key, in the order of the (first) file. ValueError after `close`."""
        self._check_open()
        return self._metadata

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors by name, in the order of the files. ValueError after `close`."""
        self._check_open()
        return self._tensors

    @property
    def fingerprint(self) -> str:
        """A cheap identity of the content: 32 hexadecimal digits, about ten milliseconds.

        BLAKE2b over the header (all metadata, the vocabulary, the tensor table), the file size, and 4 KiB from the
        middle of each tensor. A copy has the same; another model, quantization, vocabulary or fine-tune another one.
        It is no proof against tampering: bytes between the samples are not read. ValueError after `close`.
        """
        from hashlib import blake2b  # brings a whole crypto library along: 5 ms

        digest = blake2b(digest_size=16)
        for part in self._check_open():
            digest.update(len(part.buffer).to_bytes(8, "little"))
            digest.update(part.buffer[: part.header.header_bytes].data)
            for tensor in part.tensors.values():
                stored = tensor.data.reshape(-1)
                middle = max(0, (stored.size - _SAMPLE_BYTES) // 2)
                digest.update(stored[middle : middle + _SAMPLE_BYTES].data)
        return digest.hexdigest()

    def close(self) -> None:
        """Lets go of the map. Views that others hold stay valid. May be called twice."""
        self._parts = None
        self._tensors = MappingProxyType({})
        self._metadata = MappingProxyType({})

    def _check_open(self) -> list[Part]:
        if self._parts is None:
            raise ValueError(f"{self.path} is closed; read metadata and tensors before close()")
        return self._parts

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._parts is None:
            return f"<GGUFFile {str(self.path)!r}, closed>"
        return f"<GGUFFile {str(self.path)!r}: {len(self._metadata)} keys, {len(self._tensors)} tensors>"


def _merge(paths: list[Path], parts: list[Part]) -> dict[str, Tensor]:
    """The tensors of all parts."""
    tensors: dict[str, Tensor] = {}
    for path, part in zip(paths, parts, strict=True):
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise ModelFormatError(f"{path.name}: tensor {clip(name)} is in an earlier part too")
            tensors[name] = tensor
    return tensors
