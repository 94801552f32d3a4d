"""What the server does when it is busy, when clients leave, when something fails, and when it ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.servers import Site, events, held, idle, serve_tiny, texts, tiny_spec_of, wait_until
from octavo.server.record import CLIENT_GONE, Record

CHAT = "/v1/chat/completions"
LONG: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello there"}],
    "max_tokens": 150,
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture
def own(tiny_gguf: Callable[..., Path]) -> Iterator[Site]:
    """A server for one test alone: two sequences run, one request waits."""
    with serve_tiny(tiny_spec_of(tiny_gguf(), max_num_seqs=2, max_waiting=1)) as site:
        yield site


class Chats:
    """Chats in the background."""

    def __init__(self, site: Site) -> None:
        self._site, self._pool = site, ThreadPoolExecutor(8)

    def start(self, **fields: Any) -> Any:
        """The future of an answer."""
        before = self._site.service.active.copy()
        body = {**LONG, **fields}
        future = self._pool.submit(httpx.post, self._site.url + CHAT, json=body, timeout=None)
        wait_until(lambda: self._site.service.active.keys() - before.keys() or future.done())
        return future


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_frees_the_pages_within_a_step(own: Site, stream: bool) -> None:
    records: list[Record] = []
    own.service.observers.append(records.append)
    with held(own.llm, 3) as go:
        with httpx.Client(base_url=own.url, timeout=0.3) as client, pytest.raises(httpx.TimeoutException):
            client.post(CHAT, json={**LONG, "stream": stream})
        wait_until(lambda: not own.service.active)
        assert own.llm.stats().running == 1, "it runs until the step has ended"
        go.set()
        wait_until(lambda: idle(own.llm))
    assert own.llm.stats().generated_tokens < 10
    wait_until(lambda: records)
    assert [record.error for record in records] == ["the client left"]
    assert records[0].status == (200 if stream else CLIENT_GONE)


def test_a_full_queue_refuses_at_once(own: Site) -> None:
    with held(own.llm) as go:
        chats = Chats(own)
        answers = [chats.start() for _ in range(3)]
        wait_until(lambda: _queued(own) == 3)
        for fields in ({}, {"stream": True}):
            refused = own.post(CHAT, LONG, **fields)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "queue_full"
            assert int(refused.headers["retry-after"]) >= 1
        go.set()
        assert [each.result().status_code for each in answers] == [200, 200, 200]


def test_who_waits_too_long_is_told_so(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf(), max_num_seqs=1, queue_timeout_s=0.05)) as site:
        with held(site.llm, 2) as go:
            chats = Chats(site)
            first = chats.start()
            wait_until(lambda: site.llm.stats().running == 1)
            second = chats.start(stream=True)
            wait_until(lambda: len(site.service.active) == 2 and site.llm.stats().waiting == 1)
            threading.Event().wait(0.06)
            go.set()
            answer = second.result()
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "queue_timeout"
            assert "retry-after" in answer.headers
        assert first.result().status_code == 200


def test_a_request_may_take_so_long(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf()), request_timeout_s=0.2) as site:
        with held(site.llm, 0):
            answer = site.post(CHAT, LONG)
            assert answer.status_code == 504
            assert "0.2 s" in answer.json()["error"]["message"]
        wait_until(lambda: idle(site.llm))
        with held(site.llm, 3):
            answer = site.post(CHAT, LONG, stream=True)
            assert answer.status_code == 200
            assert events(answer.text)[-1]["error"]["code"] == "timeout"
        wait_until(lambda: idle(site.llm))
        assert site.chat().status_code == 200


def test_a_step_that_fails_fails_its_requests_alone(own: Site) -> None:
    executor = own.llm._engine._executor
    run = executor.run

    def broken(plan: Any) -> Any:
        raise OSError("/secret/path: disk on fire")

    executor.run = broken  # type: ignore[method-assign]
    try:
        plain = own.post(CHAT, LONG)
    finally:
        executor.run = run  # type: ignore[method-assign]
    assert plain.status_code == 500
    assert plain.json()["error"]["code"] == "engine_error"
    assert "secret" not in plain.text
    with held(own.llm, 3) as go:
        chats = Chats(own)
        streamed = chats.start(stream=True)
        wait_until(lambda: _begun(own))
        executor.run = broken  # type: ignore[method-assign]
        go.set()
        answer = streamed.result()
    assert answer.status_code == 200
    told = events(answer.text)
    assert told[-1]["error"]["code"] == "engine_error"
    assert own.chat().status_code == 200


def test_a_parameter_that_leaves_no_token_is_named(site: Site) -> None:
    """Which logits it breaks is known only when they are there."""
    answer = site.chat(repetition_penalty=5e-324)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "repetition_penalty"
    assert site.chat().status_code == 200


def test_health_fails_while_a_step_hangs(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf()), stall_after_s=0.05) as site:
        assert site.http.get("/health").json() == {"status": "ok"}
        with held(site.llm) as go:
            answer = Chats(site).start()
            wait_until(lambda: site.http.get("/health").status_code == 503)
            assert "step" in site.http.get("/health").json()["reason"]
            go.set()
            assert answer.result().status_code == 200
        assert site.http.get("/health").status_code == 200


def test_what_runs_ends_and_new_requests_are_refused(own: Site) -> None:
    with held(own.llm, 3) as go:
        chats = Chats(own)
        running = [chats.start(), chats.start(stream=True)]
        wait_until(lambda: _queued(own) == 2)
        own.loop.call_soon_threadsafe(own.running.stop)
        wait_until(lambda: own.service.draining)
        refused = own.post(CHAT, LONG)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert own.http.get("/health").status_code == 503
        go.set()
        whole, streamed = (each.result() for each in running)
    assert whole.json()["usage"]["completion_tokens"] == 150
    assert texts(events(streamed.text)) == whole.json()["choices"][0]["message"]["content"]


def test_the_grace_time_is_kept(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf()), grace_s=0.1) as site:
        with held(site.llm, 3) as go:
            chats = Chats(site)
            running = [chats.start(stream=True)]
            wait_until(lambda: _begun(site))
            running.insert(0, chats.start())
            wait_until(lambda: _queued(site) == 2)
            (model,) = site.service.registry.models
            site.loop.call_soon_threadsafe(site.running.stop)
            wait_until(lambda: model.llm is None)  # the grace time is over
            go.set()
            whole, streamed = (each.result() for each in running)
        assert whole.status_code == 503
        assert events(streamed.text)[-1]["error"]["code"] == "aborted"


def test_priority(own: Site) -> None:
    """Of two that wait for the one place left, the one with the smaller number gets it."""
    order: list[str] = []
    own.service.observers.append(lambda record: order.append(record.user or ""))
    with held(own.llm, 1) as go:
        chats = Chats(own)
        wide = chats.start(n=2, user="first", max_tokens=20)
        wait_until(lambda: own.llm.stats().running >= 1)
        waiting = [chats.start(user="later", priority=5, max_tokens=2)]
        go.set()
        wide.result()
        [each.result() for each in waiting]
    wait_until(lambda: len(order) == 2)
    assert order == ["first", "later"]
    order.clear()
    with held(own.llm, 1) as go:
        chats = Chats(own)
        wide = chats.start(n=2, user="first", priority=5, max_tokens=60)
        wait_until(lambda: own.llm.stats().running >= 1)
        urgent = chats.start(user="urgent", priority=-1, max_tokens=2)
        wait_until(lambda: len(own.service.active) == 2 and own.llm.stats().waiting >= 1)
        go.set()
        urgent.result()
        wide.result()
    wait_until(lambda: len(order) == 2)
    assert order == ["urgent", "first"]


def _begun(site: Site) -> bool:
    """Whether a stream has begun."""
    return any(record.first_byte_s is not None for record in list(site.service.active.values()))


def _queued(site: Site) -> int:
    stats = site.llm.stats()
    return stats.running + stats.waiting


def test_many_streams_at_once_bring_what_each_brings_alone(site: Site) -> None:
    prompts = [f"Tell number {i}" for i in range(24)]
    body = {"max_tokens": 12, "temperature": 0.9, "seed": 7}

    def ask(prompt: str, stream: bool) -> str:
        answer = site.chat(prompt, **body, stream=stream)
        return texts(events(answer.text)) if stream else answer.json()["choices"][0]["message"]["content"]

    alone = [ask(prompt, False) for prompt in prompts]
    with ThreadPoolExecutor(24) as pool:
        together = list(pool.map(lambda prompt: ask(prompt, True), prompts))
    assert together == alone
    wait_until(lambda: idle(site.llm))


def test_the_first_bytes_do_not_wait_for_the_second_token(own: Site) -> None:
    body = {**LONG, "stream": True}
    with held(own.llm, 1) as go, httpx.stream("POST", own.url + CHAT, json=body, timeout=None) as answer:
        lines = answer.iter_lines()
        first = json.loads(next(lines).removeprefix("data: "))
        assert first["choices"][0]["delta"]["role"] == "assistant"
        go.set()
        assert list(lines)[-2] == "data: [DONE]"


def test_load_and_version(own: Site) -> None:
    with held(own.llm) as go:
        answer = Chats(own).start(n=2)
        wait_until(lambda: _queued(own) == 2)
        load = own.http.get("/load").json()
        assert load["server_load"] == 1
        (model,) = load["models"]
        assert (model["model"], model["state"], model["running"] + model["waiting"]) == ("tiny", "loaded", 2)
        go.set()
        answer.result()
    assert own.http.get("/version").json()["version"]
    (model,) = own.http.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 256)
    assert own.http.get("/v1/models/tiny").json() == model
