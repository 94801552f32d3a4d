"""The benchmark of stalls: the steps that each way takes, and which gaps are counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import ConfigError
from octavo.engine.step import Engine
from octavo.measure.stall_bench import AFTER_STEPS, SETTLE_STEPS, StallBench, bench_stall

Tiny = Callable[..., Path]


def bench(**changes: Any) -> StallBench:
    values = {"prompt_tokens": 700, "decodes": 2, "arrivals": 2, "repeats": 1, "stall_ms": 1e6}
    return StallBench(**{**values, **changes})


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")


def test_gaps_while_the_prompt_is_computed(tiny_gguf: Tiny) -> None:
    lines: list[str] = []
    report = bench_stall(tiny_gguf(layers=1, context_length=2048), bench(), log=lines.append)
    rows = {row["way"]: row for row in json.loads(json.dumps(report.as_json()))["rows"]}
    assert list(rows) == ["budget", "chunks", "whole"]
    assert len(lines) == 3
    # With 510 of a step's 512 tokens the prompt takes two steps; a limit that no step reaches changes nothing.
    assert [row["steps"] for row in rows.values()] == [2, 2, 1]
    assert [row["max_num_batched_tokens"] for row in rows.values()] == [512, 512, 703]
    assert [row["max_decode_stall_ms"] for row in rows.values()] == [1e6, None, None]
    for row in rows.values():
        assert row["arrivals"] == row["ttft_ms"]["count"] == 2
        assert 0 < row["gap_p50_ms"] <= row["gap_p99_ms"] <= row["gap_max_ms"]
        assert row["gap_max_ms"] <= row["ttft_ms"]["high"] + row["alone_p50_ms"] * 1000
        assert row["over_fraction"] == 0
        # The last arrival of one answer, with what was before and after it.
        times = row["timeline"]["time_s"]
        assert times == sorted(times)
        assert len(times) == len(row["timeline"]["gap_ms"]) == SETTLE_STEPS + row["steps"] + AFTER_STEPS
        assert sum(at <= 0 for at in times) == SETTLE_STEPS
    assert rows["whole"]["ttft_ratio"] == {"median": 1, "low": 1, "high": 1, "count": 2}


def test_a_tight_limit_cuts_the_prompt(tiny_gguf: Tiny) -> None:
    report = bench_stall(tiny_gguf(layers=1, context_length=4096), bench(stall_ms=1e-6, arrivals=1))
    budget, chunks, _ = report.rows
    # Chunks of 16, the shortest there are: answers have tokens enough for that, and every gap is over the limit.
    assert chunks["steps"] == 2
    assert budget["steps"] == -(-700 // 16)
    assert budget["over_fraction"] == 1


def test_an_interrupt_keeps_what_is_done(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    plain = Engine.step

    def step(self: Engine) -> object:
        if len(lines) == 2:
            raise KeyboardInterrupt
        return plain(self)

    monkeypatch.setattr(Engine, "step", step)
    report = bench_stall(tiny_gguf(layers=1, context_length=2048), bench(prompt_tokens=40), log=lines.append)
    assert report.interrupted
    assert [row["way"] for row in report.rows] == ["budget", "chunks"]
    assert report.rows[0]["ttft_ratio"] is None


@pytest.mark.parametrize("name", ["prompt_tokens", "decodes", "arrivals", "repeats"])
def test_impossible_values_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1"):
        bench(**{name: 0})


def test_a_limit_must_be_a_time() -> None:
    with pytest.raises(ConfigError, match="stall_ms must be above 0"):
        bench(stall_ms=float("nan"))


def test_a_context_that_is_too_short_is_said(tiny_gguf: Tiny) -> None:
    with pytest.raises(ConfigError, match="lower --prompt-tokens or --arrivals"):
        bench_stall(tiny_gguf(), bench())
