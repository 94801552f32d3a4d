"""The engine benchmark on tiny models: what it runs, what it reports, and how it ends early."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.engines import BACKENDS, NATIVE
from octavo.core.errors import ConfigError, ModelNotFoundError
from octavo.engine.scheduler import Scheduler
from octavo.engine.step import Engine
from octavo.measure.engine_bench import EngineBench, bench_engine, prefill_plan
from octavo.measure.engine_rows import EngineRun, engine_row
from octavo.measure.limits import Rates
from octavo.measure.model_cost import MatrixMacs, ModelCost
from octavo.measure.overhead import StepCost

Tiny = Callable[..., Path]


class FixedMeter:
    """Limits that do not change, and that no machine reaches."""

    def __init__(self, rates: Rates = Rates(1e4, 1e6, 5e5, 2e5)) -> None:  # noqa: B008
        self.rates, self.calls = rates, 0

    def sample(self) -> Rates:
        self.calls += 1
        return self.rates


def bench(**changes: object) -> EngineBench:
    values = {"prompt_tokens": 20, "output_tokens": 3, "batches": (1, 3), "repeats": 2}
    return EngineBench(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OCTAVO_BACKEND", request.param)
    return str(request.param)


def test_a_report_has_a_row_for_each_batch(tiny_gguf: Tiny, backend: str) -> None:
    meter = FixedMeter()
    lines: list[str] = []
    report = bench_engine(tiny_gguf("gemma3"), bench(), meter=meter, log=lines.append)
    found = json.loads(json.dumps(report.as_json()))
    assert [row["batch"] for row in found["rows"]] == [1, 3]
    assert not found["interrupted"]
    for row in found["rows"]:
        assert (row["prompt_tokens"], row["output_tokens"], row["repeats"]) == (20, 3, 2)
        for phase in ("prefill", "decode"):
            assert 0 < row[f"{phase}_tok_s"] <= row[f"{phase}_tok_s_best"]
            assert row[f"{phase}_limit"] in ("stream", "dot")
            assert 0 < row[f"{phase}_limit_fraction"] < 1
            assert row[f"{phase}_limit_fraction_best"] == pytest.approx(
                row[f"{phase}_tok_s_best"] / row[f"{phase}_limit_tok_s"], rel=1e-4
            )
        assert 0 < row["prefill_attention_fraction"] < 1
        assert len(row["runs"]) == 2
        assert row["runs"][0]["f32_gmac_s"] == 2e5
        split = row["split"]
        assert split["run_ms"] <= split["step_ms"]
        both = (split["schedule_ms"] + split["commit_ms"]) / split["step_ms"]
        assert split["bookkeeping_fraction"] == pytest.approx(both, rel=1e-4)
    # Before the first run and after each of 2 x 2: a sample on either side of every run.
    assert meter.calls == found["host"]["limit_samples"] == 5
    assert len(lines) == 4
    assert "batch 3, repeat 2 of 2" in lines[-1]
    assert found["host"]["backend"] == backend
    assert found["host"]["stream_gb_s"] == 1e4


@pytest.mark.skipif(not NATIVE, reason="the native extension is not built")
def test_the_split_counts_the_native_calls(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "native")
    report = bench_engine(tiny_gguf("qwen2", layers=3), bench(batches=(2,), repeats=1), meter=FixedMeter())
    split = report.rows[0]["split"]
    assert split["native_calls"] == 2  # the model's program, and argmax
    assert 0 < split["outside_native_fraction"] < 1
    assert split["native_ms"] < split["run_ms"] + split["sample_ms"]
    assert split["outside_native_ms"] == pytest.approx(split["step_ms"] - split["native_ms"])


def test_the_reference_backend_says_that_it_has_no_limits(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    report = bench_engine(tiny_gguf(), bench(batches=(1,), repeats=1))
    (row,) = report.rows
    assert row["decode_limit_fraction"] is row["prefill_limit_fraction"] is row["split"]["native_ms"] is None
    assert row["prefill_attention_fraction"] is None
    assert any("reference backend" in note for note in report.notes)


def test_prompts_are_computed_every_time(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    counted: list[tuple[int, ...]] = []
    plain = Scheduler.schedule

    def schedule(self: Scheduler) -> object:
        plan = plain(self)
        counted.append(tuple(plan.counts))
        return plan

    monkeypatch.setattr(Scheduler, "schedule", schedule)
    bench_engine(tiny_gguf(), bench(repeats=1, seed=5), meter=FixedMeter())
    warm_up, one, three = [i for i, counts in enumerate(counted) if max(counts) > 1]
    assert (counted[warm_up], counted[one], counted[three]) == ((16,), (20,), (20, 20, 20))
    # Three steps are timed and 16 more are split into their parts, all sequences in each.
    assert counted[one + 1 : three] == [(1,)] * (3 + 16)
    assert counted[three + 1 :] == [(1, 1, 1)] * (3 + 16)


def test_an_interrupt_keeps_what_there_is(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    lines: list[str] = []
    plain = Engine.step

    def step(self: Engine) -> object:
        if len(lines) == 3:
            raise KeyboardInterrupt
        return plain(self)

    monkeypatch.setattr(Engine, "step", step)
    report = bench_engine(tiny_gguf(), bench(), meter=FixedMeter(), log=lines.append)
    assert report.interrupted
    assert [(row["batch"], row["repeats"]) for row in report.rows] == [(1, 2), (3, 1)]
    monkeypatch.setattr(Engine, "step", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    report = bench_engine(tiny_gguf(), bench(), meter=FixedMeter())
    assert (report.interrupted, report.rows) == (True, [])
    assert report.as_json()["host"]["limit_samples"] == 0


def test_the_whole_context_can_be_used(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    path = tiny_gguf(context_length=24)
    report = bench_engine(path, bench(batches=(1,), repeats=1), meter=FixedMeter())
    assert report.rows[0]["split"] is None
    with pytest.raises(
        ConfigError, match=r"batch 1 need a context of 25 tokens, and this model has 24; lower --prompt"
    ):
        bench_engine(path, bench(batches=(1,), output_tokens=4), meter=FixedMeter())


def test_many_prompts_do_not_fit_one_step(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    wanted = bench(prompt_tokens=200, batches=(5,), repeats=1)
    report = bench_engine(tiny_gguf(layers=1), wanted, meter=FixedMeter())
    assert report.rows[0]["prefill_steps"] == prefill_plan(5, 200, 512)[0] == 2


@pytest.mark.parametrize(
    ("batch", "prompt", "room", "expected"),
    [(1, 512, 512, (1, 1)), (1, 513, 512, (2, 2)), (4, 256, 512, (3, 1)), (3, 10, 6, (6, 2)), (2, 1, 512, (1, 1))],
)
def test_the_plan_of_prefill_steps(batch: int, prompt: int, room: int, expected: tuple[int, int]) -> None:
    assert prefill_plan(batch, prompt, room) == expected


@pytest.mark.parametrize("changes", [{"repeats": 0}, {"batches": ()}, {"batches": (1, 0)}, {"seed": -1}])
def test_impossible_values_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        bench(**changes)


def test_a_missing_model_is_said() -> None:
    with pytest.raises(ModelNotFoundError):
        bench_engine("./no-such-model.gguf", bench())


def test_medians_bests_and_fractions() -> None:
    matrices = MatrixMacs({"int8": 10**8}, {"int8": 0})
    cost = ModelCost(stream_bytes=10**9, matrices=matrices, position_bytes=0, position_macs=10**6, windows=(0,))
    split = StepCost(
        steps=2, wall_s=0.4, native_s=0.3, native_calls=10, schedule_s=0, run_s=0.35, sample_s=0, commit_s=0
    )
    runs = [
        EngineRun(8.0, 1, (4,), (0.5, 0.5), Rates(4.0, 1.0, None, 1.0)),
        EngineRun(4.0, 1, (4,), (1.0, 1.0), Rates(2.0, 2.0)),
        EngineRun(16.0, 1, (4,), (4.0, 4.0), Rates(1.0, 1.0), split),
    ]
    row = engine_row(1, 40, runs, cost)
    # Two steps of 1 GB at 4, 2 and 1 GB/s: 0.5 of 1 s, 1 of 2 s, 2 of 8 s.
    assert (row["decode_tok_s"], row["decode_tok_s_best"]) == (1.0, 2.0)
    assert row["decode_limit_fraction"] == 0.5
    assert row["decode_limit_fraction_best"] == 0.5
    # Forty tokens of 0.1 GMAC at 1, 2 and 1 GMAC/s: 4 of 8 s, 2 of 4 s, 4 of 16 s; the best run at the best rate.
    assert row["prefill_limit_fraction"] == 0.5
    assert row["prefill_limit_fraction_best"] == 0.5
    # 40 * 41 / 2 positions of 10^6 products at 1 GMAC/s, 0.82 s, in the one run of 8 s that knows the f32 peak.
    assert row["prefill_attention_fraction"] == pytest.approx(0.1025)
    assert row["prefill_tok_s"] == 5
    assert row["split"]["outside_native_fraction"] == pytest.approx(0.25)
    assert row["split"]["native_ms"] == pytest.approx(150)
    assert row["split"]["native_calls"] == 5
