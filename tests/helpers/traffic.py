"""Mixed traffic for a server: all APIs, clients that leave, requests that are wrong, and more than it can take."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.measure.http_stream import Answer, Exchange, Site, exchange, parse

__all__ = ["Traffic"]

BUSY = frozenset({429, 503, 529})
"""What a server says that has too much to do."""
LONG_S = 120.0
"""A request that has not ended by then is stuck."""

Body = dict[str, Any] | bytes

TOPICS = ("rain", "the sea", "a bicycle", "bread", "winter", "a lighthouse", "trees", "a clock")


@dataclass
class Traffic:
    """What has been sent, and what was wrong with the answers.

    counts: requests by kind and status (0: the client left). problems: answers that should not be. texts: of greedy
    requests by what was asked: they must be the same each time.
    """

    url: str
    seed: int = 0
    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

    def run(self, seconds: float, workers: int, *, sample: Callable[[], None] = lambda: None) -> None:
        """Send for so long, and wait for all answers. sample: called twice a second."""
        asyncio.run(self._run(seconds, workers, sample))

    async def _run(self, seconds: float, workers: int, sample: Callable[[], None]) -> None:
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(self._work(random.Random(f"{self.seed}/{number}"), end))
            while time.monotonic() < end:
                await asyncio.sleep(0.5)
                sample()

    async def _work(self, rng: random.Random, end: float) -> None:
        acts = (self._same, self._any_api, self._leave, self._wrong, self._burst)
        while time.monotonic() < end:
            (act,) = rng.choices(acts, (6, 6, 4, 4, 0.3))
            await act(rng)

    async def _same(self, rng: random.Random) -> None:
        """A greedy chat that has been asked before or will be again; streamed or whole."""
        topic, stream = rng.choice(TOPICS), rng.random() < 0.7
        answer = await self._send("chat", "/v1/chat/completions", chat(topic, 24, stream=stream))
        if answer.status in BUSY:
            return
        text = streamed_text(answer) if stream else answer.json()["choices"][0]["message"]["content"]
        if self.texts.setdefault(topic, text) != text:
            self.problems.append(f"{topic}: another text than before: {text!r}")

    async def _any_api(self, rng: random.Random) -> None:
        words = " ".join(rng.choice(TOPICS) for _ in range(rng.choice((5, 20, 150))))
        path, body = rng.choice(REQUESTS)
        await self._send(path, path, json.loads(json.dumps(body).replace("WORDS", words)))

    async def _leave(self, rng: random.Random) -> None:
        """Go away: before there is an answer, or in the middle of it."""
        pieces, made = rng.choice((0, 1, 4)), Exchange()
        body = chat(f"{rng.choice(TOPICS)} {rng.random()}", 100, stream=rng.random() < 0.8)
        task = asyncio.create_task(self._exchange("/v1/chat/completions", body, made))
        limit = time.monotonic() + rng.uniform(0, 2)
        while len(made.pieces) < pieces + 1 and time.monotonic() < limit and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait((task,))
        self.counts["left", 0] += 1

    async def _wrong(self, rng: random.Random) -> None:
        path, body, status = rng.choice(WRONG)
        answer = await self._send("wrong", path, body, allowed={status})
        if b"Traceback" in answer.body:
            self.problems.append(f"{path}: {answer.body[:200]!r}")

    async def _burst(self, rng: random.Random) -> None:
        """More at once than the queue holds; each is answered, or told at once to come again."""
        body = chat(f"{rng.choice(TOPICS)} {rng.random()}", 8, stream=False)
        answers = await asyncio.gather(*[self._send("burst", "/v1/chat/completions", body) for _ in range(40)])
        for answer in answers:
            if answer.status == 503 and "retry-after" not in answer.headers:
                self.problems.append("a 503 without retry-after")

    async def _send(self, kind: str, path: str, body: Body, allowed: set[int] | None = None) -> Answer:
        made = await self._exchange(path, body, Exchange())
        answer = parse(made)
        self.counts[kind, answer.status] += 1
        if answer.status not in (allowed or {200}) | BUSY or not answer.complete:
            told = made.error or answer.body[:300].decode("utf-8", "replace")
            self.problems.append(f"{path} status {answer.status}, complete: {answer.complete}: {told}")
        if answer.status == 200 and re.search(rb'"error": ?["{]', answer.body):
            self.problems.append(f"{path}: {answer.body[-300:]!r}")
        return answer

    async def _exchange(self, path: str, body: Body, made: Exchange) -> Exchange:
        site = Site.of(self.url)
        request = site.request("POST", path, body if isinstance(body, dict) else {})
        if isinstance(body, bytes):
            head = request.partition(b"\r\n\r\n")[0].replace(b"content-length: 2", b"content-length: %d" % len(body))
            request = head + b"\r\n\r\n" + body
        return await exchange(site, request, made, timeout_s=LONG_S)


def chat(topic: str, tokens: int, *, stream: bool) -> dict[str, Any]:
    rules = "You are a careful assistant who answers in plain words. " * 6
    messages = [{"role": "system", "content": rules}, {"role": "user", "content": f"Tell me of {topic}."}]
    return {"messages": messages, "temperature": 0, "max_tokens": tokens, "stream": stream}


def streamed_text(answer: Answer) -> str:
    chunks = [json.loads(event.data) for event in answer.events if event.data != "[DONE]"]
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


_ASKED = [{"role": "user", "content": "WORDS"}]
_SAMPLED = {"temperature": 0.9, "max_tokens": 30}
# "model" where an API cannot do without it: the server calls its model "soak".
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": _ASKED, **_SAMPLED, "stream": True, "n": 2}),
    ("/v1/chat/completions", {"messages": _ASKED, **_SAMPLED, "logprobs": True, "top_logprobs": 5}),
    ("/v1/completions", {"prompt": ["WORDS", "Once upon a time"], **_SAMPLED, "stream": True}),
    ("/v1/completions", {"prompt": "WORDS", **_SAMPLED, "echo": True, "logprobs": 2, "cache_salt": "s"}),
    ("/v1/responses", {"input": "WORDS", "max_output_tokens": 20, "stream": True}),
    ("/v1/embeddings", {"input": ["WORDS", "short"]}),
    ("/v1/messages", {"model": "soak", "messages": _ASKED, "max_tokens": 20, "stream": True}),
    ("/api/chat", {"model": "soak", "messages": _ASKED, "options": {"num_predict": 20}}),
    ("/api/generate", {"model": "soak", "prompt": "WORDS", "stream": False, "options": {"num_predict": 20}}),
    ("/generate_stream", {"inputs": "WORDS", "parameters": {"max_new_tokens": 20}}),
    ("/tokenize", {"prompt": "WORDS"}),
)
WRONG: tuple[tuple[str, Body, int], ...] = (
    ("/v1/chat/completions", b"{", 400),
    ("/v1/chat/completions", b'{"messages": "\xff"}', 400),
    ("/v1/chat/completions", b"[" * 10_000, 400),
    ("/v1/chat/completions", {"messages": []}, 400),
    ("/v1/chat/completions", {"messages": _ASKED, "temperature": -1}, 400),
    ("/v1/chat/completions", {"messages": _ASKED, "colour": "red"}, 400),
    ("/v1/chat/completions", {"messages": _ASKED, "model": "huge"}, 404),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "rain " * 5000}], "stream": True}, 400),
    ("/v1/completions", {"prompt": [10**9]}, 400),
    ("/v1/messages", {"model": "soak", "messages": _ASKED}, 400),
    ("/generate", {"inputs": "", "parameters": {}}, 422),
    ("/nowhere", {}, 404),
)
