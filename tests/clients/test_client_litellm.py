"""`litellm`, by way of each of the APIs that it knows us by."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet for prices when it is imported
litellm = pytest.importorskip("litellm")

ASKED = [{"role": "user", "content": "Name three colours."}]
ROUTES = [("openai", "/v1"), ("hosted_vllm", "/v1"), ("ollama", ""), ("ollama_chat", ""), ("anthropic", "")]


def options(url: str, provider: str, path: str, model: str) -> dict[str, Any]:
    return {"model": f"{provider}/{model}", "api_base": url + path, "api_key": "none", "num_retries": 0}


@pytest.mark.parametrize(("provider", "path"), ROUTES)
def test_completion(url: str, model: str, provider: str, path: str) -> None:
    answer = litellm.completion(messages=ASKED, max_tokens=12, temperature=0, **options(url, provider, path, model))
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens


@pytest.mark.parametrize(("provider", "path"), ROUTES)
def test_stream(url: str, model: str, provider: str, path: str) -> None:
    asked = options(url, provider, path, model)
    whole = litellm.completion(messages=ASKED, max_tokens=12, temperature=0, **asked)
    chunks = litellm.completion(messages=ASKED, max_tokens=12, temperature=0, stream=True, **asked)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed.strip() == whole.choices[0].message.content.strip()


def test_text_completion_and_embedding(url: str, model: str) -> None:
    asked = options(url, "openai", "/v1", model)
    text = litellm.text_completion(prompt="The capital of France is", max_tokens=5, temperature=0, **asked)
    assert "Paris" in text.choices[0].text
    assert len(litellm.embedding(input=["a cat", "tax law"], encoding_format="float", **asked).data) == 2


def test_errors_are_its_own(url: str) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=ASKED, **options(url, "openai", "/v1", "huge"))
