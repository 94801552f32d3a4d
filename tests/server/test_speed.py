"""Speeds from counts that are read now and then, and the limit that they are compared with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from octavo.core.errors import EngineClosedError
from octavo.server import speed as module
from octavo.server.speed import MemoryLimit, Speed, Speedometer


class Clock:
    """time.monotonic() as a test sets it."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def counts(steps: int) -> dict[str, float]:
    """Of an engine whose steps take 0.1 s, 0.075 of them in the model, and bring two tokens each."""
    return {
        "steps": steps,
        "generated_tokens": 2 * steps,
        "prompt_tokens": 10 * steps,
        "schedule_s": 0.01 * steps,
        "run_s": 0.075 * steps,
        "sample_s": 0.01 * steps,
        "commit_s": 0.005 * steps,
    }


def test_a_speed_needs_two_readings(clock: Clock) -> None:
    meter = Speedometer()
    assert meter.speed(10) is None
    meter.take(counts(0), None)
    assert meter.speed(10) is None


def test_speed_between_readings(clock: Clock) -> None:
    meter = Speedometer()
    meter.take(counts(5), 0.05)
    clock.now += 4
    meter.take(counts(25), 0.07)
    speed = meter.speed(10)
    assert speed is not None
    assert (speed.output_tok_s, speed.prompt_tok_s) == (10, 50)
    assert speed.limit_fraction == pytest.approx(0.6)
    assert speed.step_shares == pytest.approx({"schedule_s": 0.1, "run_s": 0.75, "sample_s": 0.1, "commit_s": 0.05})


def test_old_readings_do_not_count(clock: Clock) -> None:
    meter = Speedometer()
    meter.take(counts(0), 0.05)
    clock.now += 50
    meter.take(counts(100), 0.05)
    clock.now += 5
    meter.take(counts(100), None)
    assert meter.speed(10) == Speed(0, 0, None, None)
    speed = meter.speed(60)
    assert speed is not None
    assert speed.output_tok_s == pytest.approx(200 / 55)


def test_readings_close_together_are_one(clock: Clock) -> None:
    meter = Speedometer()
    for steps in range(1000):
        meter.take(counts(steps), 0.05)
        clock.now += 0.1
    assert len(meter._readings) <= 241
    speed = meter.speed(10)
    assert speed is not None
    assert speed.output_tok_s == pytest.approx(20)


class Engine:
    """An engine whose limit is 100 tok/s alone and 50 tok/s after 1000 tokens."""

    def __init__(self, limit: bool = True, closed: bool = False) -> None:
        self.calls: list[int] = []
        self.running = self.waiting = 0
        self._limit, self._closed = limit, closed

    def stats(self) -> Any:
        return SimpleNamespace(running=self.running, waiting=self.waiting, used_slots=1000 * self.running)

    def decode_limit_tok_s(self, context_tokens: int = 0) -> float | None:
        self.calls.append(context_tokens)
        if self._closed:
            raise EngineClosedError("closed")
        return (50.0 if context_tokens == 1000 else 100.0) if self._limit else None


class Memory:
    """What a measurement of it says: one rate after the other, the last one ever after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rates: float) -> None:
        self.rates, self.taken = list(rates), 0
        monkeypatch.setattr(module, "stream_gb_s", self.measure)

    def measure(self, llm: Any, *, again: bool = False) -> float:
        self.taken += again
        return self.rates.pop(0) if len(self.rates) > 1 else self.rates[0]


def limit_of(engine: Engine) -> tuple[MemoryLimit, Any]:
    registry: Any = SimpleNamespace(models=[SimpleNamespace(llm=engine), SimpleNamespace(llm=None)])
    return MemoryLimit(registry), engine


def test_the_limit_is_measured_once_somebody_has_asked_and_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    Memory(monkeypatch, 10.0)
    limit, engine = limit_of(Engine())
    engine.running = 2
    assert limit.step_s(engine, engine.stats()) is None
    limit.join(10)
    assert engine.calls == []
    engine.running = 0
    assert limit.step_s(engine, engine.stats()) is None
    limit.join(10)
    assert limit.step_s(engine, engine.stats()) == pytest.approx(0.01)


def test_weights_are_read_once_and_the_kv_of_each_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    Memory(monkeypatch, 10.0)
    limit, engine = limit_of(Engine())
    limit.step_s(engine, engine.stats())
    limit.join(10)
    engine.running = 3
    assert limit.step_s(engine, engine.stats()) == pytest.approx(0.01 + 3 * (0.02 - 0.01))


def test_the_best_of_several_measurements_counts(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch, 10.0, 5.0, 20.0, 15.0)
    limit, engine = limit_of(Engine())
    found = []
    for _ in range(20):
        found.append(limit.step_s(engine, engine.stats()))
        limit.join(10)
        clock.now += 6
    assert found[:2] == [None, pytest.approx(0.01)]
    assert found[4:] == [pytest.approx(0.005)] * 16
    assert memory.taken == 5


@pytest.mark.parametrize("engine", [Engine(limit=False), Engine(closed=True)], ids=["no limit", "closed meanwhile"])
def test_where_there_is_no_limit(engine: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch, 10.0)
    limit, _ = limit_of(engine)
    for _ in range(3):
        assert limit.step_s(engine, engine.stats()) is None
        limit.join(10)
        clock.now += 60
    assert memory.taken == 0
