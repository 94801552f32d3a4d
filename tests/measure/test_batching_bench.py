"""The benchmark of batching policies: the same requests both ways, and the ratios between them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import ConfigError
from octavo.engine.scheduler import Scheduler
from octavo.engine.step import Engine
from octavo.measure.batching_bench import BatchingBench, bench_batching
from octavo.measure.neighbours import Neighbours

Tiny = Callable[..., Path]


def bench(**changes: Any) -> BatchingBench:
    values = {"requests": 12, "batch": 3, "median_tokens": 5, "max_tokens": 30, "repeats": 2}
    return BatchingBench(**{**values, **changes})


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    monkeypatch.setattr(Neighbours, "fraction", lambda self: 0.0)


def test_both_policies_serve_the_same_requests(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: dict[str, int] = {}
    plain = Scheduler.schedule

    def schedule(self: Scheduler) -> object:
        steps[self.config.scheduling_policy] = steps.get(self.config.scheduling_policy, 0) + 1
        return plain(self)

    monkeypatch.setattr(Scheduler, "schedule", schedule)
    lines: list[str] = []
    report = bench_batching(tiny_gguf(), bench(), log=lines.append)
    continuous, static = json.loads(json.dumps(report.as_json()))["rows"]
    assert (continuous["policy"], static["policy"]) == ("continuous", "static")
    # Both orders of the turns.
    assert [line.split(",")[0] for line in lines] == ["continuous", "static", "static", "continuous"]
    assert [run["output_tokens"] for run in continuous["runs"]] == [run["output_tokens"] for run in static["runs"]]
    assert steps["continuous"] < steps["static"]
    for row in (continuous, static):
        assert (row["requests"], row["batch"], row["repeats"], len(row["latencies_s"])) == (12, 3, 2, 24)
        assert row["latencies_s"] == sorted(row["latencies_s"])
        assert 0 < row["latency_p50_s"] <= row["latency_p99_s"] <= row["seconds"] * 10
        assert 0 < row["bookkeeping_fraction"] < 1
    for name in ("throughput_ratio", "latency_mean_ratio", "latency_p50_ratio", "latency_p99_ratio"):
        assert static[name] == {"median": 1, "low": 1, "high": 1, "count": 2}
        assert 0 < continuous[name]["low"] <= continuous[name]["median"] <= continuous[name]["high"]
    assert "lognormal, median 5, sigma 1, 1 to 30 tokens; all requests are there" in report.notes[0]


def test_requests_may_arrive_one_by_one(tiny_gguf: Tiny) -> None:
    report = bench_batching(tiny_gguf(), bench(rate=200.0, repeats=1, requests=5))
    assert report.notes[0].endswith("requests arrive as a Poisson process of 200 per second")
    assert [row["rate"] for row in report.rows] == [200, 200]


def test_an_interrupt_keeps_what_is_done(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    plain = Engine.step

    def step(self: Engine) -> object:
        if len(lines) == 1:
            raise KeyboardInterrupt
        return plain(self)

    monkeypatch.setattr(Engine, "step", step)
    report = bench_batching(tiny_gguf(), bench(), log=lines.append)
    assert report.interrupted
    (row,) = report.rows
    assert (row["policy"], row["repeats"], row["throughput_ratio"]) == ("continuous", 1, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"requests": 0}, "requests must be at least 1"),
        ({"rate": -1.0}, "rate must be above 0"),
        ({"sigma": 9.0}, "sigma must be"),
        ({"median_tokens": 31}, "median length 31 must be between 1 and 30"),
    ],
)
def test_impossible_values_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench(**changes)
