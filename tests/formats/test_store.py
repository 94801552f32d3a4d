"""The model folder: names, records, verification, removal, locks."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.errors import ModelError, ModelNotFoundError
from octavo.formats.store import ModelStore, file_sha256


def put(store: ModelStore, relative: str, body: bytes = b"GGUF", name: str | None = None) -> Path:
    path = store.path(relative)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    if name:
        store.register(path, name=name, origin="test", sha256=hashlib.sha256(body).hexdigest(), licence="MIT")
    return path


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


def test_default_folder_is_the_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_MODELS", str(tmp_path / "here"))
    assert ModelStore.default().root == tmp_path / "here"


def test_a_folder_that_does_not_exist_is_empty(store: ModelStore) -> None:
    assert (store.models(), store.partials(), store.find("x")) == ([], [], None)


def test_models_lists_records_and_loose_files(store: ModelStore) -> None:
    put(store, "b.gguf", name="short")
    put(store, "org/repo/a.gguf", name="org/repo:a.gguf")
    loose = put(store, "Loose.gguf", b"12345")
    put(store, "notes.txt")
    (store.root / ".partial").mkdir()
    (store.root / ".partial" / "c.gguf").write_bytes(b"x")
    assert [model.name for model in store.models()] == ["Loose.gguf", "org/repo:a.gguf", "short"]
    model = store.find("Loose.gguf")
    assert model is not None
    assert (model.path, model.size_bytes, model.record) == (loose, 5, None)


def test_find_by_name_or_file_name(store: ModelStore) -> None:
    path = put(store, "org/repo/a.gguf", name="org/repo:a.gguf")
    for name in ("org/repo:a.gguf", "org/repo/a.gguf", "a.gguf"):
        found = store.find(name)
        assert found is not None
        assert found.path == path
    put(store, "other/repo/a.gguf", name="other/repo:a.gguf")
    assert store.find("a.gguf") is None, "ambiguous"


def test_verification_is_trusted_until_size_or_time_change(store: ModelStore) -> None:
    path = put(store, "a.gguf", b"1234", name="a")
    digest = hashlib.sha256(b"1234").hexdigest()
    assert store.is_verified(path)
    assert store.is_verified(path, digest)
    assert not store.is_verified(path, "0" * 64)
    os.utime(path, ns=(1, 1))
    assert not store.is_verified(path, digest)
    path.unlink()
    assert not store.is_verified(path, digest)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 1}', "\xff"])
def test_a_broken_record_is_no_record(store: ModelStore, text: str) -> None:
    path = put(store, "a.gguf", name="a")
    path.with_name("a.gguf.json").write_text(text, "latin-1")
    assert store.record(path) is None
    assert [model.name for model in store.models()] == ["a.gguf"]
    assert not store.is_verified(path)


def test_the_record_is_readable_json(store: ModelStore) -> None:
    path = put(store, "a.gguf", name="a")
    fields = json.loads(path.with_name("a.gguf.json").read_text())
    assert fields["sha256"] == file_sha256(path)
    assert fields["origin"] == "test"
    assert fields["fetched"].endswith("Z")


def test_remove_deletes_file_record_partial_and_empty_folders(store: ModelStore) -> None:
    path = put(store, "org/repo/a.gguf", b"123", name="org/repo:a.gguf")
    piece = store.partial_folder("org/repo:a.gguf") / "a.gguf.part"
    piece.parent.mkdir(parents=True)
    piece.write_bytes(b"1234567")
    assert [(each.name, each.size_bytes) for each in store.partials()] == [("org/repo:a.gguf", 7)]
    removed = store.remove("a.gguf")
    assert removed.freed_bytes == 10
    assert path in removed.paths
    assert not (store.root / "org").exists()
    assert store.partials() == []
    with pytest.raises(ModelNotFoundError, match=r"no model 'a.gguf'.*there is: nothing"):
        store.remove("a.gguf")


def test_remove_takes_what_an_interrupted_download_left(store: ModelStore) -> None:
    store.partial_folder("m").mkdir(parents=True)
    assert store.remove("m").paths == (store.partial_folder("m"),)


def test_a_split_model_is_one(store: ModelStore) -> None:
    put(store, "big-00001-of-00002.gguf", b"12", name="o/r:big-00001-of-00002.gguf")
    put(store, "big-00002-of-00002.gguf", b"345", name="o/r:big-00002-of-00002.gguf")
    (model,) = store.models()
    assert (model.size_bytes, len(model.paths)) == (5, 2)
    assert store.remove(model.name).freed_bytes == 5
    assert list(store.root.glob("*.gguf*")) == []


def test_a_copy_is_the_same_file_by_another_name(store: ModelStore) -> None:
    original = put(store, "a.gguf", b"GGUF one", "one")
    copied = store.copy("one", "mine:v2")
    assert copied.path == store.root / "mine-v2.gguf"
    assert copied.path.stat().st_ino == original.stat().st_ino
    assert store.find("mine:v2") == copied
    assert copied.record is not None
    assert (copied.record.sha256, copied.record.licence) == (hashlib.sha256(b"GGUF one").hexdigest(), "MIT")
    assert store.is_verified(copied.path)
    store.remove("one")
    assert copied.path.read_bytes() == b"GGUF one"


def test_a_copy_of_a_split_model_has_all_its_pieces(store: ModelStore) -> None:
    names = [f"big-0000{number}-of-00002.gguf" for number in (1, 2)]
    for name in names:
        put(store, name, name.encode())
    copied = store.copy(names[0], "mine")
    assert [path.name for path in copied.paths] == ["mine-00001-of-00002.gguf", "mine-00002-of-00002.gguf"]
    assert [path.read_bytes().decode() for path in copied.paths] == names
    assert [model.name for model in store.models()] == [names[0], "mine"]


def test_a_copy_takes_no_name_that_is_there(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "a.gguf", name="one")
    put(store, "b.gguf", name="two")
    with pytest.raises(ModelNotFoundError, match="no model 'three'"):
        store.copy("three", "four")
    for taken in ("two", "b"):
        with pytest.raises(ModelError, match=f"there is a model '{taken}' already"):
            store.copy("one", taken)
    with pytest.raises(ModelNotFoundError, match="cannot be a file name"):
        store.copy("one", "../x")

    def fail(*paths: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(ModelError, match="cannot be linked as 'five': operation not permitted"):
        store.copy("one", "five")
    assert [model.name for model in store.models()] == ["one", "two"]


@given(st.text(max_size=30))
def test_no_name_leads_out_of_the_folder(relative: str) -> None:
    store = ModelStore(Path("/nowhere/models"))
    try:
        path = store.path(relative)
    except ModelNotFoundError:
        return
    assert store.root in path.parents
    assert ".." not in path.parts


@pytest.mark.parametrize("bad", ["", "/etc/passwd", "../a", "a/../../b", "a\0b", ".hidden", "a\\b", "a/./../b", "."])
def test_junk_names_are_refused(store: ModelStore, bad: str) -> None:
    with pytest.raises(ModelNotFoundError, match="cannot be a file name"):
        store.path(bad)


def test_a_second_process_waits_for_the_lock(store: ModelStore) -> None:
    waiting, held = threading.Event(), threading.Event()
    order: list[str] = []

    def second() -> None:
        held.wait(10)
        with store.lock("m", waiting.set):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with store.lock("m"):
        held.set()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_a_model_under_download_is_not_removed(store: ModelStore) -> None:
    put(store, "a.gguf", name="a")
    code = "import sys; from pathlib import Path; from octavo.formats.store import ModelStore\n"
    code += "ModelStore(Path(sys.argv[1])).remove('a')"
    with store.lock("a"):
        result = subprocess.run([sys.executable, "-c", code, str(store.root)], capture_output=True, text=True)
        with pytest.raises(ModelError, match="being downloaded"):
            store.remove("a")
    assert "being downloaded" in result.stderr
    assert store.find("a") is not None
