"""The GGUF reader: values as the public `gguf` package reads and writes them, and clear words for broken files."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from helpers import gguf_bytes as raw
from helpers.gguf_bytes import array, as_buffer, gguf_bytes, pair, string, strings, tensor, write_every_kind
from octavo.core.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from octavo.formats.ggml import dequantize_tensor
from octavo.formats.gguf import GGUFFile, parse
from octavo.formats.metadata import StringArray


def plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray | StringArray) else value


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    path = tmp_path_factory.mktemp("gguf") / "every.gguf"
    return path, write_every_kind(path)


# ---- sound files


def test_every_kind_of_metadata(every_kind: tuple[Path, dict[str, object]]) -> None:
    path, written = every_kind
    with GGUFFile.open(path) as file:
        assert file.version == 3
        assert file.alignment == 32
        assert file.path == path
        assert file.paths == [path]
        assert file.size_bytes == path.stat().st_size
        assert {k: plain(v) for k, v in file.metadata.items()} == written
        assert list(file.metadata) == list(written)
        for key, value in file.metadata.items():
            assert type(plain(value)) is type(written[key]), key
            if key.startswith("a.") and isinstance(value, np.ndarray):
                names = {"u": "uint", "i": "int", "f": "float"}
                kind = key.removeprefix("a.")
                assert value.dtype == (kind if kind == "bool" else names[kind[0]] + kind[1:])
                assert not value.flags.writeable


def same_tensors(file: GGUFFile, reader: gguf.GGUFReader, names: list[str]) -> None:
    by_name = {t.name: t for t in reader.tensors}
    assert list(file.tensors) == list(by_name)
    for name in names:
        ours, theirs = file.tensors[name], by_name[name]
        assert ours.name == name
        assert ours.dtype == theirs.tensor_type.name
        assert ours.shape == tuple(reversed(theirs.shape.tolist()))
        assert ours.data.shape[0] == np.prod(ours.shape[:-1], dtype=int)
        assert ours.data.flags.c_contiguous
        assert not ours.data.flags.writeable
        assert np.array_equal(ours.data.reshape(-1), np.ascontiguousarray(theirs.data).reshape(-1).view(np.uint8))


def test_tensors_of_a_written_file(every_kind: tuple[Path, dict[str, object]]) -> None:
    path, _ = every_kind
    with GGUFFile.open(path) as file:
        same_tensors(file, gguf.GGUFReader(path), list(file.tensors))
        assert [(t.dtype, t.shape, t.data.shape) for t in file.tensors.values()] == [
            ("F32", (7, 32), (7, 128)),
            ("F16", (33,), (1, 66)),
            ("Q4_0", (5, 64), (5, 36)),
            ("Q8_0", (2, 3, 32), (6, 34)),
        ]
        assert dequantize_tensor(file.tensors["cube"]).shape == (2, 3, 32)


def test_a_real_model(real_model: Callable[[str], Path]) -> None:
    with GGUFFile.open(real_model("SmolLM2-135M-Instruct.Q4_1.gguf")) as file:
        assert (len(file.metadata), len(file.tensors)) == (33, 272)
        assert file.string("general.architecture") == "llama"
        assert file.integer("llama.block_count") == 30
        assert file.strings("tokenizer.ggml.tokens")[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        assert len(file.strings("tokenizer.ggml.merges").tolist()) == 48900
        assert len(set(file.strings("tokenizer.ggml.tokens"))) == 49152
        assert file.tensors["token_embd.weight"].shape == (49152, 576)


@pytest.mark.slow
def test_a_real_model_equals_the_public_reader(real_model: Callable[[str], Path]) -> None:
    path = real_model("SmolLM2-135M-Instruct.Q4_1.gguf")
    reader = gguf.GGUFReader(path)
    theirs = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    with GGUFFile.open(path) as file:
        assert {k: plain(v) for k, v in file.metadata.items()} == theirs
        same_tensors(file, reader, list(file.tensors)[::17])
        for name in list(file.tensors)[3:6]:
            stored = next(t for t in reader.tensors if t.name == name)
            values = gguf.quants.dequantize(stored.data, stored.tensor_type)
            assert np.array_equal(dequantize_tensor(file.tensors[name]), values)


def test_version_2_padding_and_a_custom_alignment() -> None:
    pairs = [pair("general.alignment", raw.U32, struct.pack("<I", 256))]
    table = [tensor("a", [3], 0, 0), tensor("b", [2, 2], 0, 256)]
    values = np.arange(3, dtype="<f4").tobytes() + bytes(244) + np.arange(4, dtype="<f4").tobytes()
    part = parse(as_buffer(gguf_bytes(pairs, table, values + bytes(1000), version=2, alignment=256)), "x")
    assert part.header.version == 2
    assert part.header.alignment == 256
    assert dequantize_tensor(part.tensors["a"]).tolist() == [0, 1, 2]
    assert dequantize_tensor(part.tensors["b"]).tolist() == [[0, 1], [2, 3]]


def test_files_without_tensors_or_metadata() -> None:
    part = parse(as_buffer(gguf_bytes()), "x")
    assert (part.header.metadata, part.tensors) == ({}, {})
    kinds = [pair(f"k{kind}", raw.ARRAY, array(kind, 0, b"")) for kind in (raw.U8, raw.F32, raw.BOOL, raw.STRING)]
    part = parse(as_buffer(gguf_bytes(kinds)), "x")
    assert [plain(v) for v in part.header.metadata.values()] == [[], [], [], []]


def test_views_outlive_the_file_and_a_closed_file_says_so(every_kind: tuple[Path, dict[str, object]]) -> None:
    file = GGUFFile.open(every_kind[0])
    values, texts, numbers = file.tensors["blk.0.w"], file.strings("a.text"), file.metadata["a.f64"]
    before = values.data.copy()
    file.close()
    file.close()
    assert np.array_equal(values.data, before)
    assert texts[1] == "a"
    assert plain(numbers) == [0.1]
    assert "closed" in repr(file)
    for use in (lambda: file.metadata, lambda: file.tensors, lambda: file.fingerprint, lambda: file.integer("s.u8")):
        with pytest.raises(ValueError, match=r"every\.gguf is closed"):
            use()


def test_open_files_do_not_pile_up(every_kind: tuple[Path, dict[str, object]]) -> None:
    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(every_kind[0]))

    descriptors = len(os.listdir("/proc/self/fd"))
    with GGUFFile.open(every_kind[0]):
        assert maps() == 1
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
    assert maps() == 0


def test_fingerprint(every_kind: tuple[Path, dict[str, object]], tmp_path: Path) -> None:
    content = every_kind[0].read_bytes()

    def of(changed: bytes) -> str:
        path = tmp_path / "f.gguf"
        path.write_bytes(changed)
        with GGUFFile.open(path) as file:
            return file.fingerprint

    first = of(content)
    assert len(first) == 32
    assert of(content) == first
    assert of(content.replace(b"token7", b"tokem7")) != first
    assert of(content + b"\0") != first
    with GGUFFile.open(every_kind[0]) as file:
        weights = file.tensors["blk.0.w"].data.tobytes()
    assert of(content.replace(weights, bytes(len(weights)))) != first


# ---- files that are wrong: content, and words that the message must have

U64_MAX = struct.pack("<Q", 2**64 - 1)
OK_TENSOR = tensor("t", [32], 0, 0)
DATA = bytes(256)


def with_pair(kind: int, payload: bytes, key: str = "the.key") -> bytes:
    return gguf_bytes([pair(key, kind, payload)])


def with_tensors(*table: bytes, pairs: tuple[bytes, ...] = (), data: bytes = DATA) -> bytes:
    return gguf_bytes(pairs, table, data)


def with_alignment(kind: int, payload: bytes) -> bytes:
    return with_tensors(OK_TENSOR, pairs=(pair("general.alignment", kind, payload),))


MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "two bytes": (b"GG", "header needs 4 bytes at offset 0, where the file has 2 left"),
    "bad magic": (gguf_bytes(magic=b"ABCD"), "not a GGUF file: it starts with b'ABCD'"),
    "old format": (gguf_bytes(magic=b"tjgg"), "GGJT file from before GGUF"),
    "zip": (b"PK\x03\x04" + bytes(50), "zip archive"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "big-endian magic": (gguf_bytes(magic=b"FUGG"), "big-endian"),
    "version 0": (gguf_bytes(version=0), "GGUF version 0; only 2 and 3"),
    "version 1": (gguf_bytes(version=1), "GGUF version 1; only 2 and 3"),
    "version 4": (gguf_bytes(version=4), "GGUF version 4; only 2 and 3"),
    "too many tensors": (gguf_bytes(tensor_count=2**63), "header states 9223372036854775808 tensors, more than"),
    "too many keys": (gguf_bytes(pair_count=2**40), "header states 1099511627776 metadata keys, more than"),
    "one key too many": (
        gguf_bytes([pair("k", raw.U8, b"\1")], data=bytes(100), pair_count=3),
        "metadata key 1 of 3 has a name of 0 bytes",
    ),
    "key length": (gguf_bytes([U64_MAX + bytes(60)]), "metadata key 0 of 1 has a name of 18446744073709551615 bytes"),
    "key past the end": (
        gguf_bytes([struct.pack("<Q", 900) + bytes(60)]),
        "the name of metadata key 0 of 1 needs 900 bytes",
    ),
    "empty key": (gguf_bytes([pair("", raw.U64, bytes(8))]), "metadata key 0 of 1 has a name of 0 bytes"),
    "key not UTF-8": (gguf_bytes([pair(b"a\xff", raw.U8, b"\1")]), "name of metadata key 0 of 1 is not valid UTF-8"),
    "key twice": (gguf_bytes([pair("k", raw.U8, b"\1")] * 2), "metadata key 'k' appears twice"),
    "long key": (gguf_bytes([pair("k" * 5000, 77, b"\1")]), f"{'k' * 80!r}... has value type 77"),
    "value type": (with_pair(13, bytes(8)), "'the.key' has value type 13; types 0 to 12 exist"),
    "no value": (with_pair(raw.U64, b"abc"), "'the.key' needs 8 bytes"),
    "bool": (with_pair(raw.BOOL, b"\2"), "'the.key' is a boolean stored as 2"),
    "string length": (with_pair(raw.STRING, U64_MAX + b"abc"), "'the.key' needs 18446744073709551615 bytes"),
    "string not UTF-8": (with_pair(raw.STRING, string(b"ab\xc3")), "'the.key' is not valid UTF-8"),
    "array type": (with_pair(raw.ARRAY, array(13, 1, bytes(8))), "'the.key' is an array of value type 13"),
    "array of arrays": (
        with_pair(raw.ARRAY, array(raw.ARRAY, 1, array(raw.U8, 1, b"\1"))),
        "'the.key' is an array of arrays",
    ),
    "array length": (
        with_pair(raw.ARRAY, array(raw.U32, 2**62, bytes(8))),
        "'the.key' states 4611686018427387904 array el",
    ),
    "array one short": (with_pair(raw.ARRAY, array(raw.U16, 5, bytes(9))), "'the.key' states 5 array elements"),
    "bool array": (with_pair(raw.ARRAY, array(raw.BOOL, 3, b"\0\1\2")), "'the.key' is an array of booleans that holds"),
    "string count": (
        with_pair(raw.ARRAY, array(raw.STRING, 2**60, bytes(80))),
        "'the.key' states 1152921504606846976 strin",
    ),
    "array string length": (
        with_pair(raw.ARRAY, array(raw.STRING, 2, string("ab") + U64_MAX)),
        "'the.key' holds 2 strings of which number 1 runs past the end",
    ),
    "long array cut": (
        with_pair(raw.ARRAY, strings(*["abc"] * 99, "a" * 999)[:-1]),
        "'the.key' holds 100 strings of which number 99 runs past the end",
    ),
    "alignment 0": (with_alignment(raw.U32, struct.pack("<I", 0)), "'general.alignment' is 0; a power of two from 8"),
    "alignment 4": (with_alignment(raw.U32, struct.pack("<I", 4)), "'general.alignment' is 4;"),
    "alignment 48": (with_alignment(raw.U32, struct.pack("<I", 48)), "'general.alignment' is 48;"),
    "alignment 2**31": (with_alignment(raw.U32, struct.pack("<I", 2**31)), "'general.alignment' is 2147483648;"),
    "alignment text": (with_alignment(raw.STRING, string("32")), "'general.alignment' is not an integer"),
    "alignment bool": (with_alignment(raw.BOOL, b"\1"), "'general.alignment' is not an integer"),
    "tensor twice": (with_tensors(OK_TENSOR, OK_TENSOR), "tensor 't' appears twice"),
    "tensor name": (with_tensors(tensor("", [32])), "tensor 0 of 1 has a name of 0 bytes"),
    "tensor name not UTF-8": (with_tensors(tensor(b"\xff", [32])), "name of tensor 0 of 1 is not valid UTF-8"),
    "no dimensions": (with_tensors(tensor("t", [])), "tensor 't' has 0 dimensions; 1 to 4"),
    "five dimensions": (with_tensors(tensor("t", [1] * 5)), "tensor 't' has 5 dimensions; 1 to 4"),
    "2**32 - 1 dimensions": (
        with_tensors(string("t") + struct.pack("<I", 2**32 - 1) + bytes(99)),
        "tensor 't' has 4294967295 dimensions",
    ),
    "zero dimension": (with_tensors(tensor("t", [32, 0])), "tensor 't' has a dimension of zero"),
    "size overflows 64 bits": (
        with_tensors(tensor("t", [2**32, 2**32])),
        "tensor 't' of shape (4294967296, 4294967296)",
    ),
    "size overflows to 0": (with_tensors(tensor("t", [2**62, 4, 1, 1])), "tensor 't' of shape (1, 1, 4, 461168601"),
    "offset overflows": (with_tensors(tensor("t", [32], 0, 2**64 - 32)), "ends at byte 18446744073709551712 of the d"),
    "offset past the end": (
        with_tensors(tensor("t", [32], 0, 256)),
        "ends at byte 384 of the data section, which has 256",
    ),
    "one byte short": (with_tensors(OK_TENSOR, data=bytes(127)), "ends at byte 128 of the data section, which has 127"),
    "no data section": (with_tensors(OK_TENSOR, data=b""), "ends at byte 128 of the data section, which has 0"),
    "misaligned": (with_tensors(tensor("t", [4], 0, 16)), "tensor 't' starts at offset 16, which is no multiple of 32"),
    "row not whole blocks": (with_tensors(tensor("t", [33], 2)), "tensor 't': a row of 33 values cannot be Q4_0"),
    "overlap": (with_tensors(tensor("a", [16]), tensor("b", [8], 0, 32)), "tensor 'b' overlaps tensor 'a'"),
    "same place": (with_tensors(tensor("a", [8]), tensor("b", [8])), "tensor 'b' overlaps tensor 'a'"),
}


@pytest.mark.parametrize("case", list(MALFORMED))
def test_malformed_files(case: str, tmp_path: Path) -> None:
    content, words = MALFORMED[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError) as caught:
        GGUFFile.open(path)
    message = str(caught.value)
    assert words in message
    assert message.startswith("bad.gguf: ")
    assert "\n" not in message
    assert len(message) < 400


def test_the_sound_neighbours_of_the_malformed_files_open() -> None:
    parse(as_buffer(with_alignment(raw.U32, struct.pack("<I", 8))), "x")
    parse(as_buffer(with_tensors(OK_TENSOR, data=bytes(128))), "x")
    parse(as_buffer(with_tensors(tensor("b", [8], 0, 32), tensor("a", [8]))), "x")
    parse(as_buffer(with_tensors(tensor("t", [4, 1, 1, 2]))), "x")


@pytest.mark.parametrize(("ggml_id", "name"), [(16, "IQ2_XXS"), (24, "I8"), (4, "Q4_2"), (200, "unknown")])
def test_storage_formats_that_are_not_read(ggml_id: int, name: str) -> None:
    content = with_tensors(tensor("blk.0.w", [256], ggml_id))
    with pytest.raises(UnsupportedModelError, match=rf"x: tensor 'blk\.0\.w'.*type {ggml_id}, {name}.*F32, F16.*Q6_K"):
        parse(as_buffer(content), "x")


def test_every_truncation_is_an_error(every_kind: tuple[Path, dict[str, object]]) -> None:
    """Cut before its last byte at any place, a file never opens (the last tensor reaches its end but for padding)."""
    content = every_kind[0].read_bytes()
    whole = parse(as_buffer(content), "x")
    address = as_buffer(content).__array_interface__["data"][0]
    last = max(t.data.__array_interface__["data"][0] + t.data.size for t in whole.tensors.values()) - address
    for end in [*range(0, last, 1 if last < 20_000 else 7), last - 1]:
        with pytest.raises(ModelFormatError):
            parse(as_buffer(content[:end]), "x")
    parse(as_buffer(content[:last]), "x")


# ---- paths


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no file .*absent\.gguf"):
        GGUFFile.open(tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFoundError, match="cannot be opened"):
        GGUFFile.open("a\0b")
    with pytest.raises(ModelNotFoundError, match="cannot be opened: File name too long"):
        GGUFFile.open("a" * 5000)
    with pytest.raises(ModelFormatError, match="is a directory"):
        GGUFFile.open(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFormatError, match="not a regular file"):
        GGUFFile.open(tmp_path / "pipe")
    (tmp_path / "plain").write_bytes(gguf_bytes())
    with pytest.raises(ModelNotFoundError, match="Not a directory"):
        GGUFFile.open(tmp_path / "plain" / "x.gguf")


# ---- split models


def write_split(folder: Path, count: int = 3) -> tuple[list[Path], dict[str, np.ndarray]]:
    """`count` parts with one tensor each, by the public writer."""
    values = {f"t{i}": np.arange(32 * (i + 1), dtype=np.float32).reshape(-1, 32) for i in range(count)}
    paths = [folder / f"m-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    for i, path in enumerate(paths):
        pairs = [
            pair("split.no", raw.U16, struct.pack("<H", i)),
            pair("split.count", raw.U16, struct.pack("<H", count)),
            pair("split.tensors.count", raw.I32, struct.pack("<i", count)),
        ]
        if i == 0:
            pairs.append(pair("llama.block_count", raw.U32, struct.pack("<I", 5)))
        path.write_bytes(gguf_bytes(pairs, [tensor(f"t{i}", [32, i + 1])], values[f"t{i}"].tobytes()))
    return paths, values


def test_split_models_open_from_any_part(tmp_path: Path) -> None:
    paths, values = write_split(tmp_path)
    prints = set()
    for path in paths:
        with GGUFFile.open(path) as file:
            assert file.path == path
            assert file.paths == paths
            assert file.integer("llama.block_count") == 5
            assert file.size_bytes == sum(p.stat().st_size for p in paths)
            assert list(file.tensors) == list(values)
            assert all(np.array_equal(dequantize_tensor(file.tensors[k]), v) for k, v in values.items())
            prints.add(file.fingerprint)
    assert len(prints) == 1


def test_split_models_that_do_not_fit_together(tmp_path: Path) -> None:
    paths, _ = write_split(tmp_path)
    renamed = tmp_path / "model.gguf"
    shutil.copy(paths[1], renamed)
    with pytest.raises(ModelFormatError, match=r"part 2 of 3 .* must end in -00002-of-00003\.gguf"):
        GGUFFile.open(renamed)
    shutil.copy(paths[0], paths[1])
    with pytest.raises(ModelFormatError, match=r"m-00002-of-00003\.gguf: holds split\.no 0 .*not 1 of 3"):
        GGUFFile.open(paths[0])
    paths[1].unlink()
    with pytest.raises(ModelNotFoundError, match=r"part 1 of 3; .*m-00002-of-00003\.gguf' is missing"):
        GGUFFile.open(paths[0])


@pytest.mark.parametrize(
    ("index", "count", "tensors", "name", "words"),
    [
        (0, 0, 1, "m-00001-of-00000.gguf", "split.no is 0 and split.count 0"),
        (5, 2, 1, "m-00006-of-00002.gguf", "split.no is 5 and split.count 2"),
        (0, 2, 9, "m-00001-of-00002.gguf", "split.tensors.count is 9; the parts hold 2"),
    ],
)
def test_split_numbers_that_cannot_be(
    index: int, count: int, tensors: int, name: str, words: str, tmp_path: Path
) -> None:
    write_split(tmp_path, 2)
    pairs = [
        pair("split.no", raw.U16, struct.pack("<H", index)),
        pair("split.count", raw.U16, struct.pack("<H", count)),
        pair("split.tensors.count", raw.I32, struct.pack("<i", tensors)),
    ]
    (tmp_path / name).write_bytes(gguf_bytes(pairs, [tensor("t0", [32])], bytes(128)))
    with pytest.raises(ModelFormatError) as caught:
        GGUFFile.open(tmp_path / name)
    assert words in str(caught.value)


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    paths, _ = write_split(tmp_path, 2)
    paths[1].write_bytes(paths[1].read_bytes().replace(b"t1", b"t0"))
    with pytest.raises(ModelFormatError, match=r"m-00002-of-00002\.gguf: tensor 't0' is in an earlier part too"):
        GGUFFile.open(paths[0])
