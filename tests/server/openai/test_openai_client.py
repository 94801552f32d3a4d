"""OpenAI's own client, unmodified."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from helpers.servers import Site

openai = pytest.importorskip("openai")

MESSAGES: list[Any] = [{"role": "user", "content": "Hello there"}]


@pytest.fixture(scope="module")
def client(site: Site) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "alias"]
    assert client.models.retrieve("tiny").owned_by == "octavo"


def test_chat_whole_and_streamed(client: Any) -> None:
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0, "logprobs": True}
    whole = client.chat.completions.create(**asked, top_logprobs=2)
    assert whole.choices[0].finish_reason == "length"
    assert len(whole.choices[0].logprobs.content) == 8
    assert whole.usage.prompt_tokens_details.cached_tokens is not None
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 8


def test_an_answer_can_be_sent_back(client: Any) -> None:
    first = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4).choices[0].message
    again = [*MESSAGES, first, {"role": "user", "content": "Go on"}]
    assert client.chat.completions.create(model="tiny", messages=again, max_tokens=4).choices


def test_stream_helper(client: Any) -> None:
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    text = client.chat.completions.create(**asked).choices[0].message.content
    # It takes an answer that was cut off for an error, so this one ends by a stop string.
    with client.chat.completions.stream(**asked, stop=text[3:5]) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == text[:3]


def test_completions(client: Any) -> None:
    made = client.completions.create(model="tiny", prompt=["a b", "c"], max_tokens=4, logprobs=1, echo=True)
    assert [choice.index for choice in made.choices] == [0, 1]
    streamed = client.completions.create(model="tiny", prompt="a b", max_tokens=4, stream=True)
    assert [chunk.choices[0].finish_reason for chunk in streamed][-1] == "length"


def test_embeddings(client: Any) -> None:
    """The client asks for base64 by itself, and unpacks it."""
    made = client.embeddings.create(model="tiny", input=["one", "two"])
    assert [len(each.embedding) for each in made.data] == [64, 64]


def test_responses(client: Any) -> None:
    first = client.responses.create(model="tiny", input="Hello", max_output_tokens=6, temperature=0)
    assert first.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    names, text = [], ""
    asked = {"model": "tiny", "input": "Hello", "max_output_tokens": 6, "temperature": 0}
    for event in client.responses.create(**asked, stream=True):
        names.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert (names[0], names[-1]) == ("response.created", "response.incomplete")
    assert text == first.output_text
    more = client.responses.create(**{**asked, "input": "And?"}, previous_response_id=first.id)
    assert more.previous_response_id == first.id
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_errors_have_their_classes(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="word " * 500)
    assert caught.value.code == "context_length_exceeded"
