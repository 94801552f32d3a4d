"""What the server counts and measures for its metrics, dashboard and log. Nothing here knows how it is shown.

Counters that the engine keeps itself are read when somebody asks; what belongs to requests is noted as their states
pass through the event loop (`Progress`), one short call for each state that a client gets, none on the engine's thread.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from octavo.core.outputs import RequestMetrics, RequestOutput
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.contracts import EngineStats
from octavo.server.models import ModelRegistry, ServedModel
from octavo.server.record import Record
from octavo.server.speed import MemoryLimit, Speedometer

__all__ = ["RECENT_S", "Histogram", "Meters", "ModelMeters", "Progress", "Reading", "Totals"]

F64 = NDArray[np.float64]

RECENT_S = 60.0
"""Percentiles are of what came in so many seconds."""

_FOLD = 4096  # values that are kept as they came before they are counted into buckets all at once
_RECENT = 8192  # values that percentiles are taken from at the most: 5 s of 16 streams at 100 tok/s each

_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000]
_TOKEN_SECONDS = [0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5]
_TOKEN_SECONDS += [0.75, 1, 2.5, 5, 10]
_TOKENS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000]


class Histogram:
    """Values counted in buckets. bounds: the largest value of each bucket but the last, which has none."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._edges = np.array(bounds)
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0
        self._pending: list[tuple[float, int]] = []
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=_RECENT)

    def observe(self, value: float, count: int = 1) -> None:
        """The value came so many times."""
        self._pending.append((value, count))
        self._recent.append((time.monotonic(), value, count))
        if len(self._pending) >= _FOLD:
            self._fold()

    def read(self) -> tuple[list[int], float]:
        """How many values are in each bucket, the last one above all bounds, and the sum of all."""
        self._fold()
        return self._counts.tolist(), self._sum

    def percentiles(self, ranks: Iterable[float], within_s: float = RECENT_S) -> list[float] | None:
        """The smallest recent value that is not below `rank` percent of them, for each rank; None if there is none."""
        since = time.monotonic() - within_s
        rows = np.array([(value, count) for at, value, count in self._recent if at >= since])
        if not len(rows):
            return None
        rows = rows[np.argsort(rows[:, 0])]
        reached = np.cumsum(rows[:, 1])
        places = np.searchsorted(reached, np.array(list(ranks)) / 100 * reached[-1])
        result: list[float] = rows[np.minimum(places, len(rows) - 1), 0].tolist()
        return result

    def _fold(self) -> None:
        if not self._pending:
            return
        values, counts = np.array(self._pending).T
        self._pending.clear()
        places = np.searchsorted(self._edges, values)  # a value that is a bound counts below it
        np.add.at(self._counts, places, counts.astype(np.int64))
        self._sum += float(values @ counts)


class Totals:
    """What a model's engines have counted so far. It goes on when the model is unloaded and loaded again."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}  # of engines that are gone
        self._now: dict[str, float] = {}
        self._engine: ReferenceType[AsyncLLM] | None = None

    def read(self, llm: AsyncLLM, stats: EngineStats) -> dict[str, float]:
        """Take in what the engine says, and return all counts (see `_counts`); what it does after the last call is
        lost with it."""
        if self._engine is None or self._engine() is not llm:
            self._before, self._engine = self.latest(), ref(llm)
        self._now = _counts(stats)
        return self.latest()

    def latest(self) -> dict[str, float]:
        """The counts as they were last read; empty before the first time."""
        return {name: self._before.get(name, 0) + count for name, count in self._now.items()} or self._before


def _counts(stats: EngineStats) -> dict[str, float]:
    """What only grows. prompt_tokens: with those from the cache; computed_tokens: without."""
    cache = stats.cache
    return {
        "steps": stats.steps,
        "prompt_tokens": stats.prompt_tokens + cache.hit_tokens,
        "computed_tokens": stats.prompt_tokens,
        "generated_tokens": stats.generated_tokens,
        "preemptions": stats.preemptions,
        "swaps": stats.swaps,
        "refused": stats.refused,
        "timed_out": stats.timed_out,
        "schedule_s": stats.schedule_s,
        "run_s": stats.run_s,
        "sample_s": stats.sample_s,
        "commit_s": stats.commit_s,
        "queried_tokens": cache.queried_tokens,
        "hit_tokens": cache.hit_tokens,
        "disk_tokens": cache.disk_tokens,
        "evicted_pages": cache.evicted_pages,
    }


class ModelMeters:
    """Of one model. Times in seconds, as RequestMetrics has them.

    first_token, inter_token, end_to_end, queue, prefill, decode, inference: inference is prefill and decode together.
    per_output_token: of a whole request, decode over the tokens after the first. finished: completions by reason.
    misses, missed_tokens: prompts that the prefix cache did not have whole, and their tokens from there on, by reason.
    totals, speedometer: of the engine, as they were last read.
    """

    def __init__(self) -> None:
        self.first_token, self.inter_token = Histogram(_SECONDS), Histogram(_TOKEN_SECONDS)
        self.per_output_token, self.end_to_end = Histogram(_TOKEN_SECONDS), Histogram(_SECONDS)
        self.queue, self.prefill = Histogram(_SECONDS), Histogram(_SECONDS)
        self.decode, self.inference = Histogram(_SECONDS), Histogram(_SECONDS)
        self.prompt_tokens, self.generation_tokens = Histogram(_TOKENS), Histogram(_TOKENS)
        self.finished: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.missed_tokens: Counter[str] = Counter()
        self.totals = Totals()
        self.speedometer = Speedometer()

    def end(self, metrics: RequestMetrics, prompt_tokens: int, tokens: int) -> None:
        """A prompt's answers are complete. tokens: of the longest of them."""
        if metrics.finished_s is not None:
            self.end_to_end.observe(metrics.finished_s)
        if metrics.queue_s is not None:
            self.queue.observe(metrics.queue_s)
        if metrics.prefill_s is not None:
            self.prefill.observe(metrics.prefill_s)
        if metrics.prefill_s is not None and metrics.decode_s is not None:
            self.decode.observe(metrics.decode_s)
            self.inference.observe(metrics.prefill_s + metrics.decode_s)
            if tokens > 1:
                self.per_output_token.observe(metrics.decode_s / (tokens - 1))
        if metrics.first_scheduled_s is None:
            return
        self.prompt_tokens.observe(prompt_tokens)
        if metrics.cache_miss is not None:
            self.misses[metrics.cache_miss.reason] += 1
            self.missed_tokens[metrics.cache_miss.reason] += prompt_tokens - metrics.cache_miss.position


