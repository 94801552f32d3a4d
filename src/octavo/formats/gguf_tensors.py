"""The tensors of one GGUF file: each checked against the file, each a view into it."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ModelFormatError, UnsupportedModelError
from octavo.formats.ggml import BlockFormat, format_of_id, row_bytes
from octavo.formats.gguf_header import Header, TensorInfo
from octavo.formats.metadata import clip
from octavo.formats.tensor import Tensor

__all__ = ["place_tensors"]


def place_tensors(header: Header, buffer: NDArray[np.uint8], source: str) -> dict[str, Tensor]:
    """Tensors by name, in the order of the table, as views into buffer u8 [bytes], the whole file.

    `source` names the file in messages. Raises UnsupportedModelError for storage formats that are not read,
    ModelFormatError for tensors that are misaligned, overlap, or leave the file.
    """
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int, str]] = []
    for info in header.tensors:
        try:
            stored = format_of_id(info.ggml_id, info.name)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{source}: {error}") from None
        size = _checked_size(info, stored, header.alignment, len(buffer) - header.data_start, source)
        start = header.data_start + info.offset
        shape = info.dimensions[::-1]
        data = buffer[start : start + size].reshape(prod(shape[:-1]), -1)
        tensors[info.name] = Tensor(info.name, stored.name, shape, data)
        spans.append((info.offset, info.offset + size, info.name))
    spans.sort()
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end:
            raise ModelFormatError(f"{source}: tensor {clip(other)} overlaps tensor {clip(name)}; the file is damaged")
    return tensors


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
