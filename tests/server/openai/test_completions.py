"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.servers import Site

TEXT = "/v1/completions"
GREEDY: dict[str, Any] = {"prompt": "In the beginning", "max_tokens": 8, "temperature": 0}


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(each["text"] for chunk in chunks for each in chunk["choices"] if each["index"] == index)


def test_a_stream_brings_what_the_whole_answer_has(site: Site) -> None:
    (choice,) = (whole := site.post(TEXT, GREEDY).json())["choices"]
    chunks = site.stream(TEXT, **GREEDY, stream_options={"include_usage": True})
    assert text_of(chunks) == choice["text"] != ""
    assert chunks[-2]["choices"][0] == {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 8
    assert whole["object"] == "text_completion"


def test_sixteen_tokens_unless_more_are_asked_for(site: Site) -> None:
    made = site.post(TEXT, {"prompt": "x", "temperature": 0, "ignore_eos": True}).json()
    assert made["usage"]["completion_tokens"] == 16


def test_prompts_of_all_kinds(site: Site) -> None:
    ids = site.llm.tokenizer.encode(GREEDY["prompt"])
    expected = site.post(TEXT, GREEDY).json()["choices"][0]["text"]
    for prompt in (ids, [GREEDY["prompt"]], [ids]):
        assert site.post(TEXT, GREEDY, prompt=prompt).json()["choices"][0]["text"] == expected
    other = site.post(TEXT, GREEDY, prompt="Some other").json()["choices"][0]["text"]
    several = {**GREEDY, "prompt": [GREEDY["prompt"], "Some other"], "n": 2}
    made = site.post(TEXT, several).json()
    assert [choice["text"] for choice in made["choices"]] == [expected, expected, other, other]
    assert [choice["index"] for choice in made["choices"]] == [0, 1, 2, 3]
    chunks = site.stream(TEXT, **several, stream_options={"include_usage": True})
    assert [text_of(chunks, i) for i in range(4)] == [expected, expected, other, other]
    count = len(ids) + len(site.llm.tokenizer.encode("Some other"))
    assert chunks[-1]["usage"]["prompt_tokens"] == made["usage"]["prompt_tokens"] == count


@pytest.mark.parametrize("stream", [False, True])
def test_echo_and_log_probabilities(site: Site, stream: bool) -> None:
    body = {**GREEDY, "echo": True, "logprobs": 2}
    if stream:
        chunks = site.stream(TEXT, **body)
        text = text_of(chunks)
        parts = [each["logprobs"] for chunk in chunks for each in chunk["choices"] if each["logprobs"]]
        listed = {name: [item for part in parts for item in part[name]] for name in parts[0]}
    else:
        (choice,) = site.post(TEXT, body).json()["choices"]
        text, listed = choice["text"], choice["logprobs"]
    generated = site.post(TEXT, GREEDY).json()["choices"][0]["text"]
    assert text == GREEDY["prompt"] + generated
    prompt_tokens = len(site.llm.tokenizer.encode(GREEDY["prompt"]))
    assert len(listed["tokens"]) == prompt_tokens + 8
    assert listed["token_logprobs"][0] is None
    assert listed["top_logprobs"][0] is None
    assert all(value <= 0 for value in listed["token_logprobs"][1:])
    assert all(2 <= len(top) <= 3 for top in listed["top_logprobs"][1:prompt_tokens])
    assert listed["text_offset"][0] == 0
    assert listed["text_offset"][prompt_tokens] == len(GREEDY["prompt"])


def test_a_prompt_can_be_scored_without_an_answer(site: Site) -> None:
    body = {**GREEDY, "echo": True, "logprobs": 1, "max_tokens": 0}
    (choice,) = (made := site.post(TEXT, body).json())["choices"]
    assert choice["text"] == GREEDY["prompt"]
    assert len(choice["logprobs"]["tokens"]) == made["usage"]["prompt_tokens"]
    assert made["usage"]["completion_tokens"] == 0
    assert choice["finish_reason"] == "length"
    assert text_of(site.stream(TEXT, **body)) == GREEDY["prompt"]


def test_the_best_of_several(site: Site) -> None:
    sampled = {**GREEDY, "temperature": 1, "seed": 3, "logprobs": 0}

    def mean(choice: dict[str, Any]) -> float:
        listed: list[float] = choice["logprobs"]["token_logprobs"]
        return sum(listed) / len(listed)

    every = site.post(TEXT, sampled, n=5).json()["choices"]
    made = site.post(TEXT, sampled, n=2, best_of=5).json()
    ranked = sorted(every, key=mean, reverse=True)
    assert [choice["text"] for choice in made["choices"]] == [choice["text"] for choice in ranked[:2]]
    assert made["usage"]["completion_tokens"] == 40
    same = site.post(TEXT, {**GREEDY, "temperature": 1, "seed": 3, "n": 2, "best_of": 5}).json()["choices"]
    assert [choice["text"] for choice in same] == [choice["text"] for choice in made["choices"]]
    assert all(choice["logprobs"] is None for choice in same)


def test_ids_and_prompt_log_probabilities(site: Site) -> None:
    (choice,) = site.post(TEXT, GREEDY, return_token_ids=True, prompt_logprobs=0).json()["choices"]
    assert choice["prompt_token_ids"] == site.llm.tokenizer.encode(GREEDY["prompt"])
    assert len(choice["token_ids"]) == 8
    assert len(choice["prompt_logprobs"]) == len(choice["prompt_token_ids"])
    chunks = site.stream(TEXT, **GREEDY, return_token_ids=True)
    assert chunks[0]["choices"][0]["prompt_token_ids"] == choice["prompt_token_ids"]
    assert [t for c in chunks for e in c["choices"] for t in e.get("token_ids", [])] == choice["token_ids"]
