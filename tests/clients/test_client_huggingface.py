"""`huggingface_hub.InferenceClient`: OpenAI's chat and TGI's text generation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

hub = pytest.importorskip("huggingface_hub")

ASKED = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return hub.InferenceClient(base_url=url, api_key="none", timeout=60)


def test_chat_completion(client: Any, model: str) -> None:
    answer = client.chat_completion(ASKED, model=model, max_tokens=12, temperature=0)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 12
    chunks = list(client.chat_completion(ASKED, model=model, max_tokens=12, temperature=0, stream=True))
    streamed = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert streamed == answer.choices[0].message.content


def test_its_openai_names(client: Any, model: str) -> None:
    answer = client.chat.completions.create(messages=ASKED, model=model, max_tokens=4, logprobs=True, top_logprobs=2)
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens


def test_text_generation(url: str) -> None:
    client = hub.InferenceClient(url, timeout=60)
    prompt = "The capital of France is"
    text = client.text_generation(prompt, max_new_tokens=6)
    assert "Paris" in text
    assert "".join(client.text_generation(prompt, max_new_tokens=6, stream=True)) == text
    detailed = client.text_generation(prompt, max_new_tokens=6, details=True, decoder_input_details=True)
    assert detailed.generated_text == text
    assert detailed.details.generated_tokens == 6
    assert detailed.details.finish_reason == "length"
    last = list(client.text_generation(prompt, max_new_tokens=6, details=True, stream=True))[-1]
    assert last.generated_text == text
    sampled = client.text_generation(prompt, max_new_tokens=4, do_sample=True, temperature=0.7, top_p=0.9, seed=1)
    assert sampled
    assert client.text_generation(prompt, max_new_tokens=4, return_full_text=True).startswith(prompt)


def test_errors_are_the_clients_own(url: str) -> None:
    client = hub.InferenceClient(url, timeout=60)
    with pytest.raises(hub.errors.ValidationError):
        client.text_generation("Hello", max_new_tokens=4, temperature=-1.0, do_sample=True)


def test_async(url: str, model: str) -> None:
    async def ask() -> str:
        async with hub.AsyncInferenceClient(base_url=url, api_key="none") as client:
            answer = await client.chat_completion(ASKED, model=model, max_tokens=4)
            return str(answer.choices[0].message.content)

    assert asyncio.run(ask())
