"""References and downloads, against a hub that runs on the loopback interface."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.web import Web, serve
from octavo.core.errors import DownloadError, ModelNotFoundError
from octavo.formats.catalog import CATALOG
from octavo.formats.download import Silent
from octavo.formats.hub_names import HubReference, choose_file, pieces_of, quant_of
from octavo.formats.references import is_reference, resolve
from octavo.formats.store import ModelStore, file_sha256

BODY = random.Random(2).randbytes(900_000)
FILES = {
    "README.md": b"hello",
    "Tiny-Q8_0.gguf": BODY[:1000],
    "Tiny-Q4_K_M.gguf": BODY,
    "Tiny-UD-Q4_K_M.gguf": BODY[:50],
    "mmproj-F16.gguf": b"x",
    "deep/Tiny-BF16-00001-of-00002.gguf": BODY[:70],
    "deep/Tiny-BF16-00002-of-00002.gguf": BODY[70:200],
}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Web]:
    with serve() as web:
        web.add_hub_repository("org/tiny-GGUF", FILES)
        monkeypatch.setenv("HF_ENDPOINT", web.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr("octavo.formats.download.MAX_PAUSE_S", 0.0)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield web


class Recorder(Silent):
    def __init__(self, stop_at: int | None = None) -> None:
        self.begun: list[tuple[str, int | None]] = []
        self.stop_at = stop_at

    def begin(self, label: str, total_bytes: int | None) -> None:
        self.begun.append((label, total_bytes))

    def update(self, done_bytes: int) -> None:
        if self.stop_at is not None and done_bytes > self.stop_at:
            raise KeyboardInterrupt


# --- names


@pytest.mark.parametrize(
    ("text", "repo", "wanted"),
    [("org/repo", "org/repo", None), ("o/r-1.5_x:Q4_K_M", "o/r-1.5_x", "Q4_K_M"), ("a/b:c/d.gguf", "a/b", "c/d.gguf")],
)
def test_hub_references(text: str, repo: str, wanted: str | None) -> None:
    reference = HubReference.parse(text)
    assert reference == HubReference(repo, wanted)
    assert str(reference) == text


JUNK = ["../x", "a/../b", "a/..", "/a/b", "a/b/c", "a/b:", "a/b:../c", "a/b:/etc", "a/b:c/../../d", "a\0/b", "a/b:c\0"]
JUNK += [
    "a/b:c\\d",
    "a//b",
    "a/b--c",
    "https://x/a/b",
    "a/.b",
    "-a/b",
    "a b/c",
    "a/b\n",
    "a/b:x\ny",
    "",
    "x",
    "a/b:c:d",
]


@pytest.mark.parametrize("text", JUNK)
def test_junk_is_no_hub_reference(text: str, store: ModelStore) -> None:
    assert HubReference.parse(text) is None
    with pytest.raises(ModelNotFoundError):
        resolve(text, store=store)


@given(st.text(alphabet="ab./:\\-\0 ~", max_size=12))
def test_whatever_parses_stays_in_the_folder(text: str) -> None:
    reference = HubReference.parse(text)
    if reference is not None:
        path = ModelStore(Path("/models")).path(f"{reference.repo}/{reference.wanted or 'x'}")
        assert Path("/models") in path.parents


def test_quant_of_a_file_name() -> None:
    names = {
        "SmolLM2.Q4_1.gguf": "Q4_1",
        "x-q4_k_m.gguf": "Q4_K_M",
        "y-UD-IQ2_XXS.gguf": "IQ2_XXS",
        "z-BF16.gguf": "BF16",
    }
    names |= {"dir.Q8_0/plain.gguf": None, "qwen3-4b.gguf": None, "m-00001-of-00002.gguf": None}
    assert {name: quant_of(name) for name in names} == names


def test_pieces_of_a_split_model() -> None:
    assert pieces_of("a/m-00002-of-00002.gguf") == ["a/m-00001-of-00002.gguf", "a/m-00002-of-00002.gguf"]
    assert pieces_of("m.gguf") == ["m.gguf"]


def choose(text: str, names: list[str] | None = None) -> str:
    reference = HubReference.parse(text)
    assert reference is not None
    return choose_file(reference, names or list(FILES))


def test_exact_file_names_and_quantizations() -> None:
    assert choose("o/r:Tiny-Q4_K_M.gguf") == "Tiny-Q4_K_M.gguf"
    assert choose("o/r:q8_0") == "Tiny-Q8_0.gguf"
    assert choose("o/r:mmproj-F16.gguf") == "mmproj-F16.gguf"
    assert choose("o/r:bf16") == "deep/Tiny-BF16-00001-of-00002.gguf"
    assert choose("o/r:Tiny-BF16-00001-of-00002.gguf") == "deep/Tiny-BF16-00001-of-00002.gguf"
    assert choose("o/r:Q4_K", ["a-Q4_K_M.gguf", "a-Q4_K.gguf"]) == "a-Q4_K.gguf"


def test_the_usual_quantization() -> None:
    assert choose("o/r", ["a-Q8_0.gguf", "a-Q4_0.gguf", "a-Q2_K.gguf"]) == "a-Q4_0.gguf"
    assert choose("o/r", ["only-Q2_K.gguf", "mmproj-F16.gguf"]) == "only-Q2_K.gguf"


def test_ambiguous_and_missing_choices_list_what_there_is() -> None:
    with pytest.raises(ModelNotFoundError, match=r"means 2 files.*of: Tiny-Q4_K_M.gguf, Tiny-UD-Q4_K_M.gguf$"):
        choose("o/r:Q4_K_M")
    with pytest.raises(ModelNotFoundError, match=r"o/r has no 'Q6_K'; .*of: Tiny-Q8_0.gguf, .*BF16-00001"):
        choose("o/r:Q6_K")
    with pytest.raises(ModelNotFoundError, match=r"none of a usual quantization.*of: a.gguf, b.gguf"):
        choose("o/r", ["a.gguf", "b.gguf"])
    with pytest.raises(ModelNotFoundError, match=r"has no \.gguf file"):
        choose("o/r", ["model.safetensors"])


# --- local references


def test_paths(tmp_path: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "some" / "folder"
    folder.mkdir(parents=True)
    (folder / "m.gguf").write_bytes(b"x")
    (tmp_path / "odd.bin").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in (str(folder / "m.gguf"), "some/folder/m.gguf", "./some/folder", "some/folder", "~/some/folder/m.gguf"):
        assert resolve(text, store=store).samefile(folder / "m.gguf")
    assert resolve("./odd.bin", store=store) == Path("odd.bin")
    (folder / "n.gguf").write_bytes(b"x")
    with pytest.raises(ModelNotFoundError, match=r"has 2 models; name one of: m.gguf, n.gguf"):
        resolve("some/folder", store=store)


def test_strangers_name_no_files_outside_of_the_folder(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "m.gguf").write_bytes(b"GGUF")
    for text in ("folder/m.gguf", "./folder/m.gguf", str(tmp_path / "folder" / "m.gguf"), "folder/m"):
        with pytest.raises((ModelNotFoundError, DownloadError)):
            resolve(text, store=store, download=False, paths=False)
    with pytest.raises(ModelNotFoundError, match="no model file"):
        resolve("./folder", store=store, paths=False)
    assert resolve("folder/m.gguf", store=store, download=False).name == "m.gguf"


@pytest.mark.parametrize("text", ["./none.gguf", "none.gguf", "org/none.gguf", "/x" * 3000])
def test_a_missing_file_is_an_error_about_a_file(text: str, store: ModelStore) -> None:
    with pytest.raises(ModelNotFoundError):
        resolve(text, store=store)


def test_an_unknown_name_gets_near_ones_and_the_kinds_of_reference(store: ModelStore) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("smolm2", store=store)
    message = str(caught.value)
    assert "did you mean smollm2?" in message
    assert "path to a .gguf file" in message
    assert "org/repo" in message
    assert "\n" not in message


def test_short_names_are_trusted_once_verified(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CATALOG["smollm2"]
    with pytest.raises(ModelNotFoundError, match="`octavo pull smollm2` downloads it"):
        resolve("smollm2", download=False, store=store)
    path = store.path(model.file)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"other")
    with pytest.raises(ModelNotFoundError, match="octavo pull"):
        resolve("smollm2", download=False, store=store)
    store.register(path, name=model.name, origin="", sha256=model.sha256)
    monkeypatch.setattr("octavo.formats.references.file_sha256", lambda path: pytest.fail("hashed again"))
    assert resolve("smollm2", download=False, store=store) == path


def test_a_short_names_file_that_was_copied_there_is_verified(store: ModelStore, real_model: object) -> None:
    source = real_model("SmolLM2-135M-Instruct.Q4_1.gguf")  # type: ignore[operator]
    path = store.path(source.name)
    path.parent.mkdir(parents=True)
    os.symlink(source, path)
    assert resolve("smollm2", download=False, store=store) == path
    assert store.is_verified(path, CATALOG["smollm2"].sha256)


def test_is_reference(store: ModelStore, tmp_path: Path) -> None:
    assert is_reference("smollm2", store)
    assert is_reference("org/repo:Q4_K_M", store)
    assert is_reference("missing.gguf", store)
    assert is_reference(f"{tmp_path}/", store)
    for prompt in ("Hello", "What is 1/2 of 3?", "and/or what?", "", "a\nb", "x" * 2000, "smolm2"):
        assert not is_reference(prompt, store)


# --- the hub


def test_download_keeps_a_readable_name_and_a_record(hub: Web, store: ModelStore) -> None:
    progress = Recorder()
    path = resolve("org/tiny-GGUF:Tiny-Q4_K_M.gguf", store=store, progress=progress)
    assert path == store.root / "org" / "tiny-GGUF" / "Tiny-Q4_K_M.gguf"
    assert path.read_bytes() == BODY
    assert progress.begun == [("Tiny-Q4_K_M.gguf", len(BODY))]
    record = store.record(path)
    assert record is not None
    assert (record.name, record.licence, record.sha256) == (
        "org/tiny-GGUF:Tiny-Q4_K_M.gguf",
        "apache-2.0",
        file_sha256(path),
    )
    assert record.origin.startswith("Hugging Face org/tiny-GGUF at ")
    assert store.partials() == []


def test_a_model_that_is_there_needs_no_network(hub: Web, store: ModelStore) -> None:
    first = resolve("org/tiny-GGUF:q8_0", store=store)
    asked = len(hub.requests)
    for text in ("org/tiny-GGUF:Q8_0", "org/tiny-GGUF", "org/tiny-GGUF:Tiny-Q8_0.gguf", "Tiny-Q8_0.gguf"):
        assert resolve(text, store=store, download=False) == first
    assert len(hub.requests) == asked
    with pytest.raises(ModelNotFoundError, match="has no 'Q4_K_M'"):
        resolve("org/tiny-GGUF:Q4_K_M", store=store, download=False)
    with pytest.raises(ModelNotFoundError, match="`octavo pull o/other` downloads it"):
        resolve("o/other", store=store, download=False)


def test_interruption_and_resume(hub: Web, store: ModelStore) -> None:
    with pytest.raises(KeyboardInterrupt):
        resolve("org/tiny-GGUF:Tiny-Q4_K_M.gguf", store=store, progress=Recorder(stop_at=300_000))
    (left,) = store.partials()
    assert left.name == "org/tiny-GGUF:Tiny-Q4_K_M.gguf"
    assert 300_000 < left.size_bytes < len(BODY)
    assert store.models() == []
    path = resolve("org/tiny-GGUF:Tiny-Q4_K_M.gguf", store=store)
    assert path.read_bytes() == BODY
    where = next(where for where, _ in reversed(hub.requests) if where.endswith("Tiny-Q4_K_M.gguf"))
    assert [headers.get("range") for headers in hub.asked(where)] == [None, f"bytes={left.size_bytes}-"]


def test_a_connection_that_breaks_is_taken_up_again(hub: Web, store: ModelStore) -> None:
    where = next(path for path in hub.pages if path.endswith("/Tiny-Q4_K_M.gguf"))
    hub.cuts[where] = [100_000, 200_000]
    assert resolve("org/tiny-GGUF:Tiny-Q4_K_M.gguf", store=store).read_bytes() == BODY


def test_all_pieces_of_a_split_model_come(hub: Web, store: ModelStore) -> None:
    path = resolve("org/tiny-GGUF:BF16", store=store)
    assert path.name == "Tiny-BF16-00001-of-00002.gguf"
    (model,) = store.models()
    assert [each.read_bytes() for each in model.paths] == [BODY[:70], BODY[70:200]]
    model.paths[1].unlink()
    resolve("org/tiny-GGUF:BF16", store=store)
    assert model.paths[1].exists(), "a missing piece is fetched again"


def test_a_changed_file_is_fetched_again(hub: Web, store: ModelStore) -> None:
    path = resolve("org/tiny-GGUF:Q8_0", store=store)
    os.utime(path, ns=(5, 5))
    asked = len(hub.requests)
    resolve("org/tiny-GGUF:Q8_0", store=store)
    assert len(hub.requests) == asked, "the same bytes with another time are hashed, not fetched"
    path.write_bytes(b"damaged")
    assert resolve("org/tiny-GGUF:Q8_0", store=store).read_bytes() == BODY[:1000]


def test_content_other_than_the_hubs_digest_is_refused(hub: Web, store: ModelStore) -> None:
    where = next(path for path in hub.pages if path.endswith("/Tiny-Q8_0.gguf"))
    hub.pages[where] = BODY[:1000][::-1]
    with pytest.raises(DownloadError, match="expected"):
        resolve("org/tiny-GGUF:Q8_0", store=store)
    assert store.models() == []


def test_a_token_goes_to_the_hub(hub: Web, store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    resolve("org/tiny-GGUF:Q8_0", store=store)
    assert {headers.get("authorization") for _, headers in hub.requests} == {"Bearer hf_secret"}


def test_an_unknown_repository(hub: Web, store: ModelStore) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no public repository org/none; if it is private, set HF_TOKEN"):
        resolve("org/none", store=store)


def test_an_unreachable_hub_says_so_in_one_line(hub: Web, store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as gone:
        monkeypatch.setenv("HF_ENDPOINT", gone.url)
    with pytest.raises(DownloadError) as caught:
        resolve("org/tiny-GGUF", store=store)
    message = str(caught.value)
    assert message.startswith("cannot reach Hugging Face for org/tiny-GGUF")
    assert message.endswith("Connection refused")
    assert "path of a .gguf file" in message
    assert "\n" not in message


def test_a_model_folder_that_cannot_be_made(tmp_path: Path, hub: Web) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match=r"cannot use the model folder .*OCTAVO_MODELS"):
        resolve("org/tiny-GGUF:Q8_0", store=ModelStore(tmp_path / "file" / "models"))
