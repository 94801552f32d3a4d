"""What Ollama's API says of models, and how it changes what there is; on a model folder of the test's own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.servers import Site, serve_tiny, tiny_spec_of
from helpers.tiny import CHAT_TEMPLATE
from helpers.web import Web, serve
from octavo.formats.store import ModelStore
from octavo.server.config import ServerConfig
from octavo.server.models import ServedModel
from octavo.server.ollama.names import changes_allowed, plain_name
from octavo.server.ollama.pull import without_paths

OPTIONS = {"temperature": 0, "num_predict": 4}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    monkeypatch.setenv("OCTAVO_MODELS", str(tmp_path / "models"))
    return ModelStore.default()


@pytest.fixture
def put(store: ModelStore, tiny_gguf: Callable[..., Path]) -> Callable[[str], Path]:
    """Put a model into the folder under a name, as a download does."""

    def make(name: str) -> Path:
        body = tiny_gguf().read_bytes()
        path = store.path(f"{name}.gguf")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        store.register(path, name=name, origin="test", sha256=hashlib.sha256(body).hexdigest(), licence="MIT")
        return path

    return make


@pytest.fixture
def home(store: ModelStore, tiny_gguf: Callable[..., Path]) -> Iterator[Site]:
    """A server of "tiny", whose file lies outside of the folder."""
    with serve_tiny(tiny_spec_of(tiny_gguf(), "tiny")) as site:
        yield site


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    with serve() as web:
        monkeypatch.setenv("HF_ENDPOINT", web.url)
        yield web


def names(site: Site) -> list[str]:
    return [each["name"] for each in site.http.get("/api/tags").json()["models"]]


def delete(site: Site, **body: Any) -> httpx.Response:
    return site.http.request("DELETE", "/api/delete", json=body)


def text(site: Site, model: str) -> str:
    answer = site.post("/api/generate", model=model, prompt="Hello", stream=False, options=OPTIONS)
    assert answer.status_code == 200, answer.text
    return answer.json()["response"]


def test_tags_lists_what_is_served_and_the_folder(home: Site, put: Callable[[str], Path]) -> None:
    path = put("mine")
    listed = {each["name"]: each for each in home.http.get("/api/tags").json()["models"]}
    assert list(listed) == ["tiny", "mine"]
    mine = listed["mine"]
    assert (mine["model"], mine["size"]) == ("mine", path.stat().st_size)
    assert mine["digest"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert datetime.fromisoformat(mine["modified_at"]).timestamp() == pytest.approx(path.stat().st_mtime, abs=1e-3)
    details = mine["details"]
    assert (details["format"], details["family"], details["quantization_level"]) == ("gguf", "llama", "F32")
    assert re.fullmatch(r"[\d.]+K", details["parameter_size"])
    assert len(listed["tiny"]["digest"]) == 32


def test_a_name_is_listed_once(home: Site, put: Callable[[str], Path]) -> None:
    put("tiny")
    assert names(home) == ["tiny"]


def test_a_broken_file_in_the_folder_hides_no_other(home: Site, store: ModelStore, put: Callable[[str], Path]) -> None:
    put("mine")
    (store.root / "broken.gguf").write_bytes(b"GGUF")
    assert names(home) == ["tiny", "mine"]


def test_a_model_of_the_folder_is_served_when_it_is_named(home: Site, put: Callable[[str], Path]) -> None:
    put("mine")
    assert text(home, "mine:latest") == text(home, "tiny:latest") != ""
    listed = [each["id"] for each in home.http.get("/v1/models").json()["data"]]
    assert listed == ["tiny", "mine"]
    assert names(home) == ["tiny", "mine"]


def test_ps_lists_what_is_loaded(home: Site) -> None:
    text(home, "tiny")
    (running,) = home.http.get("/api/ps").json()["models"]
    assert (running["name"], running["context_length"], running["size_vram"]) == ("tiny", 256, 0)
    assert running["size"] == home.llm.memory_plan.total_bytes
    assert datetime.fromisoformat(running["expires_at"]).year == 9999
    home.service.registry.models[0].expires = home.service.registry.models[0].last_used + 3600
    (running,) = home.http.get("/api/ps").json()["models"]
    assert 0 < datetime.fromisoformat(running["expires_at"]).timestamp() - datetime.now().timestamp() <= 3600


def test_show(home: Site, put: Callable[[str], Path]) -> None:
    put("mine")
    shown = home.post("/api/show", model="mine").json()
    assert (shown["template"], shown["license"], shown["parameters"]) == (CHAT_TEMPLATE, "MIT", "")
    assert shown["capabilities"] == ["completion"]
    assert shown["model_info"]["llama.context_length"] == 512
    assert shown["model_info"]["tokenizer.ggml.tokens"] is None
    assert shown["modelfile"].startswith("FROM mine\n")
    verbose = home.post("/api/show", name="mine", verbose=True).json()
    assert len(verbose["model_info"]["tokenizer.ggml.tokens"]) == 320
    loaded = home.post("/api/show", model="tiny").json()["parameters"].splitlines()
    assert [each.split() for each in loaded][:2] == [["num_ctx", "256"], ["stop", '"<|endoftext|>"']]


def test_no_reply_names_a_path(home: Site, store: ModelStore, put: Callable[[str], Path]) -> None:
    put("mine")
    replies = [home.http.get("/api/tags"), home.http.get("/api/ps"), home.post("/api/show", model="mine")]
    replies += [home.post("/api/copy", source="mine", destination="mine"), delete(home, model="tiny")]
    for reply in replies:
        assert str(store.root) not in reply.text
        assert str(store.root.parent) not in reply.text


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/show", {"model": "nope"}, 404, "no model 'nope'"),
        ("/api/show", {}, 400, "^model is missing"),
        ("/api/show", {"model": "tiny", "name": "other"}, 400, "^model and name differ"),
        ("/api/show", {"model": "../x"}, 400, "cannot be the name"),
        ("/api/show", {"model": "tiny", "template": "x"}, 400, "^template is not supported"),
        ("/api/copy", {"source": "nope", "destination": "x"}, 404, "no model 'nope'"),
        ("/api/copy", {"source": "tiny", "destination": "x"}, 400, "^tiny is not in the model folder"),
        ("/api/create", {"model": "x", "from": "tiny", "system": "Hi"}, 400, "^system is not supported"),
        ("/api/create", {"model": "x", "from": "tiny", "quantize": "q4_0"}, 400, "^quantize is not supported"),
        ("/api/create", {"model": "x"}, 400, "^from is missing"),
        ("/api/push", {"model": "tiny"}, 400, "not uploaded"),
        ("/api/blobs/sha256:00", {}, 400, "not uploaded"),
        ("/api/pull", {"model": "tiny", "insecure": True}, 400, "^insecure is not supported"),
    ],
)
def test_refused(home: Site, path: str, body: dict[str, Any], status: int, words: str) -> None:
    answer = home.post(path, body)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    assert re.search(words, answer.json()["error"]), answer.text


def test_a_copy_is_another_name_and_outlives_the_original(home: Site, put: Callable[[str], Path]) -> None:
    put("mine")
    assert home.post("/api/copy", source="mine", destination="yours:v1").status_code == 200
    assert names(home) == ["tiny", "mine", "yours:v1"]
    assert delete(home, model="mine").status_code == 200
    assert names(home) == ["tiny", "yours:v1"]
    assert text(home, "yours:v1") == text(home, "tiny")
    assert home.post("/api/show", model="mine").status_code == 404


@pytest.mark.parametrize("name", ["a/b", "../x", ".x", "", "smollm2", "a b", "x" * 200])
def test_a_copy_needs_a_plain_name(home: Site, put: Callable[[str], Path], name: str) -> None:
    put("mine")
    answer = home.post("/api/copy", source="mine", destination=name)
    assert answer.status_code == 400, answer.text
    assert names(home) == ["tiny", "mine"]


def test_a_copy_takes_no_other_models_name(home: Site, put: Callable[[str], Path]) -> None:
    put("mine")
    put("yours")
    answer = home.post("/api/copy", source="mine", destination="yours")
    assert (answer.status_code, "there is a model 'yours' already" in answer.text) == (409, True)


@pytest.mark.parametrize("stream", [True, False, None])
def test_create_is_a_copy(home: Site, put: Callable[[str], Path], stream: bool | None) -> None:
    put("mine")
    answer = home.post("/api/create", {"model": "yours", "from": "mine", "stream": stream})
    assert json.loads(answer.text.splitlines()[-1]) == {"status": "success"}
    assert "yours" in names(home)


def test_what_the_server_was_started_with_is_not_deleted(store: ModelStore, put: Callable[[str], Path]) -> None:
    path = put("mine")
    with serve_tiny(tiny_spec_of(path, "served")) as site:
        for name in ("served", "mine"):
            answer = delete(site, model=name)
            assert answer.status_code == 409, answer.text
            assert "the server was started with served" in answer.json()["error"]
    assert path.exists()


def test_a_loaded_model_is_unloaded_and_deleted(home: Site, store: ModelStore, put: Callable[[str], Path]) -> None:
    path = put("mine")
    text(home, "mine")
    model = home.service.registry.find("mine")
    home.do(_until_idle(model))
    assert delete(home, model="mine").status_code == 200
    assert (model.state, path.exists(), store.models()) == ("unloaded", False, [])


async def _until_idle(model: ServedModel) -> None:
    while model.users:
        await asyncio.sleep(0.001)


def test_a_model_in_use_is_not_deleted(home: Site, put: Callable[[str], Path]) -> None:
    path = put("mine")
    home.post("/api/show", model="mine")
    model = home.service.registry.find("mine")
    model.users += 1
    try:
        answer = delete(home, model="mine")
    finally:
        model.users -= 1
    assert (answer.status_code, "mine is in use" in answer.text, path.exists()) == (409, True, True)


def test_pull_downloads_and_serves(home: Site, store: ModelStore, hub: Web, tiny_gguf: Callable[..., Path]) -> None:
    body = tiny_gguf().read_bytes()
    hub.add_hub_repository("org/repo", {"tiny-Q4_0.gguf": body})
    answer = home.post("/api/pull", model="hf.co/org/repo:Q4_0")
    assert answer.headers["content-type"] == "application/x-ndjson"
    statuses = [json.loads(each) for each in answer.text.splitlines()]
    assert statuses[0] == {"status": "pulling manifest"}
    assert statuses[-1] == {"status": "success"}
    progress = [each for each in statuses if "completed" in each]
    assert all(each["completed"] <= each["total"] == len(body) for each in progress)
    assert store.path("org/repo/tiny-Q4_0.gguf").read_bytes() == body
    assert text(home, "org/repo:Q4_0") == text(home, "hf.co/org/repo:Q4_0") == text(home, "tiny")
    asked = len(hub.requests)
    assert home.post("/api/pull", model="org/repo:Q4_0", stream=False).json() == {"status": "success"}
    assert len(hub.requests) == asked


def test_pull_of_what_is_served_fetches_nothing(home: Site, hub: Web) -> None:
    assert home.post("/api/pull", model="tiny:latest", stream=False).json() == {"status": "success"}
    assert hub.requests == []


def test_pull_says_why_it_failed(home: Site, hub: Web) -> None:
    missing = home.post("/api/pull", model="org/none", stream=False)
    assert missing.status_code == 404
    assert "no public repository org/none" in missing.json()["error"]
    streamed = home.post("/api/pull", model="org/none")
    assert streamed.status_code == 200
    assert "no public repository" in json.loads(streamed.text.splitlines()[-1])["error"]
    hub.statuses["/api/models/org/down"] = [500] * 20
    assert home.post("/api/pull", model="org/down", stream=False).status_code == 424


def test_strangers_pull_no_files_of_this_machine(
    home: Site, hub: Web, tiny_gguf: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "m.gguf").write_bytes(tiny_gguf().read_bytes())
    monkeypatch.chdir(tmp_path)
    for name in ("folder/m.gguf", "./folder/m.gguf", str(tmp_path / "folder" / "m.gguf"), "../x", "a\0b"):
        answer = home.post("/api/pull", model=name, stream=False)
        assert answer.status_code in (400, 404), answer.text
        assert str(tmp_path) not in answer.json()["error"].replace(repr(name), "")
    assert names(home) == ["tiny"]


def test_changes_can_be_forbidden(tiny_gguf: Callable[..., Path], put: Callable[[str], Path]) -> None:
    put("mine")
    with serve_tiny(tiny_spec_of(tiny_gguf(), "tiny"), allow_model_changes=False) as site:
        refused = [
            site.post("/api/pull", model="smollm2"),
            site.post("/api/copy", source="tiny", destination="x"),
            site.post("/api/create", {"model": "x", "from": "tiny"}),
            delete(site, model="mine"),
        ]
        assert [each.status_code for each in refused] == [403] * 4
        assert all("--model-changes" in each.json()["error"] for each in refused)
        assert names(site) == ["tiny"]
        assert site.post("/api/generate", model="mine", prompt="a").status_code == 404


@pytest.mark.parametrize(
    ("host", "asked", "allowed"),
    [
        ("127.0.0.1", None, True),
        ("::1", None, True),
        ("0.0.0.0", None, False),
        ("0.0.0.0", True, True),
        ("::1", False, False),
    ],
)
def test_who_may_change_models(host: str, asked: bool | None, allowed: bool) -> None:
    assert changes_allowed(ServerConfig(host=host, allow_model_changes=asked)) is allowed


def test_names_as_ollama_writes_them() -> None:
    given = ["a", "a:latest", "a:v1", "hf.co/o/r:Q4_0", "huggingface.co/o/r:latest"]
    assert [plain_name(each) for each in given] == ["a", "a", "a:v1", "o/r:Q4_0", "o/r"]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("x needs 5 MB and /root/models has 3 MB", "x needs 5 MB and ... has 3 MB"),
        ("cannot write '/a/b c'", "cannot write '... c'"),
        ("~/x is not it", "... is not it"),
        ("cannot download https://hub.org/a/b: HTTP 500", "cannot download https://hub.org/a/b: HTTP 500"),
        ("no public repository org/repo", "no public repository org/repo"),
    ],
)
def test_paths_are_kept_from_strangers(message: str, told: str) -> None:
    assert without_paths(Exception(message)) == told
