"""POST /v1/chat/completions."""

from __future__ import annotations

from helpers.servers import Site, events, texts

CHAT = "/v1/chat/completions"
GREEDY = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 8, "temperature": 0}


def test_a_stream_brings_what_the_whole_answer_has(site: Site) -> None:
    whole = site.post(CHAT, GREEDY).json()
    chunks = site.stream(CHAT, **GREEDY)
    assert texts(chunks) == whole["choices"][0]["message"]["content"] != ""
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_role_first_and_the_reason_in_a_chunk_of_its_own(site: Site) -> None:
    chunks = site.stream(CHAT, **GREEDY)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    assert "usage" not in chunks[0]


def test_usage_comes_last_when_asked_for(site: Site) -> None:
    chunks = site.stream(CHAT, **GREEDY, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == site.post(CHAT, GREEDY).json()["usage"] | {
        "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]
    }
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_an_unknown_field_is_refused_by_name(site: Site) -> None:
    answer = site.post(CHAT, GREEDY, max_tokenz=3)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "max_tokenz"
    assert events("data: [DONE]\n\n") == []
