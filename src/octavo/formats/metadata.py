"""What a model file says about itself: values by key, read with the type that the caller needs.

A wrong type or a missing key is the file's fault, so it is a `ModelFormatError` that names the key, what it holds and
what is needed; no caller has to check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ModelFormatError
from octavo.formats.gguf_strings import decode_strings

__all__ = ["REQUIRED", "StringArray", "TypedMetadata", "Value", "clip"]

T = TypeVar("T")


class _Required:
    """The type of REQUIRED."""


REQUIRED = _Required()
"""The default of every getter: the key must be there."""


def clip(text: str, limit: int = 80) -> str:
    """`text` quoted for an error message: on one line, cut when a broken file makes it long."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}..."


class StringArray(Sequence[str]):
    """Strings that stay in the file until they are asked for.

    The reader has checked every length against the file; the text itself is checked as UTF-8 when it is decoded, and
    `ModelFormatError` names the entry that is not. A vocabulary of 262 thousand entries costs 2 MB until then.

    Attributes:
        stored: u8 [bytes]: the array as it lies in the file, each string after its length (u64, little-endian).
            It identifies the content, so a cache keyed by it needs no decoding.
        starts: i64 [count]: where the text of each string starts in `stored`; it ends 8 bytes before the next one.
    """

    def __init__(self, stored: NDArray[np.uint8], starts: NDArray[np.int64], name: str):
        """`name` says in error messages which array of which file this is."""
        self.stored = stored
        self.starts = starts
        self._name = name

    @classmethod
    def of(cls, strings: Sequence[str], name: str = "strings") -> StringArray:
        """The same kind of array made from Python strings."""
        texts = [text.encode() for text in strings]
        stored = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
        lengths = np.array([0, *map(len, texts)], np.int64)
        starts = np.cumsum(lengths[:-1] + 8)
        return cls(np.array(bytearray(stored), np.uint8), starts, name)

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        try:
            return self.raw(index).decode()
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"{self._name}: entry {index} is not valid UTF-8 ({error.reason})") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def raw(self, index: int) -> bytes:
        """The bytes of one string, as stored. Raises IndexError."""
        place = range(len(self))[index]
        end = self.starts[place + 1] - 8 if place + 1 < len(self) else len(self.stored)
        return self.stored[self.starts[place] : end].tobytes()

    def tolist(self) -> list[str]:
        """All strings, decoded in one pass (under 0.1 us each). Raises ModelFormatError if one is not UTF-8."""
        try:
            return decode_strings(self.stored, self.starts)
        except UnicodeDecodeError:
            return [self[i] for i in range(len(self))]  # finds the entry and says so

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringArray):
            return np.array_equal(self.stored, other.stored)
        return isinstance(other, list | tuple) and self.tolist() == list(other)

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have no hash either

    def __repr__(self) -> str:
        return f"<StringArray of {len(self)}: {self._name}>"


Value = int | float | bool | str | NDArray[Any] | StringArray
"""What a key can hold. Arrays are read-only NumPy arrays [count] of the stored number type (or bool)."""


def _kind(value: object) -> str:
    """What a value is, in words."""
    if isinstance(value, StringArray):
        return f"an array of {len(value)} strings"
    if isinstance(value, np.ndarray):
        return f"an array of {len(value)} {value.dtype.name} values"
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string"}
    return names.get(type(value), type(value).__name__)


class TypedMetadata:
    """Getters over `metadata`. Each takes a key and, where the key may be absent, a default that is returned as it is.

    All raise ModelFormatError, naming file and key, if the key is absent and there is no default, or if it holds
    another kind of value.
    """

    def __init__(self, path: str | PathLike[str], metadata: Mapping[str, Value]):
        """`path` is only named in messages, so that metadata made in memory can be read in the same way."""
        self._path = Path(fspath(path))
        self._metadata = metadata

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def metadata(self) -> Mapping[str, Value]:
        """All values by key, in the order of the file."""
        return self._metadata

    def _wrong(self, key: str, needed: str) -> ModelFormatError:
        held = self.metadata.get(key)
        if held is None:
            return ModelFormatError(f"{self.path.name}: metadata key {clip(key)} is missing; {needed} is needed there")
        return ModelFormatError(f"{self.path.name}: metadata key {clip(key)} holds {_kind(held)}; {needed} is needed")

    def _get(self, key: str, default: T | _Required, kinds: tuple[type, ...], needed: str) -> Any:
        held = self.metadata.get(key)
        if held is None and not isinstance(default, _Required):
            return default
        if not isinstance(held, kinds) or (isinstance(held, bool) and bool not in kinds):
            raise self._wrong(key, needed)
        return held

    def integer(self, key: str, default: T | _Required = REQUIRED) -> int | T:
        """A whole number of any stored width."""
        value: int | T = self._get(key, default, (int,), "an integer")
        return value

    def number(self, key: str, default: T | _Required = REQUIRED) -> float | T:
        """A number; integers count."""
        held: int | float | T = self._get(key, default, (int, float), "a number")
        return float(held) if isinstance(held, int) and key in self.metadata else held

    def boolean(self, key: str, default: T | _Required = REQUIRED) -> bool | T:
        """True or false."""
        value: bool | T = self._get(key, default, (bool,), "a boolean")
        return value

    def string(self, key: str, default: T | _Required = REQUIRED) -> str | T:
        """A text."""
        value: str | T = self._get(key, default, (str,), "a string")
        return value

    def strings(self, key: str, default: T | _Required = REQUIRED) -> StringArray | T:
        """An array of texts, decoded on demand. An empty array of any kind counts."""
        held = self.metadata.get(key)
        if isinstance(held, np.ndarray) and not len(held):
            return StringArray.of([], key)
        value: StringArray | T = self._get(key, default, (StringArray,), "an array of strings")
        return value

    def integers(self, key: str, default: T | _Required = REQUIRED) -> NDArray[np.int64] | T:
        """An array of whole numbers: i64 [count], a copy. An empty array of any kind counts."""
        values: NDArray[np.int64] | T = self._numbers(key, default, "iu", np.dtype(np.int64), "an array of integers")
        return values

    def numbers(self, key: str, default: T | _Required = REQUIRED) -> NDArray[np.float64] | T:
        """An array of numbers: f64 [count], a copy; integers count. An empty array of any kind counts."""
        dtype = np.dtype(np.float64)
        values: NDArray[np.float64] | T = self._numbers(key, default, "iuf", dtype, "an array of numbers")
        return values

    def _numbers(self, key: str, default: T | _Required, kinds: str, dtype: np.dtype[Any], needed: str) -> Any:
        held = self.metadata.get(key)
        if held is None and not isinstance(default, _Required):
            return default
        if isinstance(held, StringArray | np.ndarray) and not len(held):
            return np.empty(0, dtype)
        if not isinstance(held, np.ndarray) or held.dtype.kind not in kinds:
            raise self._wrong(key, needed)
        if held.dtype == np.uint64 and dtype.kind == "i" and held.max() > np.iinfo(np.int64).max:
            raise ModelFormatError(f"{self.path.name}: metadata key {clip(key)} holds a number above 2**63 - 1")
        return held.astype(dtype)
