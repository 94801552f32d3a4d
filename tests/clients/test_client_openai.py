"""The `openai` package."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

openai = pytest.importorskip("openai")

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_models(client: Any, model: str) -> None:
    assert [each.id for each in client.models.list()] == [model]
    assert client.models.retrieve(model).object == "model"


def test_chat(client: Any, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=ASKED, max_tokens=16, temperature=0)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


def test_chat_streams_what_it_answers_whole(client: Any, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "messages": ASKED, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(pieces) == whole
    assert len([piece for piece in pieces if piece]) > 4
    assert chunks[-1].choices == []
    assert 0 < chunks[-1].usage.completion_tokens <= 16
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")


def test_chat_stream_helper(client: Any, model: str) -> None:
    with client.chat.completions.stream(model=model, messages=ASKED, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content


def test_chat_options(client: Any, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=ASKED,
        max_completion_tokens=6,
        n=2,
        seed=3,
        stop=["\n\n\n"],
        top_p=0.9,
        temperature=0.8,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"42": -100},
        logprobs=True,
        top_logprobs=2,
        user="somebody",
        extra_body={"top_k": 20, "min_p": 0.01, "ignore_eos": True},
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert len(choice.logprobs.content) == 6
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)


def test_completions(client: Any, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}
    whole = client.completions.create(**asked)
    assert "Paris" in whole.choices[0].text
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True))
    assert streamed == whole.choices[0].text
    several = client.completions.create(model=model, prompt=["One", "Two"], max_tokens=2, echo=True, logprobs=1)
    assert [choice.text[:3] for choice in several.choices] == ["One", "Two"]
    assert client.completions.create(model=model, prompt=[[1, 2, 3]], max_tokens=2).usage.prompt_tokens == 3


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}])
def test_embeddings(client: Any, model: str, options: dict[str, Any]) -> None:
    """If nothing is said, the client asks for base64 and decodes it."""
    answer = client.embeddings.create(model=model, input=["a cat", "a kitten", "tax law"], **options)
    vectors = [each.embedding for each in answer.data]
    assert len({len(vector) for vector in vectors}) == 1
    for vector in vectors:
        assert sum(x * x for x in vector) == pytest.approx(1, abs=1e-3)
    assert answer.usage.prompt_tokens > 0


def test_responses(client: Any, model: str) -> None:
    first = client.responses.create(
        model=model, input="My name is Ada.", instructions="Be brief.", max_output_tokens=16, temperature=0
    )
    assert first.output_text
    assert first.status in ("completed", "incomplete")
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(
        model=model, input="What is my name?", previous_response_id=first.id, max_output_tokens=16
    )
    assert second.usage.input_tokens > first.usage.input_tokens


def test_responses_stream(client: Any, model: str) -> None:
    events = list(client.responses.create(model=model, input="Count to five.", max_output_tokens=12, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    asked = {"instructions": "Be brief.", "input": "Name three colours.", "temperature": 0}
    with client.responses.stream(model=model, **asked) as stream:
        assert "response.output_text.done" in [event.type for event in stream]
        assert stream.get_final_response().output_text


def test_errors_are_the_clients_own(client: Any, model: str) -> None:
    with pytest.raises(openai.NotFoundError, match="huge"):
        client.chat.completions.create(model="huge", messages=ASKED)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=model, messages=ASKED, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="8192") as caught:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "rain " * 9000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="unheard_of"):
        client.chat.completions.create(model=model, messages=ASKED, extra_body={"unheard_of": 1})


def test_many_at_once(url: str, model: str) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

            async def one() -> str:
                stream = await client.chat.completions.create(
                    model=model, messages=ASKED, max_tokens=12, temperature=0, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*[one() for _ in range(8)])

    assert len(set(asyncio.run(ask()))) == 1
