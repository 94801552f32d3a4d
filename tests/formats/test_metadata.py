"""Typed getters: what they give, and what they say when the file holds something else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from helpers.gguf_bytes import string
from octavo.core.errors import ModelFormatError
from octavo.formats.gguf_strings import scan_strings
from octavo.formats.metadata import StringArray, TypedMetadata, clip

FILE = TypedMetadata(
    "folder/m.gguf",
    {
        "int": 7,
        "float": 0.5,
        "yes": True,
        "text": "hello",
        "texts": StringArray.of(["a", "", "é"]),
        "u64": np.array([1, 2], np.uint64),
        "u64.big": np.array([2**63], np.uint64),
        "f32": np.array([0.5, 2], np.float32),
        "bools": np.array([True]),
        "none": np.array([], np.int32),
        "no texts": StringArray.of([]),
    },
)


def test_values_of_the_right_type() -> None:
    assert FILE.integer("int") == 7
    assert FILE.number("float") == 0.5
    assert FILE.boolean("yes") is True
    assert FILE.string("text") == "hello"
    assert FILE.strings("texts") == ["a", "", "é"]
    assert FILE.integers("u64").tolist() == [1, 2]
    assert FILE.integers("u64").dtype == np.int64
    assert FILE.numbers("f32").tolist() == [0.5, 2.0]
    assert FILE.numbers("u64").dtype == np.float64


def test_an_integer_is_a_number_and_empty_arrays_fit_any_kind() -> None:
    number = FILE.number("int")
    assert isinstance(number, float)
    assert number == 7.0
    for key in ("none", "no texts"):
        assert len(FILE.strings(key)) == 0
        assert FILE.integers(key).dtype == np.int64
        assert FILE.numbers(key).tolist() == []


def test_defaults_are_returned_as_they_are_and_only_for_absent_keys() -> None:
    assert FILE.integer("absent", None) is None
    assert FILE.number("absent", 3) == 3
    assert isinstance(FILE.number("absent", 3), int)
    assert FILE.boolean("absent", False) is False
    assert FILE.string("absent", "x") == "x"
    assert FILE.strings("absent", None) is None
    assert FILE.integers("absent", None) is None
    with pytest.raises(ModelFormatError, match="'text' holds a string; an integer is needed"):
        FILE.integer("text", 1)
    with pytest.raises(ModelFormatError, match="'int' holds an integer; an array of numbers is needed"):
        FILE.numbers("int", None)


@pytest.mark.parametrize(
    ("getter", "key", "words"),
    [
        (FILE.integer, "float", "'float' holds a number; an integer is needed"),
        (FILE.integer, "yes", "'yes' holds a boolean; an integer is needed"),
        (FILE.integer, "absent", "'absent' is missing; an integer is needed"),
        (FILE.number, "yes", "'yes' holds a boolean; a number is needed"),
        (FILE.number, "texts", "'texts' holds an array of 3 strings; a number is needed"),
        (FILE.boolean, "int", "'int' holds an integer; a boolean is needed"),
        (FILE.string, "u64", "'u64' holds an array of 2 uint64 values; a string is needed"),
        (FILE.strings, "text", "'text' holds a string; an array of strings is needed"),
        (FILE.strings, "u64", "'u64' holds an array of 2 uint64 values; an array of strings is needed"),
        (FILE.integers, "f32", "'f32' holds an array of 2 float32 values; an array of integers is needed"),
        (FILE.integers, "bools", "'bools' holds an array of 1 bool values; an array of integers is needed"),
        (FILE.integers, "u64.big", "'u64.big' holds a number above"),
        (FILE.integers, "absent", "'absent' is missing; an array of integers is needed"),
        (FILE.numbers, "texts", "'texts' holds an array of 3 strings; an array of numbers is needed"),
    ],
)
def test_other_types_are_errors_that_name_file_and_key(getter: Callable[[str], object], key: str, words: str) -> None:
    with pytest.raises(ModelFormatError) as caught:
        getter(key)
    assert str(caught.value).startswith("m.gguf: metadata key ")
    assert words in str(caught.value)


def test_string_arrays_are_sequences() -> None:
    array = StringArray.of(["a", "b\0c", "", "🦙", "e"])
    assert (len(array), array[1], array[-1], array[1:4], array[::-2]) == (
        5, "b\0c", "e", ["b\0c", "", "🦙"], ["e", "", "a"],
    )  # fmt: skip
    assert list(array) == array.tolist() == ["a", "b\0c", "", "🦙", "e"]
    assert array.raw(3) == "🦙".encode()
    assert "🦙" in array
    assert array.index("e") == 4
    assert array == StringArray.of(list(array))
    assert array != StringArray.of(["a"])
    assert array != 5
    for index in (5, -6):
        with pytest.raises(IndexError):
            array[index]


def test_text_that_is_not_utf8_is_found_when_it_is_decoded() -> None:
    stored = np.frombuffer(b"".join(map(string, [b"ok", b"\xff\xfe", b"fine"])), np.uint8)
    starts, _ = scan_strings(stored, 3)
    array = StringArray(stored, starts, "m.gguf: metadata key 'tokens'")
    assert array[0] == "ok"
    assert array.raw(1) == b"\xff\xfe"
    for read in (lambda: array[1], array.tolist, lambda: list(array)):
        with pytest.raises(ModelFormatError, match="'tokens': entry 1 is not valid UTF-8"):
            read()


def test_clip_keeps_messages_on_one_short_line() -> None:
    assert clip("a\nb") == "'a\\nb'"
    assert len(clip("x" * 1000)) < 90
