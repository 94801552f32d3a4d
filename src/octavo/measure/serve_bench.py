"""Streaming chats against a server with OpenAI's API, at several numbers of them at the same time.

Throughput is tokens over the time from the first request of a run to the end of the last one. TTFT counts from the
request to the first text, TPOT is the mean time of a token after the first in one answer, and inter-token times are
those between pieces of text as they came over the network, which may hold more than one token.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from octavo.core.errors import ConfigError
from octavo.measure.chat_load import Chat, Load, Texts, read_chat, run_load
from octavo.measure.http_stream import Answer, Exchange, Site, parse
from octavo.measure.report import Report, host_row
from octavo.measure.rig import turns
from octavo.measure.spread import Spread, percentile

__all__ = ["ServeBench", "bench_serve"]

PERCENTS = (50, 90, 99)
PROBE_WORDS = (40, 240)
"""Of two prompts from which the tokens of a word are learned."""
BUSY_CLIENT = 0.05


@dataclass(frozen=True, kw_only=True)
class ServeBench:
    """What to run.

    model: as the server calls it; None: the first that it lists. concurrency: chats at the same time, one run each.
    requests: chats of each run; None: four for each at the same time, eight at the least. prompt_words: of a question;
    prompt_tokens: of the whole prompt instead, system text and template included, as the server counts them.
    system_words: of a text that the chats of a run share and no other run has. repeats: runs of each, in turn.
    api_key: sent with each request, and in no report.

    Raises ConfigError: a value is out of range.
    """

    url: str
    model: str | None = None
    concurrency: tuple[int, ...] = (1, 4, 16)
    requests: int | None = None
    prompt_words: int = 40
    prompt_tokens: int | None = None
    output_tokens: int = 64
    system_words: int = 300
    repeats: int = 1
    timeout_s: float = 300.0
    api_key: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt_words", "output_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.concurrency or min(self.concurrency) < 1 or max(self.concurrency) > 4096:
            raise ConfigError("concurrency must be numbers from 1 to 4096")
        if self.requests is not None and self.requests < 1:
            raise ConfigError(f"requests must be at least 1, not {self.requests}")
        if self.system_words < 0:
            raise ConfigError(f"system_words must be at least 0, not {self.system_words}")
        if not 0 < self.timeout_s < 1e6:
            raise ConfigError(f"timeout_s must be above 0 and below a million seconds, not {self.timeout_s:g}")

    def count(self, concurrency: int) -> int:
        """Chats of a run."""
        return max(8, 4 * concurrency) if self.requests is None else self.requests


def bench_serve(bench: ServeBench, *, log: Callable[[str], None] = lambda line: None) -> Report:
    """One row for each number of chats at the same time; Ctrl-C keeps what there is.

    Raises ConfigError: the server is not there, or does not answer as OpenAI's API does.
    """
    client = _Client(bench)
    rows: dict[int, list[_Run]] = {count: [] for count in bench.concurrency}
    interrupted = False
    try:
        client.prepare()
        for number, (repeat, count) in enumerate(turns(bench.concurrency, bench.repeats)):
            log(f"{count} at the same time, run {repeat + 1} of {bench.repeats}")
            run = client.run(number, count)
            if any(chat.token_s or chat.error for chat in run.chats):
                rows[count].append(run)
            interrupted = run.load.interrupted
            if interrupted:
                break
    except KeyboardInterrupt:
        interrupted = True
    made = [_row(count, runs) for count, runs in rows.items() if runs]
    return Report(client.host(), made, [*client.notes, *_remarks(made)], interrupted)


@dataclass
class _Run:
    """load: what was sent. chats: what came of it."""

    load: Load
    chats: list[Chat]

    @property
    def ended(self) -> list[Chat]:
        return [chat for chat in self.chats if chat.error is None]

    @property
    def output_tokens(self) -> int:
        """Of chats that broke off, too: their tokens have been made."""
        return sum(chat.output_tokens for chat in self.chats)


class _Client:
    """Knows the server: its model, which fields it takes, and how many tokens a word has."""

    def __init__(self, bench: ServeBench) -> None:
        site = Site.of(bench.url)
        self.site = site if site.path.endswith("/v1") else replace(site, path=f"{site.path}/v1")
        self.bench = bench
        self.model = bench.model
        self.notes: list[str] = []
        self.server: str | None = None
        self._extras: dict[str, Any] = {"ignore_eos": True, "stream_options": {"include_usage": True}}
        self._words = bench.prompt_words

    def prepare(self) -> None:
        """Find out what the server takes, with a few short chats that are not measured."""
        if self.model is None:
            self.model = self._first_model()
        chat = self._probe(PROBE_WORDS[0])
        for field, told in (
            ("ignore_eos", "the server refuses ignore_eos: answers may be shorter than --output-tokens"),
            ("stream_options", "the server refuses stream_options"),
        ):
            if chat.error is not None and chat.error.startswith(("status 400", "status 422")):
                del self._extras[field]
                self.notes.append(told)
                chat = self._probe(PROBE_WORDS[0])
        if chat.error is not None:
            raise ConfigError(
                f"{self.bench.url} does not answer chats of {self.model!r} (--url, --model): {chat.error}"
            )
        if chat.tokens is None:
            self.notes.append("the server does not count tokens: pieces of text are counted as tokens")
        if self.bench.prompt_tokens is not None:
            self._words = self._words_for(self.bench.prompt_tokens, chat.prompt_tokens)

    def run(self, number: int, concurrency: int) -> _Run:
        """One run of chats that no other run has."""
        bench = self.bench
        texts = Texts(self._words, bench.system_words, bench.seed)
        messages = texts.messages(number, bench.count(concurrency))
        requests = [self._request(each, bench.output_tokens) for each in messages]
        load = run_load(self.site, requests, concurrency=concurrency, timeout_s=bench.timeout_s)
        return _Run(load, load.chats())

    def host(self) -> dict[str, Any]:
        """The client's machine, and what it measured. There is no tier: whatever serves is another program."""
        host = host_row(threads=None, tier=None, samples=[])
        shown = {name: value for name, value in asdict(self.bench).items() if name != "api_key"}
        del host["backend"], host["tier"]
        return {**host, "url": self.bench.url, "server": self.server, "model": self.model, "bench": shown}

    def _request(self, messages: Sequence[dict[str, str]], tokens: int) -> bytes:
        body = {"model": self.model, "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}
        return self.site.request("POST", "/chat/completions", body | self._extras, self.bench.api_key)

    def _probe(self, words: int) -> Chat:
        messages = Texts(words, 0, self.bench.seed).messages(-words % 2**32, 1)
        return read_chat(self._one(self._request(messages[0], 4)))

    def _words_for(self, tokens: int, first: int | None) -> int:
        """Words of a question for a prompt of so many tokens. first: tokens of the probe's prompt."""
        second = self._probe(PROBE_WORDS[1]).prompt_tokens
        if first is None or second is None or second <= first:
            raise ConfigError("this server does not say how long prompts are; give --prompt-words")
        each = (second - first) / (PROBE_WORDS[1] - PROBE_WORDS[0])
        least = first - each * PROBE_WORDS[0] + each * self.bench.system_words
        words = round((tokens - least) / each)
        if words < 1:
            told = f"the template and {self.bench.system_words} system words alone have about {least:.0f} tokens"
            raise ConfigError(
                f"a prompt cannot have {tokens} tokens: {told}; raise --prompt-tokens or lower --system-words"
            )
        return words

    def _first_model(self) -> str:
        answer = self._answer(self.site.request("GET", "/models", key=self.bench.api_key))
        listed = answer.json()
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            told = f"status {answer.status}" if answer.status != 200 else "there is none"
            raise ConfigError(f"{self.bench.url} lists no models ({told}); give --model or --api-key") from None

    def _answer(self, request: bytes) -> Answer:
        answer = parse(self._one(request))
        self.server = answer.headers.get("server")
        return answer

    def _one(self, request: bytes) -> Exchange:
        """Raises ConfigError if there is no server, KeyboardInterrupt."""
        load = run_load(self.site, [request], concurrency=1, timeout_s=self.bench.timeout_s)
        if load.interrupted:
            raise KeyboardInterrupt
        (made,) = load.exchanges
        if made.error is not None and not made.pieces:
            raise ConfigError(f"cannot reach {self.bench.url} (--url): {made.error}")
        return made


def _row(concurrency: int, runs: Sequence[_Run]) -> dict[str, Any]:
    """Percentiles are over the chats of all runs; rates are of each run."""
    chats = [chat for run in runs for chat in run.ended]
    failed = [chat.error for run in runs for chat in run.chats if chat.error and not run.load.interrupted]
    rates = [run.output_tokens / run.load.wall_s for run in runs]
    spread = Spread.of(rates)
    return {
        "concurrency": concurrency,
        "runs": len(runs),
        "requests": len(chats),
        "errors": dict(Counter(map(_kind, failed))),
        "seconds": sum(run.load.wall_s for run in runs),
        "output_tok_s": spread.as_json() if spread is not None else None,
        "prompt_tokens": _mean(chat.prompt_tokens for chat in chats),
        "cached_tokens": _mean(chat.cached_tokens for chat in chats),
        "output_tokens": _mean(chat.output_tokens for chat in chats),
        "ttft_ms": _percentiles(chat.ttft_s for chat in chats),
        "tpot_ms": _percentiles(chat.tpot_s for chat in chats),
        "inter_token_ms": _percentiles(gap for chat in chats for gap in chat.gaps_s),
        "client_cores": sum(run.load.client_s for run in runs) / sum(run.load.wall_s for run in runs),
    }


def _kind(error: str) -> str:
    """Without the numbers in a server's message, which differ from chat to chat."""
    start, separator, message = error.partition(": ")
    return start + separator + re.sub(r"\d+", "#", message)


def _mean(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _percentiles(seconds: Iterable[float | None]) -> dict[str, float] | None:
    """In milliseconds; None if there are no values."""
    known = [1000 * value for value in seconds if value is not None]
    return {f"p{percent}": percentile(known, percent) for percent in PERCENTS} if known else None


def _remarks(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader must know of the figures."""
    notes = []
    failed: Counter[str] = Counter()
    for row in rows:
        failed.update(row["errors"])
    notes += [f"{count} failed: {reason}" for reason, count in failed.most_common()]
    cores = os.cpu_count() or 1
    busiest = max((row["client_cores"] for row in rows), default=0.0)
    if busiest > BUSY_CLIENT * cores:
        notes.append(f"this client took {busiest:.2f} of {cores} cores, which a server on this machine lacked")
    return notes
