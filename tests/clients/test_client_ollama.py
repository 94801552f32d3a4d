"""The `ollama` package."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

ollama = pytest.importorskip("ollama")

ASKED = [{"role": "user", "content": "Name three colours."}]
GREEDY = {"temperature": 0, "num_predict": 12}


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return ollama.Client(host=url)


def names(listing: Any) -> list[str]:
    return [each.model.removesuffix(":latest") for each in listing.models]


def test_listings(client: Any, model: str) -> None:
    assert model in names(client.list())
    assert client.show(model).details.family == "llama"
    client.generate(model, "Hello", options={"num_predict": 1})
    assert model in names(client.ps())


def test_generate(client: Any, model: str) -> None:
    whole = client.generate(model, "The capital of France is", options=GREEDY)
    assert whole.done
    assert whole.eval_count <= 12
    assert whole.total_duration > 0
    pieces = list(client.generate(model, "The capital of France is", options=GREEDY, stream=True))
    assert "".join(piece.response for piece in pieces) == whole.response
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert client.generate(model, "Once upon a time", raw=True, options=GREEDY).response


def test_chat(client: Any, model: str) -> None:
    whole = client.chat(model, ASKED, options=GREEDY)
    assert whole.message.role == "assistant"
    assert whole.done_reason in ("stop", "length")
    streamed = "".join(piece.message.content for piece in client.chat(model, ASKED, options=GREEDY, stream=True))
    assert streamed == whole.message.content


def test_embed(client: Any, model: str) -> None:
    answer = client.embed(model, ["a cat", "tax law"])
    assert len(answer.embeddings) == 2
    assert len(answer.embeddings[0]) == len(client.embeddings(model, "a cat").embedding)


def test_errors_are_the_clients_own(client: Any) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat("huge", ASKED)
    assert caught.value.status_code == 404


def test_async(url: str, model: str) -> None:
    async def ask() -> str:
        stream = await ollama.AsyncClient(host=url).chat(model, ASKED, options=GREEDY, stream=True)
        return "".join([piece.message.content async for piece in stream])

    assert asyncio.run(ask())
