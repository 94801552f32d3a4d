"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.busy import busy_site
from helpers.servers import Site, serve_tiny, tiny_spec_of

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "Hello there"}]
BASE: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 0}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}


def named_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(name, data) of server-sent events that have names."""
    pieces = [piece.split("\n") for piece in text.split("\n\n") if piece]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pieces]


def prompt_of(site: Site, *turns: tuple[str, str], generation: bool = True) -> list[int]:
    messages = [{"role": role, "content": content} for role, content in turns]
    return site.llm.encode_chat(messages, add_generation_prompt=generation)


def test_an_answer(site: Site) -> None:
    reply = site.post(MESSAGES, BASE)
    answer = reply.json()
    assert reply.status_code == 200, reply.text
    prompt = len(prompt_of(site, ("user", "Hello there")))
    usage = answer.pop("usage")
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == prompt
    assert usage["output_tokens"] == 8
    assert usage["cache_creation_input_tokens"] == 0
    same = site.chat("Hello there").json()["choices"][0]["message"]["content"]
    assert answer == {
        "id": f"msg_{reply.headers['request-id']}",
        "type": "message",
        "role": "assistant",
        "content": [{"text": same, "type": "text"}],
        "model": "tiny",
        "stop_reason": "max_tokens",
        "stop_sequence": None,
    }


def test_the_events_of_a_stream_in_order(site: Site) -> None:
    whole = site.post(MESSAGES, BASE).json()
    answer = site.post(MESSAGES, BASE, stream=True)
    assert answer.headers["content-type"] == "text/event-stream"
    events = named_events(answer.text)
    assert all(name == data["type"] for name, data in events)
    kinds = [name for name, _ in events if name != "content_block_delta"]
    opening = ["message_start", "content_block_start", "ping"]
    assert kinds == [*opening, "content_block_stop", "message_delta", "message_stop"]
    assert [name for name, _ in events[:3]] == opening
    deltas = [data for name, data in events if name == "content_block_delta"]
    assert {(data["index"], data["delta"]["type"]) for data in deltas} == {(0, "text_delta")}
    assert "".join(data["delta"]["text"] for data in deltas) == whole["content"][0]["text"]
    start, end = events[0][1]["message"], events[-2][1]
    assert start["content"] == []
    assert start["stop_reason"] is None
    assert end["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_text_comes_in_blocks_and_turns_of_one_role_are_one(site: Site) -> None:
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    body = {
        "model": "tiny",
        "system": [*blocks, {"type": "text", "text": "b", "citations": None}],
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "user", "content": [{"type": "text", "text": "two"}]},
            {"role": "assistant", "content": "three"},
            {"role": "user", "content": "four"},
        ],
    }
    expected = prompt_of(site, ("system", "a\nb"), ("user", "one\ntwo"), ("assistant", "three"), ("user", "four"))
    assert site.post(COUNT, body).json() == {"input_tokens": len(expected)}
    usage = site.post(MESSAGES, body, max_tokens=1).json()["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(expected)


def test_system_is_text_or_blocks_alike(site: Site) -> None:
    system = "Be brief. " * 8
    first, second = (
        site.post(MESSAGES, BASE, system=each).json()["content"]
        for each in (system, [{"type": "text", "text": system}])
    )
    assert first == second
    assert first != site.post(MESSAGES, BASE).json()["content"]


def test_the_last_turn_of_the_assistant_is_continued(site: Site) -> None:
    start = [*HELLO, {"role": "assistant", "content": "The best answer is ("}]
    answer = site.post(MESSAGES, BASE, messages=start).json()
    open_ended = site.post(
        "/v1/chat/completions",
        {"messages": start, "continue_final_message": True, "max_tokens": 8, "temperature": 0},
    ).json()
    assert answer["content"][0]["text"] == open_ended["choices"][0]["message"]["content"]
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == open_ended["usage"]["prompt_tokens"]


def test_cached_tokens_are_counted_apart(site: Site) -> None:
    body = {**BASE, "messages": [{"role": "user", "content": "Something new. " * 6}], "max_tokens": 1}
    first, again = (site.post(MESSAGES, body).json()["usage"] for _ in range(2))
    assert first["cache_read_input_tokens"] < again["cache_read_input_tokens"]
    assert first["input_tokens"] + first["cache_read_input_tokens"] == sum(
        again[name] for name in ("input_tokens", "cache_read_input_tokens")
    )


def test_a_stop_sequence_is_told_and_not_shown(site: Site) -> None:
    text = site.post(MESSAGES, BASE).json()["content"][0]["text"]
    stop = text[3:5]
    answer = site.post(MESSAGES, BASE, stop_sequences=["never", stop]).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)
    assert answer["content"][0]["text"] == text[: text.index(stop)]
    events = named_events(site.post(MESSAGES, BASE, stop_sequences=[stop], stream=True).text)
    assert events[-2][1]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": stop}


def test_end_turn(tiny_gguf: Callable[..., Path], site: Site) -> None:
    """The greedy first token of a prompt made the end of sequence: the answer is empty and ends by itself."""
    first = site.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, "temperature": 0, "logprobs": True})
    token = first.json()["choices"][0]["logprobs"]["content"][0]["token"]
    found = site.llm.tokenizer.encode(token, add_special_tokens=False)
    assert len(found) == 1
    path = tiny_gguf(metadata={"tokenizer.ggml.eos_token_id": found[0]}, tensors={})
    with serve_tiny(tiny_spec_of(path, "tiny")) as other:
        answer = other.post(MESSAGES, BASE).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)


def test_no_tokens_computes_the_prompt_alone(site: Site) -> None:
    body = {**BASE, "messages": [{"role": "user", "content": "Warm this up. " * 6}]}
    cold = site.post(MESSAGES, body, max_tokens=0).json()
    assert (cold["content"], cold["stop_reason"], cold["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    assert site.post(MESSAGES, body).json()["usage"]["cache_read_input_tokens"] > 0
    events = named_events(site.post(MESSAGES, body, max_tokens=0, stream=True).text)
    assert [name for name, _ in events] == ["message_start", "ping", "message_delta", "message_stop"]


def test_the_user_goes_to_the_log(site: Site) -> None:
    seen: list[str | None] = []
    site.service.observers.append(lambda record: seen.append(record.user))
    try:
        site.post(MESSAGES, BASE, metadata={"user_id": "u-1"})
    finally:
        site.service.observers.pop()
    assert seen == ["u-1"]


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"max_tokens": -1}, 400, "invalid_request_error", "max_tokens .* -1"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 2**63}, 400, "invalid_request_error", "max_tokens"),
        ({"temperature": -1}, 400, "invalid_request_error", "temperature .* -1"),
        ({"top_p": 2}, 400, "invalid_request_error", "top_p"),
        ({"top_k": -2}, 400, "invalid_request_error", "top_k"),
        ({"stop_sequences": ["a"] * 17}, 400, "invalid_request_error", "^stop_sequences has 17 strings"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "^stop_sequences must hold non-empty"),
        ({"messages": []}, 400, "invalid_request_error", "messages is empty"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "invalid_request_error", "'image' .* text only"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
            400,
            "invalid_request_error",
            r"messages\[0\].content\[0\].type 'tool_result' is not supported: tools",
        ),
        ({"messages": [*HELLO, {"role": "assistant", "content": " "}]}, 400, "invalid_request_error", "empty one"),
        ({"messages": [{"role": "user", "content": "word " * 300}]}, 400, "invalid_request_error", "tokens .* 256"),
        ({"tools": [{"name": "f", "input_schema": {}}]}, 400, "invalid_request_error", "tools is not supported: tools"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice is not supported"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400, "invalid_request_error", "thinking is not"),
        ({"output_config": {"effort": "low"}}, 400, "invalid_request_error", "output_config is not supported"),
        ({"max_tokenz": 1}, 400, "invalid_request_error", "unknown field 'max_tokenz'"),
        ({"model": "nope"}, 404, "not_found_error", "no model 'nope'"),
        ({"model": "../etc/passwd"}, 400, "invalid_request_error", "cannot be the name"),
    ],
)
def test_refused(site: Site, fields: dict[str, Any], status: int, kind: str, words: str) -> None:
    for stream in (False, True):
        answer = site.post(MESSAGES, BASE, stream=stream, **fields)
        assert answer.status_code == status, answer.text
        body = answer.json()
        assert body["type"] == "error"
        assert body["error"]["type"] == kind
        assert re.search(words, body["error"]["message"]), body


def test_what_asks_for_nothing_is_taken(site: Site) -> None:
    idle = {
        "tools": [],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"},
        "service_tier": "auto",
        "metadata": {"user_id": None},
        "cache_control": {"type": "ephemeral"},
        "speed": None,
    }
    assert site.post(MESSAGES, BASE, **idle).json()["content"] == site.post(MESSAGES, BASE).json()["content"]


def test_not_json_and_too_large(site: Site) -> None:
    broken = site.http.post(MESSAGES, content=b'{"model": ')
    assert (broken.status_code, broken.json()["error"]["type"]) == (400, "invalid_request_error")
    large = site.http.post(MESSAGES, content=b" " * (site.service.config.max_body_bytes + 1))
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    missing = site.http.get("/v1/messages/batches")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")


def test_a_key_in_their_header(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf(), "tiny"), api_keys=("secret",)) as site:
        del site.http.headers["authorization"]
        refused = site.post(MESSAGES, BASE)
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        site.http.headers["x-api-key"] = "secret"
        assert site.post(MESSAGES, BASE).status_code == 200


def test_a_full_queue_is_an_overload(tiny_gguf: Callable[..., Path]) -> None:
    with busy_site(tiny_gguf) as site:
        answer = site.post(MESSAGES, BASE)
    assert answer.status_code == 529
    assert answer.json()["error"]["type"] == "overloaded_error"
    assert int(answer.headers["retry-after"]) >= 1
