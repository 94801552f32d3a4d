"""`langchain-openai`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

langchain = pytest.importorskip("langchain_openai")

ASKED = [("system", "Be brief."), ("human", "Name three colours.")]


def chat(url: str, model: str, **options: Any) -> Any:
    given = {"temperature": 0, "max_tokens": 12, "max_retries": 0, **options}
    return langchain.ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, **given)


@pytest.mark.parametrize("responses", [False, True])
def test_invoke_and_stream(url: str, model: str, responses: bool) -> None:
    llm = chat(url, model, use_responses_api=responses)
    whole = llm.invoke(ASKED)
    assert whole.text
    assert whole.usage_metadata["output_tokens"] <= 12
    assert "".join(chunk.text for chunk in llm.stream(ASKED)) == whole.text


def test_batch_and_async(url: str, model: str) -> None:
    llm = chat(url, model)
    assert len({answer.text for answer in llm.batch([ASKED] * 4)}) == 1
    assert asyncio.run(llm.ainvoke(ASKED)).text == llm.invoke(ASKED).text


def test_logprobs(url: str, model: str) -> None:
    answer = chat(url, model, logprobs=True, top_logprobs=2).invoke(ASKED)
    assert answer.response_metadata["logprobs"]["content"][0]["top_logprobs"]


def test_completions(url: str, model: str) -> None:
    llm = langchain.OpenAI(base_url=f"{url}/v1", api_key="none", model=model, temperature=0, max_tokens=5)
    assert "Paris" in llm.invoke("The capital of France is")


def test_embeddings(url: str, model: str) -> None:
    # Otherwise it counts tokens with a vocabulary of OpenAI's that it downloads.
    maker = langchain.OpenAIEmbeddings(
        base_url=f"{url}/v1", api_key="none", model=model, check_embedding_ctx_length=False
    )
    assert len(maker.embed_documents(["a cat", "tax law"])) == 2
