"""Fingerprints: the same for the same weights wherever they lie, another one for any change that a sample shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers.gguf_bytes import U16, U32, gguf_bytes, pair, tensor
from octavo.formats.fingerprint import SAMPLE_BYTES, fingerprint
from octavo.formats.gguf import GGUFFile

ROWS = 4 * SAMPLE_BYTES // 128  # of 32 numbers in f32: four samples long
LARGE, SMALL = ROWS * 128, 128


def of(path: Path) -> str:
    with GGUFFile.open(path) as file:
        return fingerprint(file)


def write(path: Path, *, changed: int | None = None, key: int = 1) -> Path:
    """A model of a large and a small tensor. changed: which byte of their data is another one."""
    data = np.random.default_rng(0).integers(0, 256, LARGE + SMALL, dtype=np.uint8)
    if changed is not None:
        data[changed] ^= 1
    table = [tensor("large", [32, ROWS]), tensor("small", [32, 1], offset=LARGE)]
    path.write_bytes(gguf_bytes([pair("some.key", U32, key.to_bytes(4, "little"))], table, data.tobytes()))
    return path


def test_copies_have_the_same(tmp_path: Path) -> None:
    first = write(tmp_path / "a.gguf")
    (tmp_path / "other").mkdir()
    copy = shutil.copy(first, tmp_path / "other" / "b.gguf")
    assert of(first) == of(copy)
    assert len(of(first)) == 64


@pytest.mark.parametrize("changed", [0, SAMPLE_BYTES - 1, LARGE // 2, LARGE - 1, LARGE, LARGE + SMALL - 1])
def test_a_changed_byte_at_start_middle_or_end_of_a_tensor_shows(tmp_path: Path, changed: int) -> None:
    assert of(write(tmp_path / "b.gguf", changed=changed)) != of(write(tmp_path / "a.gguf"))


def test_a_change_between_the_samples_does_not_show(tmp_path: Path) -> None:
    """The documented limit: if this fails, the docstring promises too little."""
    assert of(write(tmp_path / "b.gguf", changed=SAMPLE_BYTES)) == of(write(tmp_path / "a.gguf"))


def test_metadata_counts(tmp_path: Path) -> None:
    assert of(write(tmp_path / "b.gguf", key=2)) != of(write(tmp_path / "a.gguf"))


def write_split(folder: Path, changed: int | None) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"m-{number + 1:05d}-of-00002.gguf" for number in range(2)]
    for index, path in enumerate(paths):
        data = bytearray(128)
        if changed == index:
            data[-1] = 1
        pairs = [pair("split.no", U16, index.to_bytes(2, "little")), pair("split.count", U16, b"\2\0")]
        path.write_bytes(gguf_bytes(pairs, [tensor(f"t{index}", [32, 1])], bytes(data)))
    return paths


def test_all_parts_of_a_split_model_count_from_any_of_them(tmp_path: Path) -> None:
    first, second = write_split(tmp_path / "same", None)
    assert of(first) == of(second)
    for part in range(2):
        assert of(write_split(tmp_path / f"changed{part}", part)[0]) != of(first)


def test_a_closed_file_says_so(tmp_path: Path) -> None:
    file = GGUFFile.open(write(tmp_path / "a.gguf"))
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        fingerprint(file)
