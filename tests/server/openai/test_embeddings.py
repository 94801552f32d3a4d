"""POST /v1/embeddings, /tokenize and /detokenize."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.servers import Site, serve_tiny, tiny_spec_of

EMBED = "/v1/embeddings"


def test_vectors_of_length_one(site: Site) -> None:
    made = site.post(EMBED, {"input": ["a cat", "a dog", "a cat"]}).json()
    vectors = np.array([each["embedding"] for each in made["data"]])
    assert vectors.shape == (3, 64)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-6)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)
    assert [each["index"] for each in made["data"]] == [0, 1, 2]
    count = sum(len(site.llm.tokenizer.encode(text)) for text in ("a cat", "a dog", "a cat"))
    assert made["usage"] == {"prompt_tokens": count, "total_tokens": count}


def test_base64_ids_and_pooling(site: Site) -> None:
    plain = site.post(EMBED, {"input": "a cat"}).json()["data"][0]["embedding"]
    packed = site.post(EMBED, {"input": "a cat", "encoding_format": "base64"}).json()["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(packed), "<f4"), plain, atol=1e-6)
    ids = site.llm.tokenizer.encode("a cat")
    same = site.post(EMBED, {"input": [ids], "pooling": "mean"}).json()["data"][0]["embedding"]
    np.testing.assert_allclose(same, plain, atol=1e-6)
    last = site.post(EMBED, {"input": ids, "pooling": "last"}).json()["data"][0]["embedding"]
    assert not np.allclose(last, plain, atol=1e-3)


@pytest.mark.parametrize("text", ["Hello there", "käse ☃ 猫", "<|im_end|> stays text"])
def test_there_and_back(site: Site, text: str) -> None:
    made = site.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert made["tokens"] == site.llm.tokenizer.encode(text)
    assert made["count"] == len(made["tokens"]) == len(made["token_strs"])
    assert made["max_model_len"] == 256
    assert site.post("/detokenize", {"tokens": made["tokens"]}).json() == {"prompt": text}


def test_a_conversation_as_the_model_sees_it(site: Site) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    open_, closed = (
        site.post("/tokenize", {"messages": messages, "add_generation_prompt": add}).json()["tokens"]
        for add in (None, False)
    )
    text = site.post("/detokenize", {"tokens": open_}).json()["prompt"]
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert open_[: len(closed)] == closed != open_


def test_templates_of_requests_where_they_are_allowed(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf()), allow_request_chat_template=True) as site:
        body = {"messages": [{"role": "user", "content": "Hi"}], "chat_template": "<{{ messages[0]['content'] }}>"}
        tokens = site.post("/tokenize", body).json()["tokens"]
        assert site.post("/detokenize", {"tokens": tokens}).json()["prompt"] == "<Hi>"
        broken = site.post("/tokenize", {**body, "chat_template": "{% for %}"})
        assert broken.status_code == 400
        endless = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
        assert site.post("/tokenize", {**body, "chat_template": endless}).status_code == 400
