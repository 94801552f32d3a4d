"""The benchmark of the KV pool: what each allocator reserves, and how its slots are counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import ConfigError
from octavo.engine.step import Engine
from octavo.measure.neighbours import Neighbours
from octavo.measure.pool_bench import PLOT_POINTS, PoolBench, bench_pool
from octavo.measure.workloads import Item

Tiny = Callable[..., Path]


def bench(**changes: Any) -> PoolBench:
    values = {"requests": 12, "max_model_len": 64, "pool_tokens": 128, "block_size": 16, "repeats": 1}
    return PoolBench(**{**values, **changes})


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    monkeypatch.setattr(Neighbours, "fraction", lambda self: 0.0)


def test_what_is_reserved() -> None:
    item = Item(prompt_token_ids=[1, 2, 3], output_tokens=4)
    paged, exact, whole = (bench().reserve(name) for name in ("paged", "exact", "whole"))
    assert paged is None
    assert exact is not None
    assert whole is not None
    assert (exact(item), whole(item)) == (7, 64)


def test_no_request_is_longer_than_the_engine_takes() -> None:
    for length in (32, 64, 2048):
        assert bench(max_model_len=length, pool_tokens=4096).workload(0).longest <= length


def test_pages_hold_more_requests_than_contiguous_memory(tiny_gguf: Tiny) -> None:
    report = bench_pool(tiny_gguf(), bench())
    rows = {row["allocator"]: row for row in json.loads(json.dumps(report.as_json()))["rows"]}
    assert list(rows) == ["paged", "exact", "whole"]
    assert rows["whole"]["running_peak"] == 128 // 64
    assert rows["whole"]["running"] <= 2 < rows["paged"]["running"]
    assert rows["whole"]["running"] < rows["exact"]["running"]
    for row in rows.values():
        assert 0 < row["utilization_mean"] < 1
        assert 0 < row["utilization_peak"] <= 1
        assert 0 < row["pool_fraction"] <= 1
        assert len(row["timeline"]["time_s"]) <= PLOT_POINTS
    # Pages of 16 waste less than 16 slots of a sequence; what is reserved for all 64 is mostly empty.
    assert rows["whole"]["utilization_mean"] < rows["exact"]["utilization_mean"]
    assert rows["whole"]["utilization_mean"] < rows["paged"]["utilization_mean"]
    assert max(rows["exact"]["timeline"]["allocated_slots"]) <= 128
    assert set(rows["whole"]["timeline"]["allocated_slots"]) <= {0, 64, 128}
    assert rows["whole"]["speedup"] == {"median": 1, "low": 1, "high": 1, "count": 1}
    assert rows["exact"]["preemptions"] == rows["whole"]["preemptions"] == 0
    assert len({row["mean_total_tokens"] for row in rows.values()}) == 1
    assert "lognormal" in report.notes[0]


def test_an_interrupt_keeps_what_is_done(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    plain = Engine.step

    def step(self: Engine) -> object:
        if len(lines) == 2:
            raise KeyboardInterrupt
        return plain(self)

    monkeypatch.setattr(Engine, "step", step)
    report = bench_pool(tiny_gguf(), bench(), log=lines.append)
    assert report.interrupted
    assert [row["allocator"] for row in report.rows] == ["paged", "exact"]
    assert report.rows[0]["speedup"] is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"requests": 0}, "requests must be at least 1"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"max_model_len": 31}, "max_model_len must be at least 32"),
        ({"pool_tokens": 63}, "pool_tokens 63 is below max_model_len 64"),
    ],
)
def test_impossible_values_are_refused(changes: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench(**changes)
