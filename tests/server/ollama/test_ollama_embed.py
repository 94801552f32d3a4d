"""POST /api/embed and /api/embeddings."""

from __future__ import annotations

import re
from typing import Any

import pytest

from helpers.servers import Site

TEXTS = ["The first text", "Another one"]


def openai(site: Site, texts: list[str]) -> list[list[float]]:
    return [each["embedding"] for each in site.post("/v1/embeddings", input=texts).json()["data"]]


def test_several_texts(site: Site) -> None:
    answer = site.post("/api/embed", model="tiny", input=TEXTS).json()
    assert answer["embeddings"] == openai(site, TEXTS)
    assert answer["prompt_eval_count"] == sum(len(site.llm.tokenizer.encode(each)) for each in TEXTS)
    assert 0 <= answer["load_duration"] <= answer["total_duration"]
    assert answer["model"] == "tiny"


def test_one_text_by_both_routes(site: Site) -> None:
    (expected,) = openai(site, TEXTS[:1])
    assert site.post("/api/embed", model="tiny", input=TEXTS[0]).json()["embeddings"] == [expected]
    assert site.post("/api/embeddings", model="tiny", prompt=TEXTS[0]).json() == {"embedding": expected}


def test_nothing_to_embed_loads_the_model(site: Site) -> None:
    assert site.post("/api/embed", model="tiny", input=[]).json()["embeddings"] == []
    assert site.post("/api/embeddings", model="tiny").json() == {"embedding": []}


def test_truncate_is_done_when_it_is_asked_for(site: Site) -> None:
    long = "word " * 400
    for fields in ({}, {"truncate": False}):
        refused = site.post("/api/embed", model="tiny", input=long, **fields)
        assert refused.status_code == 400
        assert re.search("tokens.* 256", refused.json()["error"])
    cut = site.post("/api/embed", model="tiny", input=long, truncate=True).json()
    assert cut["prompt_eval_count"] == 256
    short = site.post("/api/embed", model="tiny", input=long, truncate=True, options={"num_ctx": 16}).json()
    assert short["prompt_eval_count"] == 16


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dimensions": 8}, "^dimensions is not supported"),
        ({"options": {"temperature": 0}}, "^options.temperature has no meaning for embeddings"),
        ({"options": {"num_gpu": 3}}, "^options.num_gpu is not supported"),
        ({"options": {"num_ctx": 3}}, "num_ctx allows 3 tokens"),
        ({"keep_alive": "x"}, "^keep_alive"),
        ({"input": ["a"] * 2049}, "2049 texts, and 2048"),
        ({"input": [1]}, "^input"),
    ],
)
def test_refused(site: Site, fields: dict[str, Any], words: str) -> None:
    answer = site.post("/api/embed", {"model": "tiny", "input": "some more text", **fields})
    assert answer.status_code == 400, answer.text
    assert re.search(words, answer.json()["error"]), answer.text