class Progress:
    """One HTTP request's answers, measured as their states pass: each must hold what is new alone, or be the last."""

    def __init__(self, record: Record, meters: ModelMeters, prompts: int, completions: int) -> None:
        """completions: of all prompts together."""
        self._record, self._meters = record, meters
        self._open = completions
        self._times: list[float | None] = [None] * prompts  # when the last token of each prompt came
        self._tokens: Counter[tuple[int, int]] = Counter()  # of each completion of each prompt

    def take(self, index: int, output: RequestOutput) -> None:
        """The next state of a prompt."""
        now, before = time.monotonic(), self._times[index]
        counts = [len(each.token_ids) for each in output.outputs]
        longest = max(counts, default=0)
        if longest:
            self._times[index] = now
            if before is not None:
                # What came at once since the last state came, as far as can be seen, in equal steps.
                self._meters.inter_token.observe((now - before) / longest, sum(counts))
            elif output.metrics.first_token_s is not None:
                self._meters.first_token.observe(output.metrics.first_token_s)
        self._record.output_tokens += sum(counts)
        for each, count in zip(output.outputs, counts, strict=True):
            self._tokens[index, each.index] += count
            if each.finish_reason is not None:
                self._finish(each.finish_reason, self._tokens[index, each.index])
        if output.finished:
            self._end(index, output, whole=before is None)

    def leave(self) -> None:
        """There will be no more states; completions that have not ended count as aborted."""
        if self._open:
            self._meters.finished["abort"] += self._open
            self._open = 0

    def _finish(self, reason: str, tokens: int) -> None:
        self._open -= 1
        self._record.finish_reasons.append(reason)
        self._meters.finished[reason] += 1
        self._meters.generation_tokens.observe(tokens)

    def _end(self, index: int, output: RequestOutput, *, whole: bool) -> None:
        metrics = output.metrics
        tokens = [count for (prompt, _), count in self._tokens.items() if prompt == index]
        longest = max(tokens, default=0)
        self._meters.end(metrics, len(output.prompt_token_ids), longest)
        if whole and longest > 1 and metrics.decode_s is not None:
            # Nobody saw its tokens come, so each counts with the mean.
            self._meters.inter_token.observe(metrics.decode_s / (longest - 1), sum(tokens) - len(tokens))


class Reading(NamedTuple):
    """A loaded model at one moment. step_limit_s: see MemoryLimit."""

    stats: EngineStats
    totals: Mapping[str, float]
    step_limit_s: float | None


class Meters:
    """Of a server. requests: HTTP requests that have ended, by method, route and status."""

    METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})

    def __init__(self, registry: ModelRegistry) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.limit = MemoryLimit(registry)
        self._registry = registry
        self._models: dict[str, ModelMeters] = {}

    def of(self, model: str) -> ModelMeters:
        """The meters of a served model, by the first of its names."""
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = ModelMeters()
        return found

    def read(self, model: ServedModel) -> Reading | None:
        """What its engine says now; None: it is not loaded. Costs some microseconds, and never waits for a step."""
        llm = model.llm
        if llm is None:
            return None
        own, stats = self.of(model.name), llm.stats()
        reading = Reading(stats, own.totals.read(llm, stats), self.limit.step_s(llm, stats))
        own.speedometer.take(reading.totals, reading.step_limit_s)
        return reading

    def end(self, record: Record) -> None:
        """An observer (see Service): an HTTP request has ended."""
        method = record.method if record.method in self.METHODS else "other"
        self.requests[method, record.route, record.status] += 1
        if record.outputs and record.model is not None:
            llm = self._registry.find(record.model).llm
            if llm is not None:  # it may be unloaded before somebody asks
                self.of(record.model).totals.read(llm, llm.stats())
