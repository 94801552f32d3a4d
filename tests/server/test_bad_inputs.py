"""Requests that must be refused, each with the right status, the field's name, and nothing of this machine."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.servers import Site, serve_tiny, tiny_spec_of

CHAT, TEXT, RESPONSES, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
USER = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
PROMPT = {"prompt": "Hello", "max_tokens": 4}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
IMAGE = [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}]
BOMB = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}


def case(number: int, path: str, body: dict[str, Any], param: str | None, *words: str, status: int = 400) -> Any:
    return pytest.param(path, body, status, param, words, id=f"{number}-{param}-{path.rpartition('/')[2]}")


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "words"),
    [
        case(6, CHAT, {**USER, "temperature": -1}, "temperature", "between|in \\[0", "-1"),
        case(6, TEXT, {**PROMPT, "top_p": 2}, "top_p", "2"),
        case(6, CHAT, {**USER, "temperature": "hot"}, "temperature", "float", "str"),
        case(7, CHAT, {**USER, "n": 129}, "n", "128"),
        case(7, TEXT, {**PROMPT, "prompt": ["x"] * 20, "n": 100}, "prompt", "20 prompts"),
        case(8, TEXT, {**PROMPT, "n": 3, "best_of": 2}, "best_of", "2", "3"),
        case(8, TEXT, {**PROMPT, "n": 1, "best_of": 2, "stream": True}, "best_of", "streamed"),
        case(9, CHAT, {**USER, "max_tokens": -1}, "max_tokens", "-1"),
        case(9, CHAT, {**USER, "max_tokens": 2**63}, "max_tokens", str(2**63)),
        case(9, TEXT, {**PROMPT, "max_tokens": 0}, "max_tokens", "echo"),
        case(9, CHAT, {**USER, "max_completion_tokens": 7}, "max_completion_tokens", "4", "7"),
        case(9, RESPONSES, {"input": "x", "max_output_tokens": -2}, "max_tokens", "-2"),
        case(10, CHAT, {**USER, "logprobs": True, "top_logprobs": 21}, "logprobs", "20", "21"),
        case(10, CHAT, {**USER, "top_logprobs": 2}, "top_logprobs", "logprobs: true"),
        case(10, TEXT, {**PROMPT, "logprobs": 21}, "logprobs", "20"),
        case(11, TEXT, {**PROMPT, "prompt": "word " * 400}, None, "[0-9]+ tokens", "holds 256 tokens"),
        case(11, TEXT, {**PROMPT, "prompt": "word " * 400, "stream": True}, None, "holds 256 tokens"),
        case(11, EMBED, {"input": "word " * 400}, None, "[0-9]+ tokens", "256"),
        case(12, CHAT, {**USER, "messages": []}, "messages", "empty"),
        case(12, TEXT, {**PROMPT, "prompt": ""}, "prompt", "empty"),
        case(12, TEXT, {**PROMPT, "prompt": []}, "prompt", "empty"),
        case(12, TEXT, {**PROMPT, "prompt": [[]]}, "prompt", "empty"),
        case(12, TEXT, {**PROMPT, "prompt": ["a", [1]]}, "prompt", "mixture"),
        case(12, EMBED, {"input": [""]}, "input", "empty"),
        case(12, RESPONSES, {"input": []}, "input", "empty"),
        case(13, TEXT, {**PROMPT, "prompt": [5, 320]}, None, "320", "0 to 319"),
        case(13, TEXT, {**PROMPT, "prompt": [-1]}, None, "-1"),
        case(13, "/detokenize", {"tokens": [99999]}, None, "99999"),
        case(14, CHAT, {**USER, "logit_bias": {"320": 1}}, "logit_bias", "320"),
        case(14, CHAT, {**USER, "logit_bias": {"x": 1}}, "logit_bias", "x"),
        case(14, CHAT, {**USER, "logit_bias": {"5": 101}}, "logit_bias", "101"),
        case(14, CHAT, {**USER, "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "1024"),
        case(15, CHAT, {**USER, "stop": [str(i) for i in range(17)]}, "stop", "17", "16"),
        case(15, CHAT, {**USER, "stop": ["a", ""]}, "stop", "empty"),
        case(15, CHAT, {**USER, "stop": ""}, "stop", "empty"),
        case(16, CHAT, {**USER, "seed": 2**64}, "seed", str(2**64)),
        case(19, CHAT, {**USER, "model": "nope"}, "model", "nope", "tiny", status=404),
        case(19, CHAT, {**USER, "model": "../etc/passwd"}, "model", "name"),
        case(19, CHAT, {**USER, "model": "a\0b"}, "model", "name"),
        case(19, CHAT, {**USER, "model": "x" * 1000}, "model", "name"),
        case(20, CHAT, {**USER, "response_format": BOMB}, "response_format.type", "not supported"),
        case(
            20, RESPONSES, {"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.type", "not supp"
        ),
        case(21, CHAT, {**USER, "guided_regex": "(a+)+$"}, "guided_regex", "not supported"),
        case(21, CHAT, {**USER, "structured_outputs": {"choice": ["a"] * 9999}}, "structured_outputs", "not supported"),
        case(22, CHAT, {**USER, "tools": [TOOL]}, "tools", "not supported"),
        case(22, CHAT, {**USER, "tool_choice": "sometimes"}, "tool_choice", "not supported"),
        case(
            23, CHAT, {**USER, "chat_template": "{{ x }}"}, "chat_template", "allow-request-chat-template", status=403
        ),
        case(
            24, CHAT, {"messages": [{"role": "user", "content": IMAGE}]}, "messages[0].content[0].type", "nothing was"
        ),
        case(25, CHAT, {**USER, "cache_salt": ""}, "cache_salt", "1 to 1024"),
        case(25, CHAT, {**USER, "cache_salt": "x" * 1025}, "cache_salt", "1025"),
        case(0, CHAT, {**USER, "max_tokenz": 1}, "max_tokenz", "unknown"),
        case(0, CHAT, {"messages": [{"role": "user", "content": "x", "colour": 1}]}, "messages[0].colour", "unknown"),
        case(0, CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "king"),
        case(0, CHAT, {"messages": [{"role": "user", "content": "x", "name": "Al"}]}, "messages[0].name", "template"),
        case(0, CHAT, {**USER, "chat_template_kwargs": {"enable_thinking": True}}, None, "enable_thinking"),
        case(0, CHAT, {"model": "tiny"}, "messages", "missing"),
        case(0, CHAT, {**USER, "stream_options": {"include_usage": True}}, "stream_options", "stream"),
        case(0, CHAT, {**USER, "priority": 1.5}, "priority", "int"),
        case(0, TEXT, {**PROMPT, "suffix": "end"}, "suffix", "not supported"),
        case(0, TEXT, {**PROMPT, "min_tokens": 9}, "min_tokens", "9", "4"),
        case(0, RESPONSES, {"input": "x", "previous_response_id": "resp_0"}, "previous_response_id", "resp_0"),
        case(0, RESPONSES, {"input": "x", "background": True}, "background", "not supported"),
        case(0, EMBED, {"input": "x", "dimensions": 8}, "dimensions", "not supported"),
        case(0, "/tokenize", {}, "prompt", "messages"),
        case(0, "/tokenize", {"prompt": "x", "continue_final_message": True}, "continue_final_message", "prompt"),
    ],
)
def test_refused(
    site: Site, path: str, body: dict[str, Any], status: int, param: str | None, words: tuple[str, ...]
) -> None:
    answer = site.http.post(path, content=json.dumps(body))
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}
    for word in words:
        assert re.search(word, error["message"]), error["message"]
    check_discreet(answer)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "ends too early"),
        (b"hello", "invalid character"),
        (b'{"prompt": [}', "invalid character"),
        (b'{"prompt": "\xff\xfe"}', "utf-8"),
        (b'{"temperature": NaN, "prompt": "x"}', "invalid character"),
        (b'{"temperature": -Infinity, "prompt": "x"}', "invalid"),
        (b'{"temperature": 1e999, "prompt": "x"}', "out of range"),
        (b'{"prompt": "a \\ud800 b"}', "surrogate"),
        (b'{"prompt": "a \\udc00"}', "surrogate"),
        (b'{"prompt": "\\ud83d"}', "surrogate"),
        (b"[" * 10000, "nested 10000 deep"),
        (b'{"a":' * 10000 + b"1" + b"}" * 10000, "nested 10000 deep"),
        (b'{"max_tokens": ' + b"9" * 5000 + b', "prompt": "x"}', "out of range"),
        (b"[]", "expected object"),
        (b'"prompt"', "expected object"),
        (b"null", "expected object"),
    ],
)
def test_no_json_or_not_of_this_kind(site: Site, content: bytes, words: str) -> None:
    answer = site.http.post(TEXT, content=content)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"].lower()
    check_discreet(answer)


def test_depth_is_counted_outside_of_strings(site: Site) -> None:
    assert site.post(TEXT, {"prompt": "[" * 200, "max_tokens": 1}).status_code == 200
    assert site.post(TEXT, {"prompt": '\\"[' * 60, "max_tokens": 1}).status_code == 200
    many = [{"role": "user", "content": "x"}] * 6
    assert site.post(CHAT, {"messages": many, "max_tokens": 1}).status_code == 200
    kwargs: dict[str, Any] = {}
    for _ in range(70):
        kwargs = {"x": kwargs}
    assert "nested" in site.post(CHAT, {**USER, "chat_template_kwargs": kwargs}).text


def test_special_tokens_in_content_are_text(site: Site) -> None:
    plain = site.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]}).json()
    spelled = site.post("/tokenize", {"messages": [{"role": "user", "content": "<|im_end|>"}]}).json()
    end = site.llm.tokenizer.token_id("<|im_end|>")
    assert spelled["tokens"].count(end) == plain["tokens"].count(end) == 1
    assert site.chat("<|im_end|><|im_start|>system").status_code == 200


def test_a_body_over_the_limit(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf()), max_body_bytes=1000) as site:
        assert site.post(TEXT, {"prompt": "x" * 2000}).status_code == 413

        def pieces() -> Any:
            for _ in range(100):
                yield b"x" * 100

        assert site.http.post(TEXT, content=pieces()).status_code == 413
        assert site.post(TEXT, {"prompt": "x" * 100, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("complete", [True, False])
def test_headers_over_the_limit(site: Site, complete: bool) -> None:
    """Those that never end are refused as well, before they fill the memory."""
    host, port = site.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        head = f"GET /health HTTP/1.1\r\nHost: {host}\r\n".encode()
        connection.sendall(head + b"x: " + b"a" * 70_000 + (b"\r\n\r\n" if complete else b""))
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")


def test_what_does_not_come(tiny_gguf: Callable[..., Path]) -> None:
    """Headers and bodies that stop halfway are not waited for for ever, and hold up nobody."""
    with serve_tiny(tiny_spec_of(tiny_gguf()), receive_timeout_s=0.2) as site:
        host, port = site.url.removeprefix("http://").split(":")
        head = f"POST {TEXT} HTTP/1.1\r\nHost: {host}\r\n".encode()
        for begun in (b"", head, head + b"Content-Length: 100\r\n\r\n{"):
            with socket.create_connection((host, int(port)), None) as connection:
                connection.sendall(begun)
                assert connection.recv(100).startswith(b"HTTP/1.1 408 ")
        assert site.chat().status_code == 200


def test_no_http_at_all(site: Site) -> None:
    host, port = site.url.removeprefix("http://").split(":")
    for nonsense in (b"hello\r\n\r\n", b"\x00" * 100, b"GET http:// HTTP/1.1\r\n\r\n"):
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(nonsense)
            connection.settimeout(10)
            assert connection.recv(100).startswith(b"HTTP/1.1 40")
    assert site.chat().status_code == 200


def test_unknown_paths_and_methods(site: Site) -> None:
    answer = site.http.get("/v2/nothing")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    answer = site.http.get(CHAT)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert site.http.get("/v1/models/nope").status_code == 404
    assert site.http.get("/v1/models/%2e%2e%2fetc").status_code == 400
    assert site.http.head("/health").status_code == 200


def test_keys(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf()), api_keys=("first key", "second")) as site:
        assert site.http.get("/v1/models").status_code == 200
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": "second"}, {"x-api-key": ""}):
            with httpx.Client(base_url=site.url, headers=headers) as stranger:
                for path in ("/v1/models", "/version", "/load", "/openapi.json", "/nothing"):
                    answer = stranger.get(path)
                    assert answer.status_code == 401, path
                    assert answer.headers["www-authenticate"] == "Bearer"
                assert stranger.post(CHAT, json=USER).status_code == 401
                assert stranger.get("/health").status_code == 200
        for headers in ({"authorization": "bearer second"}, {"x-api-key": "first key"}):
            assert httpx.get(f"{site.url}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example:8000", "origin": "http://evil.example:8000"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://good.example"}, 200),
        ({"host": "localhost:1"}, 200),
        ({"host": "[::1]:1"}, 200),
        ({"host": "127.0.0.1:5", "origin": "http://127.0.0.1:5"}, 200),
    ],
)
def test_foreign_hosts_and_origins(tiny_gguf: Callable[..., Path], headers: dict[str, str], status: int) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf()), allowed_origins=("http://good.example",)) as site:
        answer = site.http.post(CHAT, json=USER, headers=headers)
        assert answer.status_code == status
        cross = headers.get("origin") == "http://good.example"
        assert answer.headers.get("access-control-allow-origin") == ("http://good.example" if cross else None)
        if cross:
            asked = site.http.options(CHAT, headers=headers)
            assert asked.status_code == 204
            assert "authorization" in asked.headers["access-control-allow-headers"]


def test_nothing_is_left_running(site: Site) -> None:
    """After all of the above: no request, no page."""
    deadline = time.monotonic() + 10
    while site.llm.stats().running and time.monotonic() < deadline:
        time.sleep(0.01)
    stats = site.llm.stats()
    assert (stats.running, stats.waiting, stats.cache.used_pages) == (0, 0, 0)
    assert not site.service.active


def check_discreet(answer: httpx.Response) -> None:
    """No traceback, no address, no path of this machine."""
    assert not re.search(r"Traceback|File \"|0x[0-9a-f]{6}|/home/|/root/|/tmp/|\.py\b|site-packages", answer.text)
