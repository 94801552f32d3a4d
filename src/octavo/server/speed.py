"""How fast engines go, and how near that is to what the machine's memory allows."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from weakref import WeakKeyDictionary

from octavo.core.errors import EngineClosedError
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.contracts import EngineStats
from octavo.server.models import ModelRegistry

__all__ = ["MemoryLimit", "Speed", "Speedometer"]


STAGES = ("schedule_s", "run_s", "sample_s", "commit_s")

_APART_S = 0.5  # readings that come sooner after one another are one
_KEPT_S = 120.0
_SAMPLES = 6
_SAMPLES_APART_S = 10.0


class MemoryLimit:
    """Seconds of a decode step if memory streamed at its measured rate.

    Measuring that takes all cores for a quarter of a second and 256 MiB of memory. So it is done after somebody has
    asked, in a thread, at moments at which nothing runs or waits; until then there is no limit. Other programs may be
    busy at such a moment, so it is done several times, and the best counts.
    """

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry
        self._rates: WeakKeyDictionary[AsyncLLM, _Rates] = WeakKeyDictionary()
        self._thread: threading.Thread | None = None

    def step_s(self, llm: AsyncLLM, stats: EngineStats) -> float | None:
        """Of what runs now: every weight is read once, and the keys and values of each sequence, taken as equally long.

        None: not measured yet, or the backend has no limit. Never waits.
        """
        rates = self._rates.get(llm)
        if rates is None or rates.wants_more():
            self._measure(llm)
        if rates is None or not rates.samples:
            return None
        weights = llm.decode_limit_tok_s(0)
        each = llm.decode_limit_tok_s(stats.used_slots // stats.running) if stats.running else weights
        if weights is None or each is None:
            return None
        return (1 / weights + stats.running * (1 / each - 1 / weights)) * rates.samples[0] / max(rates.samples)

    def join(self, timeout_s: float) -> None:
        """Wait for a measurement that is under way."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _measure(self, llm: AsyncLLM) -> None:
        if (self._thread is None or not self._thread.is_alive()) and self._idle():
            self._thread = threading.Thread(target=self._run, args=(llm,), name="octavo-limit", daemon=True)
            self._thread.start()

    def _idle(self) -> bool:
        stats = [model.llm.stats() for model in self._registry.models if model.llm is not None]
        return not any(each.running or each.waiting for each in stats)

    def _run(self, llm: AsyncLLM) -> None:
        with suppress(EngineClosedError):  # it was unloaded meanwhile
            if llm not in self._rates:
                reckoned = None if llm.decode_limit_tok_s() is None else stream_gb_s(llm)
                self._rates[llm] = _Rates([] if reckoned is None else [reckoned])
            self._rates[llm].add(llm)


class _Rates:
    """Of one engine's memory, as measured; the first is the one that its own limits reckon with. None: it has none."""

    def __init__(self, samples: list[float]) -> None:
        self.samples = samples
        self._taken = time.monotonic()

    def wants_more(self) -> bool:
        apart_s = time.monotonic() - self._taken
        return 0 < len(self.samples) < _SAMPLES and apart_s >= _SAMPLES_APART_S

    def add(self, llm: AsyncLLM) -> None:
        if self.samples:
            self.samples.append(stream_gb_s(llm, again=True))
            self._taken = time.monotonic()


def stream_gb_s(llm: AsyncLLM, *, again: bool = False) -> float:
    """Gigabytes per second that the engine's threads read; `again`: not those measured before in this process."""
    from octavo.ops.native import measure_stream

    threads = llm.config.threads
    assert threads is not None, "only the native backend has a limit"
    return measure_stream.__wrapped__(threads) if again else measure_stream(threads)


@dataclass(frozen=True)
class Speed:
    """Of an engine, over some time.

    output_tok_s, prompt_tok_s: tokens per second of time that has passed, those from the prefix cache included.
    step_shares: which part of the steps' time each stage took. limit_fraction: what the steps would have taken at the
    memory's limit over what they took: 1 is the limit. Steps with prompt tokens compute more than they read, and lower
    it. None where nothing ran, and where no limit is known.
    """

    output_tok_s: float
    prompt_tok_s: float
    step_shares: Mapping[str, float] | None
    limit_fraction: float | None


@dataclass(frozen=True)
class _Reading:
    """totals: see Totals. step_limit_s: of a step with what ran at that moment; None: nothing, or not known."""

    time: float
    totals: Mapping[str, float]
    step_limit_s: float | None


class Speedometer:
    """Makes speeds of counts that are read now and then, by anybody."""

    def __init__(self) -> None:
        self._readings: deque[_Reading] = deque()

    def take(self, totals: Mapping[str, float], step_limit_s: float | None) -> None:
        """The counts of this moment."""
        now = time.monotonic()
        if self._readings and now - self._readings[-1].time < _APART_S:
            return
        while self._readings and now - self._readings[0].time > _KEPT_S:
            self._readings.popleft()
        self._readings.append(_Reading(now, totals, step_limit_s))

    def speed(self, within_s: float) -> Speed | None:
        """Between the last reading and the first one that is at most so much older; None: there is no such two."""
        if not self._readings:
            return None
        last = self._readings[-1]
        used = [each for each in self._readings if each.time >= last.time - within_s]
        first = used[0]
        if first is last:
            return None
        grown = {name: count - first.totals.get(name, 0) for name, count in last.totals.items()}
        spent, passed = sum(grown.get(stage, 0) for stage in STAGES), last.time - first.time
        limits = [each.step_limit_s for each in used if each.step_limit_s is not None]
        return Speed(
            output_tok_s=grown.get("generated_tokens", 0) / passed,
            prompt_tok_s=grown.get("prompt_tokens", 0) / passed,
            step_shares={stage: grown.get(stage, 0) / spent for stage in STAGES} if spent else None,
            limit_fraction=grown.get("steps", 0) * fmean(limits) / spent if spent and limits else None,
        )
