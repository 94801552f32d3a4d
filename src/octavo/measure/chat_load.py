"""Streaming chats for any server with OpenAI's API: what is asked, and what comes back as tokens with their times.

Closed loop: so many chats run at the same time, and each that ends is followed by the next one at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.measure.http_stream import Answer, Exchange, Site, exchange, parse
from octavo.measure.workloads import stream

__all__ = ["Chat", "Load", "Texts", "read_chat", "run_load"]

# Each of these is one token in most vocabularies.
_COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "kid body information back parent face others level office door health person art war history party result "
    "change morning reason research girl guy moment air teacher force education foot boy age policy music market "
    "sense nation plan college interest death experience effect use class control care field development role "
    "effort rate heart drug show leader"
)
_WORDS = _COMMON.split()


@dataclass(frozen=True)
class Texts:
    """Prompts of random words. system_words: that all chats of a run share. words: of each question.

    Every run has words of its own, so that no run finds what an earlier one has left in a cache.
    """

    words: int
    system_words: int
    seed: int = 0

    def messages(self, run: int, count: int) -> list[list[dict[str, str]]]:
        """The chats of one run."""
        rules = _text(stream(self.seed, run, 0), self.system_words)
        system = [{"role": "system", "content": rules}] if rules else []
        own = stream(self.seed, run, 1)
        return [[*system, {"role": "user", "content": _text(own, self.words)}] for _ in range(count)]


def _text(rng: np.random.Generator, count: int) -> str:
    """Sentences of twelve words."""
    words = [_WORDS[place] for place in rng.integers(0, len(_WORDS), count)]
    sentences = [" ".join(words[start : start + 12]) for start in range(0, count, 12)]
    return " ".join(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in sentences)


@dataclass
class Chat:
    """One chat as its client saw it; times by the clock of the run.

    token_s: when each piece of text came. tokens, prompt_tokens, cached_tokens: as the server counts them; None: it
    does not say. error: why it did not end well.
    """

    sent_s: float
    token_s: list[float]
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None

    @property
    def output_tokens(self) -> int:
        """As the server counts them; pieces of text where it does not say."""
        return len(self.token_s) if self.tokens is None else self.tokens

    @property
    def ttft_s(self) -> float | None:
        return self.token_s[0] - self.sent_s if self.token_s else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each token after the first."""
        later = self.output_tokens - 1
        return (self.token_s[-1] - self.token_s[0]) / later if self.token_s and later > 0 else None

    @property
    def gaps_s(self) -> list[float]:
        """Between pieces of text."""
        gaps: list[float] = np.diff(self.token_s).tolist()
        return gaps


def read_chat(made: Exchange) -> Chat:
    """What an exchange was, as a chat."""
    answer, chat = parse(made), Chat(made.sent_s, [])
    if answer.status != 200:
        chat.error = made.error or _refusal(answer)
        return chat
    done = False
    for event in answer.events:
        done = event.data == "[DONE]"
        if not done and not _take(chat, event.time_s, event.data):
            return chat
    if not done and not (answer.complete and chat.finish_reason):
        chat.error = made.error or ("the stream broke off" if answer.events else "the answer is no stream")
    return chat


def _take(chat: Chat, time_s: float, data: str) -> bool:
    """One event; False if nothing may follow."""
    try:
        chunk = json.loads(data)
        if "error" in chunk:
            chat.error = f"in the stream: {_message(chunk)}"
            return False
        _count(chat, chunk.get("usage"))
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if any(delta.get(name) for name in ("content", "reasoning_content", "reasoning")):
                chat.token_s.append(time_s)
            chat.finish_reason = choice.get("finish_reason") or chat.finish_reason
    except (ValueError, TypeError, AttributeError):
        chat.error = "an event that is not OpenAI's"
        return False
    return True


def _count(chat: Chat, usage: Mapping[str, Any] | None) -> None:
    if usage is not None:
        chat.tokens, chat.prompt_tokens = usage.get("completion_tokens"), usage.get("prompt_tokens")
        chat.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _refusal(answer: Answer) -> str:
    return f"status {answer.status}: {_message(answer.json())}" if answer.status else "no answer"


def _message(body: Any) -> str:
    """What a server says is wrong, in one short line."""
    error = body.get("error", body) if isinstance(body, dict) else body
    text = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(text).split())[:200] if text else "no reason"


@dataclass
class Load:
    """A run: its exchanges in order of their start, how long it took, and what it cost this process.

    client_s: seconds of a core. interrupted: it was broken off, and the last exchanges have no end.
    """

    exchanges: list[Exchange] = field(default_factory=list)
    wall_s: float = 0.0
    client_s: float = 0.0
    interrupted: bool = False

    def chats(self) -> list[Chat]:
        return [read_chat(made) for made in self.exchanges]


def run_load(
    site: Site,
    requests: Sequence[bytes],
    *,
    concurrency: int,
    timeout_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Load:
    """Send all requests, so many at a time. Ctrl-C ends it early, with what there is by then."""
    load, left = Load(), iter(requests)
    start, cpu = clock(), time.process_time()
    try:
        asyncio.run(_workers(site, left, load, concurrency, timeout_s, clock))
    except KeyboardInterrupt:
        load.interrupted = True
    load.wall_s, load.client_s = clock() - start, time.process_time() - cpu
    return load


async def _workers(
    site: Site, left: Iterator[bytes], load: Load, count: int, timeout_s: float, clock: Callable[[], float]
) -> None:
    async def work() -> None:
        for request in left:
            load.exchanges.append(made := Exchange(sent_s=clock()))
            await exchange(site, request, made, timeout_s=timeout_s, clock=clock)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(work())
