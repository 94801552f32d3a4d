"""A server on tiny models, in a thread of its own, behind a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx

from octavo.engine.async_llm import AsyncLLM
from octavo.engine.plan import StepPlan
from octavo.server.config import ModelSpec, ServerConfig
from octavo.server.models import ModelRegistry
from octavo.server.run import Running, listen
from octavo.server.service import Service

__all__ = ["TINY", "Site", "events", "held", "idle", "patient", "serve_tiny", "texts", "tiny_spec_of", "wait_until"]

T = TypeVar("T")

TINY: dict[str, Any] = {
    "backend": "reference",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "block_size": 16,
    "kv_cache_dtype": "float32",
    "kv_cache_bytes": 2**21,
}
"""Options of an engine that starts in milliseconds."""


@dataclass
class Site:
    """A running server. http: a client of it, with its key if it has one."""

    running: Running
    loop: asyncio.AbstractEventLoop
    http: httpx.Client

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def service(self) -> Service:
        return self.running.service

    @property
    def llm(self) -> AsyncLLM:
        """The engine of the first model."""
        return self.service.registry.models[0].engine

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def post(self, path: str, body: Any = None, **fields: Any) -> httpx.Response:
        return self.http.post(path, json={**(body or {}), **fields})

    def chat(self, text: str = "Hello there", **fields: Any) -> httpx.Response:
        """A short greedy chat."""
        base = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0}
        return self.post("/v1/chat/completions", base, **fields)

    def stream(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        """The events of a stream that ends well."""
        answer = self.post(path, stream=True, **fields)
        assert answer.status_code == 200, answer.text
        return events(answer.text)


def events(text: str) -> list[dict[str, Any]]:
    """The data of server-sent events; [DONE] must be the last and is left out."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", text
    return [json.loads(line) for line in lines[:-1]]


def tiny_spec_of(path: Path, *names: str, **options: Any) -> ModelSpec:
    return ModelSpec(str(path), names or ("tiny",), {**TINY, **options})


@contextlib.contextmanager
def serve_tiny(*specs: ModelSpec, registry: ModelRegistry | None = None, **config: Any) -> Iterator[Site]:
    """A server that runs while the context lasts, on a free port."""
    settings = ServerConfig(**{"port": 0, "grace_s": 5.0, **config})
    loop, up = asyncio.new_event_loop(), threading.Event()
    made: list[Running] = []
    failed: list[BaseException] = []

    async def main() -> None:
        async with _up(settings, registry or ModelRegistry(specs)) as running:
            made.append(running)
            up.set()
            await running.wait()

    def run() -> None:
        try:
            loop.run_until_complete(main())
        except BaseException as error:
            failed.append(error)
        finally:
            up.set()
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert patient(up.wait), "the server does not start"
    if failed:
        raise failed[0]
    headers = {"authorization": f"Bearer {settings.api_keys[0]}"} if settings.api_keys else {}
    with httpx.Client(base_url=made[0].url, headers=headers, timeout=None) as client:
        try:
            yield Site(made[0], loop, client)
        finally:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(made[0].stop)
            patient(partial(_joined, thread))
    assert not thread.is_alive(), "the server does not end"
    if failed:
        raise failed[0]


@contextlib.asynccontextmanager
async def _up(config: ServerConfig, registry: ModelRegistry) -> AsyncIterator[Running]:
    with contextlib.closing(listen(config)) as sock:
        running = Running(Service(config, registry), sock)
        try:
            await running.start()
            yield running
        finally:
            await running.close()


@contextlib.contextmanager
def held(llm: AsyncLLM, steps: int = 0) -> Iterator[threading.Event]:
    """After so many more steps the engine stands still in the middle of one, until the event is set."""
    executor, go = llm._engine._executor, threading.Event()
    left, run = [steps], executor.run

    def slow(plan: StepPlan) -> Any:
        left[0] -= 1
        assert left[0] >= 0 or patient(go.wait), "a held step was never let go"
        return run(plan)

    executor.run = slow  # type: ignore[method-assign]
    try:
        yield go
    finally:
        executor.run = run  # type: ignore[method-assign]
        go.set()


def wait_until(what: Callable[[], Any]) -> None:
    """Until it is so; fails if that takes too long."""
    for _ in range(10_000):
        if what():
            return
        time.sleep(0.002)
    raise AssertionError("it never happened")


def patient(wait: Callable[[float], Any]) -> bool:
    """Wait with a function of a timeout, half a minute in slices: a process that is stopped for a while has not waited
    any longer for that."""
    return any(wait(0.05) for _ in range(600))


def idle(llm: AsyncLLM) -> bool:
    """Whether no request runs or waits, and no page is in use."""
    stats = llm.stats()
    return stats.running == stats.waiting == stats.cache.used_pages == 0


def _joined(thread: threading.Thread, seconds: float) -> bool:
    thread.join(seconds)
    return not thread.is_alive()


def texts(chunks: Sequence[dict[str, Any]], choice: int = 0) -> str:
    """The text of one choice of a chat, put together."""
    return "".join(
        each["delta"].get("content", "") for chunk in chunks for each in chunk["choices"] if each["index"] == choice
    )
