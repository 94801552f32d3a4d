"""What a served model's file says, for the APIs that describe models."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from octavo.formats.gguf import GGUFFile
from octavo.formats.hub_names import quant_of
from octavo.formats.metadata import StringArray, Value
from octavo.formats.references import resolve
from octavo.formats.store import ModelStore

__all__ = ["ModelFacts", "facts_of", "metadata_of"]


@dataclass(frozen=True)
class ModelFacts:
    """size_bytes: of all files. modified: seconds since the epoch. digest: the SHA-256 that was verified when the file
    was downloaded; of other files a fingerprint of 32 digits (GGUFFile.fingerprint). parameters: numbers in all
    tensors. quantization: as the file's name states it, else that of most bytes. licence, template: None: not stated.
    """

    path: Path
    size_bytes: int
    modified: float
    digest: str
    family: str
    parameters: int
    quantization: str
    licence: str | None
    template: str | None


def facts_of(reference: str) -> ModelFacts:
    """The facts of a model that is on this machine; milliseconds, and nothing where they are known already.

    Raises ModelError: it is not there, or no model.
    """
    path = resolve(reference, download=False)
    stat = path.stat()
    return _read(path, stat.st_size, stat.st_mtime_ns)


def metadata_of(path: Path, *, arrays: bool) -> dict[str, Any]:
    """The metadata of a file as JSON can hold it. arrays: False puts null in place of each; vocabularies are long."""
    with GGUFFile.open(path) as file:
        return {key: _plain(value, arrays) for key, value in file.metadata.items()}


@lru_cache(maxsize=1000)
def _read(path: Path, size_bytes: int, mtime_ns: int) -> ModelFacts:
    store = ModelStore.default()
    record = store.record(path) if store.is_verified(path) else None
    with GGUFFile.open(path) as file:
        formats: Counter[str] = Counter()
        for tensor in file.tensors.values():
            formats[tensor.dtype] += tensor.data.size
        common = formats.most_common(1)
        return ModelFacts(
            path=path,
            size_bytes=file.size_bytes,
            modified=mtime_ns / 1e9,
            digest=file.fingerprint if record is None else record.sha256,
            family=file.string("general.architecture", "unknown"),
            parameters=sum(int(np.prod(tensor.shape)) for tensor in file.tensors.values()),
            quantization=quant_of(path.name) or (common[0][0] if common else "unknown"),
            licence=(record.licence if record is not None else None) or file.string("general.license", "") or None,
            template=file.string("tokenizer.chat_template", "") or None,
        )


def _plain(value: Value, arrays: bool) -> Any:
    if not isinstance(value, StringArray | np.ndarray):
        return value
    if not arrays:
        return None
    return list(value) if isinstance(value, StringArray) else value.tolist()
