"""Damaged GGUF files: they open or they are refused, in bounded time and memory, and nothing else happens."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers.gguf_bytes import as_buffer, write_every_kind
from octavo.core.errors import ModelFormatError, UnsupportedModelError
from octavo.formats.ggml import dequantize_tensor
from octavo.formats.gguf import Part, parse
from octavo.formats.metadata import StringArray

# A hang is a failure: the time is bounded by this, far above what any example needs.
pytestmark = pytest.mark.timeout(120)

Edit = tuple[int, bytes]

# What breaks readers: numbers at the edges of their types, and small ones in the place of others.
_NUMBERS = st.sampled_from(
    [
        0,
        1,
        2,
        3,
        7,
        8,
        9,
        31,
        255,
        256,
        2**16 - 1,
        2**31 - 1,
        2**31,
        2**32 - 1,
        2**32,
        2**62,
        2**63 - 1,
        2**63,
        2**64 - 1,
    ]
)
_PATCHES = st.one_of(
    st.binary(min_size=1, max_size=4),
    st.builds(lambda n: n.to_bytes(8, "little"), _NUMBERS),
    st.builds(lambda n: (n % 2**32).to_bytes(4, "little"), _NUMBERS),
)
_EDITS = st.lists(st.tuples(st.integers(0, 2**32), _PATCHES), max_size=6)


def touch(part: Part) -> None:
    """Uses all that the reader has let pass; text may still turn out not to be text."""
    for value in part.header.metadata.values():
        if isinstance(value, StringArray):
            try:
                value.tolist()
            except ModelFormatError:
                continue
        elif isinstance(value, np.ndarray):
            value.tolist()
    for tensor in part.tensors.values():
        assert dequantize_tensor(tensor).shape == tensor.shape


def opened(buffer: NDArray[np.uint8]) -> Part | None:
    """The file, or None if it is refused in a short line. Any error but the two that are meant fails the test."""
    try:
        return parse(buffer, "x")
    except (ModelFormatError, UnsupportedModelError) as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 500
    return None


def survives(buffer: NDArray[np.uint8]) -> None:
    part = opened(buffer)
    if part is not None:
        touch(part)


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "every.gguf"
    write_every_kind(path)
    return path.read_bytes()


def edited(content: bytes, edits: list[Edit], within: int) -> bytearray:
    changed = bytearray(content)
    for place, patch in edits:
        start = place % within
        changed[start : start + len(patch)] = patch[: len(changed) - start]
    return changed


@given(edits=_EDITS, keep=st.floats(0, 1))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_edited_and_truncated_files(every_kind: bytes, edits: list[Edit], keep: float) -> None:
    changed = edited(every_kind, edits, within=len(every_kind))
    survives(as_buffer(bytes(changed[: len(changed) if keep > 0.5 else int(2 * keep * len(changed))])))


def test_every_single_byte_of_the_header_may_be_wrong(every_kind: bytes) -> None:
    """Each byte set to 255 and with its lowest bit turned; some of these files are still sound."""
    header_bytes = parse(as_buffer(every_kind), "x").header.header_bytes
    outcomes = set()
    changed = np.array(bytearray(every_kind), np.uint8)
    for place in range(header_bytes):
        kept = int(changed[place])
        for value in {255, kept ^ 1} - {kept}:
            changed[place] = value
            outcomes.add(opened(changed) is not None)
        changed[place] = kept
    assert outcomes == {True, False}


@given(st.binary(max_size=300))
def test_any_bytes_after_the_magic(content: bytes) -> None:
    survives(as_buffer(content))
    survives(as_buffer(b"GGUF\3\0\0\0" + content))


@given(edits=_EDITS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_memory_stays_in_proportion_to_the_file(every_kind: bytes, edits: list[Edit]) -> None:
    buffer = as_buffer(bytes(edited(every_kind, edits, within=len(every_kind))))
    tracemalloc.start()
    try:
        opened(buffer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * len(buffer) + (1 << 20)


@pytest.fixture(scope="module")
def real_header(real_model: Callable[[str], Path]) -> tuple[NDArray[np.uint8], int]:
    """A buffer of the size of a real model with its real header, and the size of the header.

    The weights are zeros that the operating system never has to provide.
    """
    content = np.memmap(real_model("SmolLM2-135M-Instruct.Q4_1.gguf"), np.uint8, "r")
    header_bytes = parse(content.view(np.ndarray), "x").header.header_bytes
    buffer = np.zeros(len(content), np.uint8)
    buffer[:header_bytes] = content[:header_bytes]
    return buffer, header_bytes


@given(
    edits=st.lists(
        st.tuples(st.sampled_from(["start", "anywhere", "table"]), st.integers(0, 2**32), _PATCHES), max_size=3
    ),
    cut=st.one_of(st.none(), st.floats(0, 1)),
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_header_of_a_real_model(
    real_header: tuple[NDArray[np.uint8], int], edits: list[tuple[str, int, bytes]], cut: float | None
) -> None:
    buffer, header_bytes = real_header
    first = {"start": 0, "anywhere": 0, "table": header_bytes - 16_000}
    last = {"start": 2_000, "anywhere": header_bytes, "table": header_bytes}
    undo = []
    try:
        for region, place, patch in edits:
            start = first[region] + place % (last[region] - first[region])
            undo.append((start, buffer[start : start + len(patch)].copy()))
            buffer[start : start + len(patch)] = np.frombuffer(patch, np.uint8)
        opened(buffer if cut is None else buffer[: int(cut * header_bytes)])
    finally:
        for start, kept in reversed(undo):
            buffer[start : start + len(kept)] = kept
