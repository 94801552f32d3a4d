"""The `ollama` client, unmodified, against a server on a socket. Skipped where it is not installed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.servers import Site, serve_tiny, tiny_spec_of
from octavo.formats.store import ModelStore

ollama = pytest.importorskip("ollama")

HELLO = [{"role": "user", "content": "Hello there"}]
OPTIONS = {"temperature": 0, "num_predict": 8}


@pytest.fixture
def home(tmp_path: Path, tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server of "tiny", and "mine" in a model folder of its own."""
    monkeypatch.setenv("OCTAVO_MODELS", str(tmp_path / "models"))
    store, body = ModelStore.default(), tiny_gguf().read_bytes()
    store.root.mkdir()
    path = store.path("mine.gguf")
    path.write_bytes(body)
    store.register(path, name="mine", origin="test", sha256=hashlib.sha256(body).hexdigest())
    with serve_tiny(tiny_spec_of(tiny_gguf(), "tiny")) as site:
        yield site


@pytest.fixture
def client(home: Site) -> ollama.Client:
    return ollama.Client(host=home.url)


def same_chat(site: Site) -> str:
    return site.chat("Hello there").json()["choices"][0]["message"]["content"]


def test_chat_and_generate(client: ollama.Client, home: Site) -> None:
    answer = client.chat("tiny", HELLO, options=OPTIONS, keep_alive="5m", think=False)
    assert answer.message.content == same_chat(home)
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "length", 8)
    assert answer.total_duration >= answer.eval_duration > 0
    assert client.generate("tiny", "Hello there", options=OPTIONS).response == answer.message.content
    go_on = [*HELLO, answer.message, {"role": "user", "content": "Go on"}]
    assert client.chat("tiny", go_on, options=OPTIONS).message.role == "assistant"


def test_streams(client: ollama.Client, home: Site) -> None:
    pieces = list(client.chat("tiny", HELLO, options=OPTIONS, stream=True))
    assert "".join(piece.message.content for piece in pieces) == same_chat(home)
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    texts = [piece.response for piece in client.generate("tiny", "Hello there", options=OPTIONS, stream=True)]
    assert "".join(texts) == same_chat(home)


def test_the_async_client(home: Site) -> None:
    async def main() -> list[str]:
        client = ollama.AsyncClient(host=home.url)
        answers = await asyncio.gather(*[client.chat("tiny", HELLO, options=OPTIONS) for _ in range(4)])
        return [answer.message.content for answer in answers]

    assert asyncio.run(main()) == [same_chat(home)] * 4


def test_logprobs(client: ollama.Client) -> None:
    answer = client.chat("tiny", HELLO, options=OPTIONS, logprobs=True, top_logprobs=2)
    assert [len(each.top_logprobs) for each in answer.logprobs] == [2] * 8


def test_vectors(client: ollama.Client) -> None:
    both = client.embed("tiny", ["one", "two"])
    assert len(both.embeddings) == 2
    assert sum(each**2 for each in both.embeddings[0]) == pytest.approx(1, abs=1e-4)
    assert list(client.embeddings("tiny", "one").embedding) == pytest.approx(both.embeddings[0], abs=1e-5)


def test_models(client: ollama.Client) -> None:
    assert [each.model for each in client.list().models] == ["tiny", "mine"]
    shown = client.show("mine")
    assert shown.details.family == "llama"
    assert shown.modelinfo["llama.block_count"] == 2
    assert shown.capabilities == ["completion"]
    client.generate("mine")
    assert [each.model for each in client.ps().models] == ["tiny", "mine"]
    client.generate("mine", keep_alive=0)
    assert client.pull("tiny").status == "success"
    assert [each.status for each in client.pull("tiny", stream=True)] == ["pulling manifest", "success"]
    assert client.copy("mine", "yours").status == "success"
    assert client.create("ours", from_="mine").status == "success"
    assert client.delete("mine").status == "success"
    assert sorted(each.model for each in client.list().models) == ["ours", "tiny", "yours"]


def test_errors(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="no model 'nope'") as caught:
        client.chat("nope", HELLO)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="tools is not supported"):
        client.chat("tiny", HELLO, tools=[{"type": "function", "function": {"name": "f"}}])
    with pytest.raises(ollama.ResponseError, match="holds 256 tokens"):
        list(client.generate("tiny", "word " * 300, stream=True))
    with pytest.raises(ollama.ResponseError, match="not uploaded"):
        client.push("tiny")
    with pytest.raises(ollama.ResponseError, match="format is not supported"):
        client.chat("tiny", HELLO, format="json")
