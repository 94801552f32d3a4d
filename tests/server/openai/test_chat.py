"""POST /v1/chat/completions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from helpers.servers import Site, texts

CHAT = "/v1/chat/completions"
GREEDY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 8, "temperature": 0}


def test_a_stream_brings_what_the_whole_answer_has(site: Site) -> None:
    whole = site.post(CHAT, GREEDY).json()
    chunks = site.stream(CHAT, **GREEDY)
    assert texts(chunks) == whole["choices"][0]["message"]["content"] != ""
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert whole["object"] == "chat.completion"
    assert whole["model"] == "tiny"
    assert site.post(CHAT, GREEDY, model="alias").json()["model"] == "alias"


def test_role_first_and_the_reason_in_a_chunk_of_its_own(site: Site) -> None:
    chunks = site.stream(CHAT, **GREEDY)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    assert "usage" not in chunks[0]


def test_usage_comes_last_when_asked_for(site: Site) -> None:
    chunks = site.stream(CHAT, **GREEDY, stream_options={"include_usage": True})
    whole = site.post(CHAT, GREEDY).json()["usage"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["completion_tokens"] == 8
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_usage_in_every_chunk_grows(site: Site) -> None:
    chunks = site.stream(CHAT, **GREEDY, stream_options={"continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 8


def test_cached_tokens_are_told(site: Site) -> None:
    """A page has 16 tokens; the prompt is longer, and the second time all but its last token is there."""
    body = {**GREEDY, "messages": [{"role": "user", "content": "what is cached " * 3}], "cache_salt": "told"}
    first, second = (site.post(CHAT, body).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == second["prompt_tokens"] - 1
    other = site.post(CHAT, body, cache_salt="another").json()["usage"]
    assert other["prompt_tokens_details"]["cached_tokens"] == 0


def test_several_choices(site: Site) -> None:
    sampled = {**GREEDY, "temperature": 1, "seed": 5, "n": 3}
    whole = site.post(CHAT, sampled).json()
    chunks = site.stream(CHAT, **sampled, stream_options={"include_usage": True})
    told = [choice["message"]["content"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert [texts(chunks, i) for i in range(3)] == told
    assert len(set(told)) == 3
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 24
    roles = [each for chunk in chunks for each in chunk["choices"] if each["delta"].get("role")]
    assert [each["index"] for each in roles] == [0, 1, 2]


def test_logprobs(site: Site) -> None:
    body = {**GREEDY, "logprobs": True, "top_logprobs": 3}
    (choice,) = site.post(CHAT, body).json()["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 8
    for each in content:
        top = each["top_logprobs"]
        assert len(top) == 3
        assert [entry["logprob"] for entry in top] == sorted((entry["logprob"] for entry in top), reverse=True)
        assert each["token"] == top[0]["token"], "greedy takes the likeliest"
        assert math.exp(each["logprob"]) <= 1
    spelled = b"".join(bytes(each["bytes"]) for each in content)
    assert spelled.decode("utf-8", "replace") == choice["message"]["content"]
    streamed = [
        entry
        for chunk in site.stream(CHAT, **body)
        for each in chunk["choices"]
        for entry in (each["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content
    bare = site.post(CHAT, {**GREEDY, "logprobs": True}).json()["choices"][0]["logprobs"]["content"]
    assert [each["top_logprobs"] for each in bare] == [[]] * 8


def test_stop_strings_are_held_back_and_told(site: Site) -> None:
    text = site.post(CHAT, GREEDY).json()["choices"][0]["message"]["content"]
    stop = text[3:5]
    (choice,) = site.post(CHAT, GREEDY, stop=stop).json()["choices"]
    assert choice["message"]["content"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    chunks = site.stream(CHAT, **GREEDY, stop=[stop])
    assert texts(chunks) == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["stop_reason"] == stop
    kept = site.post(CHAT, GREEDY, stop=stop, include_stop_str_in_output=True).json()["choices"][0]
    assert kept["message"]["content"] == text[: text.index(stop)] + stop


def test_vllm_extras(site: Site) -> None:
    (choice,) = (made := site.post(CHAT, GREEDY, return_token_ids=True, prompt_logprobs=1).json())["choices"]
    assert len(choice["token_ids"]) == 8
    assert len(made["prompt_token_ids"]) == made["usage"]["prompt_tokens"] == len(made["prompt_logprobs"])
    assert made["prompt_logprobs"][0] is None
    assert str(made["prompt_token_ids"][1]) in made["prompt_logprobs"][1]
    streamed = site.stream(CHAT, **GREEDY, return_token_ids=True)
    ids = [token for chunk in streamed for each in chunk["choices"] for token in each.get("token_ids", [])]
    assert ids == choice["token_ids"]
    assert streamed[0]["prompt_token_ids"] == made["prompt_token_ids"]
    forced = site.post(CHAT, GREEDY, logit_bias={"65": 100}, return_token_ids=True).json()["choices"][0]
    assert forced["token_ids"] == [65] * 8


def test_a_reply_can_be_begun_for_the_model(site: Site) -> None:
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer"}]
    begun = {**GREEDY, "messages": turns, "continue_final_message": True, "return_token_ids": True}
    ids = site.post(CHAT, begun).json()["prompt_token_ids"]
    assert site.llm.tokenizer.decode(ids).endswith("assistant\nThe answer")
    both = site.post(CHAT, begun, add_generation_prompt=True)
    assert both.status_code == 400


def test_parts_of_text_and_developers(site: Site) -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    messages = [{"role": "developer", "content": "Be brief"}, {"role": "user", "content": parts}]
    ids = site.post(CHAT, GREEDY, messages=messages, return_token_ids=True).json()["prompt_token_ids"]
    text = site.llm.tokenizer.decode(ids, skip_special_tokens=False)
    assert "<|im_start|>system\nBe brief" in text
    assert "user\nHello\nthere<|im_end|>" in text


@pytest.mark.parametrize(
    "idle",
    [
        {"tools": []},
        {"tools": None},
        {"tool_choice": "none"},
        {"parallel_tool_calls": True},
        {"response_format": {"type": "text"}},
        {"store": False, "metadata": None, "service_tier": "auto"},
        {"stop": None, "seed": None, "top_p": None, "logprobs": False, "top_logprobs": 0},
        {"user": "somebody"},
    ],
)
def test_what_asks_for_nothing_is_taken(site: Site, idle: dict[str, Any]) -> None:
    plain = site.post(CHAT, GREEDY).json()["choices"]
    assert site.post(CHAT, GREEDY, **idle).json()["choices"] == plain
