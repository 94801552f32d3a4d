"""The metadata keys of one architecture, `{arch}.{name}`, with their ranges, and a memory of which were read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from octavo.core.errors import ModelFormatError, UnsupportedModelError
from octavo.formats.metadata import TypedMetadata, clip

__all__ = ["ModelKeys"]


class ModelKeys:
    """Checked reads by name, without the architecture's prefix.

    Getters without a default need the key; all raise ModelFormatError, naming file and key, for a missing key, a
    wrong type or a value out of range, and UnsupportedModelError for one that differs from layer to layer.
    """

    def __init__(self, source: TypedMetadata) -> None:
        self._source = source
        self.arch = source.string("general.architecture")
        self._read: set[str] = {"vocab_size"}

    def key(self, name: str) -> str:
        return f"{self.arch}.{name}"

    def has(self, name: str) -> bool:
        """Whether the key is there (a question that does not count as reading it)."""
        return self.key(name) in self._source.metadata

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = 2**31 - 1) -> int:
        """An integer in [low, high]; an array that holds one value for all layers counts as that value."""
        self._read.add(name)
        if default is not None and not self.has(name):
            return default
        value = self._uniform(name)
        value = self._source.integer(self.key(name)) if value is None else value
        if not low <= value <= high:
            raise ModelFormatError(f"{self._where(name)} is {value}; it must be between {low} and {high}")
        return int(value)

    def number(self, name: str, default: float | None = None, *, zero: bool = False) -> float:
        """A finite number above 0 (or 0 too, if `zero`)."""
        self._read.add(name)
        if default is not None and not self.has(name):
            return default
        value = self._source.number(self.key(name))
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise ModelFormatError(f"{self._where(name)} is {value}; it must be {'0 or more' if zero else 'above 0'}")
        return value

    def string(self, name: str, default: str) -> str:
        self._read.add(name)
        return self._source.string(self.key(name), default)

    def flags(self, name: str, length: int) -> tuple[bool, ...] | None:
        """An array of `length` booleans (or 0 and 1); None if the key is absent or no array."""
        held = self._source.metadata.get(self.key(name))
        if not isinstance(held, np.ndarray):
            return None
        self._read.add(name)
        if len(held) != length or not np.isin(held, (0, 1)).all():
            raise ModelFormatError(f"{self._where(name)} must hold {length} booleans, one for each layer")
        return tuple(bool(value) for value in held)

    def neutral(self, name: str, value: Any) -> None:
        """Refuse the file if the key says anything but `value`. Raises UnsupportedModelError."""
        self._read.add(name)
        held = self._source.metadata.get(self.key(name), value)
        if isinstance(held, np.ndarray) or held != value:
            raise UnsupportedModelError(f"{self._where(name)} is {held!r}; this version supports only {value!r}")

    def skip(self, name: str) -> None:
        """This key needs no reading."""
        self._read.add(name)

    def unread(self) -> list[str]:
        """The architecture's keys that were not read."""
        prefix = f"{self.arch}."
        return [k for k in self._source.metadata if k.startswith(prefix) and k.removeprefix(prefix) not in self._read]

    def _uniform(self, name: str) -> int | None:
        """The value of an integer array whose entries are all equal; None if the key holds no array."""
        if not isinstance(self._source.metadata.get(self.key(name)), np.ndarray):
            return None
        values = self._source.integers(self.key(name))
        if len(values) == 0 or (values != values[0]).any():
            raise UnsupportedModelError(
                f"{self._where(name)} differs from layer to layer; this version supports only layers of one shape"
            )
        return int(values[0])

    def _where(self, name: str) -> str:
        return f"{self._source.path.name}: metadata key {clip(self.key(name))}"
