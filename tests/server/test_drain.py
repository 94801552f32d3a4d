"""SIGTERM while requests run, to a server that is a process of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.processes import Served, serve_process
from helpers.servers import events, texts

CHAT = "/v1/chat/completions"
TOKENS = 1200
CONTEXT = 2048


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello there"}]
    return {"messages": messages, "temperature": 0, "ignore_eos": True, "max_tokens": TOKENS, **fields}


def start(path: Path, folder: Path, *options: object) -> Any:
    options = ("--max-model-len", CONTEXT, "--kv-cache-memory", "64MiB", *options)
    return serve_process(folder, path, *options, OCTAVO_BACKEND="reference")


class Streams:
    """Chats that are being streamed: all have brought a token when this is entered."""

    def __init__(self, url: str, count: int) -> None:
        self._url, self._count, self._stack = url, count, ExitStack()
        self._started = threading.Barrier(count + 1)

    def __enter__(self) -> Streams:
        pool = self._stack.enter_context(ThreadPoolExecutor(self._count))
        self.texts = [pool.submit(self._read) for _ in range(self._count)]
        self._started.wait(30)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _read(self) -> str:
        with httpx.stream("POST", self._url + CHAT, json=body(stream=True), timeout=60) as answer:
            assert answer.status_code == 200
            pieces = answer.iter_text()
            first = self._until_text(pieces)
            self._started.wait(30)
            return first + "".join(pieces)

    @staticmethod
    def _until_text(pieces: Iterator[str]) -> str:
        seen = ""
        while '"content":"' not in seen:
            seen += next(pieces)
        return seen


@pytest.fixture(scope="module")
def model(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf(context_length=CONTEXT)


def refused(server: Served) -> httpx.Response:
    """The answer to a new request once the server has taken note of the signal."""
    end = time.monotonic() + 20
    while True:
        answer = httpx.post(server.url + CHAT, json=body(max_tokens=1), timeout=30)
        if answer.status_code != 200 or time.monotonic() > end:
            return answer


def test_what_runs_ends_and_what_comes_is_refused(model: Path, tmp_path: Path) -> None:
    with start(model, tmp_path, "--grace", "60") as server:
        assert len(server.announced) == 5
        with Streams(server.url, 3) as streams:
            server.terminate()
            answer = refused(server)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "draining"
            assert int(answer.headers["retry-after"]) >= 1
            assert httpx.get(server.url + "/health").status_code == 503
            chats = [events(each.result(60)) for each in streams.texts]
        assert server.wait(20) == 0
    assert len({texts(chat) for chat in chats}) == 1
    for chat in chats:
        assert [choice["finish_reason"] for chunk in chat for choice in chunk["choices"]][-1] == "length"
    lines = [line for line in server.log.read_text().splitlines() if f"output={TOKENS} " in line]
    assert len(lines) == 3
    assert "Traceback" not in server.log.read_text()


def test_the_grace_time_ends_what_takes_longer(model: Path, tmp_path: Path) -> None:
    with start(model, tmp_path, "--grace", "0.1") as server:
        with Streams(server.url, 3) as streams:
            server.terminate()
            endings = [each.result(30).rstrip().split("\n\n")[-2:] for each in streams.texts]
        assert server.wait(20) == 0
    for error, done in endings:
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "aborted"
        assert done == "data: [DONE]"
    assert "Traceback" not in server.log.read_text()


def test_a_second_signal_ends_it_at_once(model: Path, tmp_path: Path) -> None:
    with start(model, tmp_path, "--grace", "60") as server, Streams(server.url, 2) as streams:
        server.terminate()
        assert refused(server).status_code == 503
        server.terminate()
        assert server.wait(20) == 0
        assert all('"aborted"' in each.result(30) for each in streams.texts)


def test_nothing_runs(model: Path, tmp_path: Path) -> None:
    with start(model, tmp_path) as server:
        assert httpx.get(server.url + "/health").status_code == 200
        server.terminate()
        assert server.wait(20) == 0
    assert server.log.read_text().count("\n") <= 1, "one line of a request, if any"
