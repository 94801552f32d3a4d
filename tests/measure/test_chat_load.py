"""Chats as their client sees them: what is a token, when it came, and what counts as a failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.servers import serve_tiny, tiny_spec_of
from octavo.measure.chat_load import Chat, Texts, read_chat, run_load
from octavo.measure.http_stream import Exchange, Site

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}},
}


def streamed(*events: Any, end: bool = True) -> Chat:
    """The chat of events that came at 1, 2, 3, ...; it was sent at 0.5."""
    data = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in events]
    pieces = [(float(time), b"data: %b\n\n" % each) for time, each in enumerate([*data, *[b"[DONE]"] * end], 1)]
    return read_chat(Exchange(0.5, [(0.9, HEAD), *pieces], ended=True))


def test_times_and_counts() -> None:
    # The role, an empty text and the end are no tokens; reasoning is.
    chat = streamed(
        delta(role="assistant", content=""),
        delta(reasoning_content="Hm"),
        delta(content="Hello"),
        delta(content=" there"),
        delta("length"),
        USAGE,
    )
    assert chat.token_s == [2, 3, 4]
    assert (chat.error, chat.finish_reason) == (None, "length")
    assert (chat.output_tokens, chat.prompt_tokens, chat.cached_tokens) == (5, 7, 3)
    assert chat.ttft_s == 1.5
    assert chat.tpot_s == 2 / 4
    assert chat.gaps_s == [1, 1]


def test_without_usage_pieces_are_counted() -> None:
    chat = streamed(delta(content="a"), delta(content="b"), delta("stop"))
    assert (chat.output_tokens, chat.tokens, chat.prompt_tokens) == (2, None, None)
    assert streamed(delta(content="a"), delta("stop")).tpot_s is None
    assert streamed(delta("stop")).ttft_s is None


def test_a_stream_without_done_is_whole_if_it_has_a_reason() -> None:
    assert streamed(delta(content="a"), delta("stop"), end=False).error is None
    assert streamed(delta(content="a"), end=False).error == "the stream broke off"


@pytest.mark.parametrize("event", [b"{", b"[]", b"3", {"choices": [3]}, {"choices": [], "usage": 3}])
def test_what_is_not_openais(event: Any) -> None:
    assert streamed(delta(content="a"), event).error == "an event that is not OpenAI's"


def test_errors_of_servers() -> None:
    broken = {"error": {"message": "the engine\n failed", "code": 500}}
    assert streamed(delta(content="a"), broken, end=False).error == "in the stream: the engine failed"
    refused = b'HTTP/1.1 503 Busy\r\n\r\n{"error": {"message": "the queue is full"}}'
    assert read_chat(Exchange(0, [(1, refused)], True)).error == "status 503: the queue is full"
    assert read_chat(Exchange(0, [(1, b"HTTP/1.1 502 Bad\r\n\r\n<html>")], True)).error == "status 502: no reason"
    assert read_chat(Exchange(0, [], True)).error == "no answer"
    assert read_chat(Exchange(0, [], False, "connection refused")).error == "connection refused"
    assert read_chat(Exchange(0, [(1, b"HTTP/1.1 200 OK\r\n\r\n{}")], True)).error == "the answer is no stream"


def test_runs_share_no_words_and_their_chats_share_the_system_text() -> None:
    texts = Texts(words=30, system_words=50, seed=1)
    first, second = texts.messages(0, 3), texts.messages(1, 3)
    assert texts.messages(0, 3) == first
    systems = {chat[0]["content"] for chat in [*first, *second]}
    assert [chat[0]["role"] for chat in first] == ["system"] * 3
    assert len(systems) == 2
    assert all(len(text.split()) == 50 for text in systems)
    questions = {chat[1]["content"] for chat in [*first, *second]}
    assert len(questions) == 6
    assert all(len(text.split()) == 30 for text in questions)
    assert [len(chat) for chat in Texts(words=3, system_words=0).messages(0, 1)] == [1]


def test_so_many_run_at_the_same_time(tiny_gguf: Callable[..., Path]) -> None:
    body = {"model": "tiny", "max_tokens": 5, "temperature": 0, "stream": True, "ignore_eos": True}
    with serve_tiny(tiny_spec_of(tiny_gguf())) as server:
        most, begin = [0], server.service.begin

        def counted(record: Any) -> None:
            begin(record)
            most[0] = max(most[0], len(server.service.active))

        server.service.begin = counted  # type: ignore[method-assign]
        site = Site.of(server.url + "/v1")
        messages = Texts(4, 0).messages(0, 9)
        requests = [site.request("POST", "/chat/completions", {**body, "messages": each}) for each in messages]
        load = run_load(site, requests, concurrency=3, timeout_s=30)
    chats = load.chats()
    assert [chat.error for chat in chats] == [None] * 9
    assert [chat.finish_reason for chat in chats] == ["length"] * 9
    assert 1 < most[0] <= 3
    assert load.wall_s > 0
    assert not load.interrupted
