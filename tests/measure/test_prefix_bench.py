"""The benchmark of shared prefixes: its waves, its pages, and what it reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import ConfigError
from octavo.engine.step import Engine
from octavo.measure.neighbours import Neighbours
from octavo.measure.prefix_bench import HIT_PAIRS, PrefixBench, bench_prefix

Tiny = Callable[..., Path]


def bench(**changes: Any) -> PrefixBench:
    values = {"requests": 4, "shared_tokens": 40, "own_tokens": 8, "output_tokens": 6, "block_size": 16, "repeats": 2}
    return PrefixBench(**{**values, **changes})


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    monkeypatch.setattr(Neighbours, "fraction", lambda self: 0.0)


def test_waves_share_the_prefix_and_nothing_else() -> None:
    waves = bench().waves(300, 0)
    assert waves["off"] == waves["cold"]
    prompts = [item.prompt_token_ids for name in ("cold", "warm") for item in waves[name]]
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 1
    assert len({tuple(prompt[40:]) for prompt in prompts}) == 8
    assert {len(prompt) for prompt in prompts} == {48}
    assert bench().waves(300, 1)["cold"][0].prompt_token_ids[:40] != prompts[0][:40]
    singles = [bench().single(300, 0, number).prompt_token_ids for number in range(3)]
    assert len({tuple(prompt[:8]) for prompt in (prompts[0], *singles)}) == 4
    assert bench(seed=1).waves(300, 0)["cold"][0].prompt_token_ids[:40] != prompts[0][:40]


def test_pages_are_shared_and_counted(tiny_gguf: Tiny) -> None:
    lines: list[str] = []
    report = bench_prefix(tiny_gguf(), bench(), log=lines.append)
    rows = {row["wave"]: row for row in json.loads(json.dumps(report.as_json()))["rows"]}
    assert list(rows) == ["off", "cold", "warm", "single"]
    assert len(lines) == 6
    for name in ("off", "cold", "warm"):
        assert (rows[name]["requests"], rows[name]["repeats"], rows[name]["peak_running"]) == (4, 2, 4)
        # 48 prompt tokens and 5 of the 6 generated ones; the last ends the request. Cold, one is ahead of the others.
        assert 40 + 4 * 10 < rows[name]["ideal_tokens"] <= 40 + 4 * 13
        assert rows[name]["ideal_tokens"] == 40 + 4 * 13 or name == "cold"
        assert rows[name]["unshared_tokens"] == 4 * 64
    assert rows["off"]["peak_pages"] == 16
    assert (rows["off"]["saving_fraction"], rows["off"]["hit_rate"]) == (0, 0)
    assert rows["off"]["speedup"] == {"median": 1, "low": 1, "high": 1, "count": 2}
    # Two full pages are everybody's, and two more are each one's own.
    for name in ("cold", "warm"):
        assert rows[name]["peak_pages"] == 2 + 4 * 2
        assert rows[name]["allocated_tokens"] == 160
        assert rows[name]["excess_fraction"] == pytest.approx(160 / rows[name]["ideal_tokens"] - 1, rel=1e-4)
        assert rows[name]["saving_fraction"] == pytest.approx(1 - 160 / 256)
    # Cold, three of four find the prefix; warm all do. By chance, a first own token may be another's, too.
    assert 3 * 40 <= round(rows["cold"]["hit_rate"] * 4 * 48) < 3 * 41
    assert 4 * 40 <= round(rows["warm"]["hit_rate"] * 4 * 48) < 4 * 41
    single = rows["single"]
    assert (single["prompt_tokens"], single["cached_tokens"]) == (48, 47)
    assert single["new_ms"]["count"] == single["hit_ms"]["count"] == single["ratio"]["count"] == 2 * HIT_PAIRS
    (note,) = report.notes
    assert note.startswith("8 of the 40 shared tokens do not fill a page of 16;")


def test_whole_pages_need_no_note(tiny_gguf: Tiny) -> None:
    assert bench_prefix(tiny_gguf(), bench(shared_tokens=32, repeats=1)).notes == []


def test_an_interrupt_keeps_the_waves_that_are_done(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    plain = Engine.step

    def step(self: Engine) -> object:
        if len(lines) == 2:
            raise KeyboardInterrupt
        return plain(self)

    monkeypatch.setattr(Engine, "step", step)
    report = bench_prefix(tiny_gguf(), bench(), log=lines.append)
    assert report.interrupted
    assert [(row["wave"], row["repeats"]) for row in report.rows] == [("off", 1), ("cold", 1)]


@pytest.mark.parametrize("name", ["requests", "shared_tokens", "own_tokens", "output_tokens", "repeats"])
def test_impossible_values_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1"):
        bench(**{name: 0})


def test_a_context_that_is_too_short_is_said(tiny_gguf: Tiny) -> None:
    with pytest.raises(ConfigError, match="lower --requests, --shared-tokens or --own-tokens"):
        bench_prefix(tiny_gguf(), bench(shared_tokens=600))
