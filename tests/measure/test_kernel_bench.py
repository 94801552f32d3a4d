"""The kernel benchmark on small matrices: its cases, its rows, and how it ends early."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from helpers.engines import NATIVE
from octavo.core.errors import ConfigError, UnsupportedModelError
from octavo.measure import kernel_bench, kernel_cases
from octavo.measure.kernel_bench import KernelBench, bench_kernels, kernel_row, time_calls
from octavo.measure.kernel_cases import Case, copies_past_cache, linear_cases
from octavo.measure.limits import Rates
from octavo.ops.api import AttentionSpec
from octavo.ops.reference import ReferenceOps

needs_native = pytest.mark.skipif(not NATIVE, reason="the native extension is not built")


class FixedMeter:
    def sample(self) -> Rates:
        return Rates(10.0, 100.0, 50.0, 25.0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that fits the cache of a test: few copies, a short context."""
    monkeypatch.setattr(kernel_cases, "MAX_COPIES", 3)
    monkeypatch.setattr(kernel_cases, "CONTEXT", 64)
    shapes = tuple(AttentionSpec(heads, 2, head_dim=16, scale=0.25) for heads in (4, 6))
    monkeypatch.setattr(kernel_cases, "ATTENTION", shapes)


@needs_native
@pytest.mark.usefixtures("small")
def test_every_op_gets_its_rows() -> None:
    wanted = KernelBench(formats=("Q4_K", "F32"), rows=48, columns=256, tokens=(1, 3), threads=1, seconds=0.001)
    found = json.loads(json.dumps(bench_kernels(wanted, meter=FixedMeter()).as_json()))
    kinds = [(row["op"], row.get("format") or row.get("kv_dtype"), row["tokens"]) for row in found["rows"]]
    assert [kind for kind in kinds if kind[0] == "linear"] == [
        ("linear", "Q4_K", 1), ("linear", "Q4_K", 3), ("linear", "F32", 1), ("linear", "F32", 3)
    ]  # fmt: skip
    assert kinds.count(("attention", "float16", 1)) == kinds.count(("attention", "bfloat16", 64)) == 2
    attention = [row for row in found["rows"] if row["op"] == "attention"]
    assert {(row["phase"], row["heads"], row["kv_heads"], row["context"], row["peak"]) for row in attention} == {
        (phase, heads, 2, 64, "f32") for phase in ("decode", "prefill") for heads in (4, 6)
    }
    assert [kind for kind in kinds if kind[0] == "rms_norm"] == [("rms_norm", None, 1), ("rms_norm", None, 3)]
    assert ("embedding", "F32", 3) in kinds
    for row in found["rows"]:
        assert row["calls"] >= 5
        assert 0 < row["time_us_best"] <= row["time_us"]
        assert row["stream_fraction"] is None, "data in a cache says nothing about the stream rate"
        multiplies = row["op"] in ("linear", "attention")
        assert (row["peak_fraction"] is not None) == (row["limit"] == "dot") == multiplies
    assert {row["format"]: row["peak"] for row in found["rows"] if row["op"] == "linear"} == {
        "Q4_K": "int8",
        "F32": "f32",
    }
    assert found["rows"][0]["bits"] == 4.5
    assert found["rows"][0]["relative_time"] == 1
    assert found["host"]["limit_samples"] == 1 + 2 + 1 + 1 + 2
    assert [found["host"][f"{name}_gmac_s"] for name in ("dot", "bf16", "f32")] == [100, 50, 25]


@needs_native
@pytest.mark.usefixtures("small")
def test_a_format_that_the_shape_does_not_fit() -> None:
    shape = {"rows": 16, "columns": 96, "ops": ("linear",), "tokens": (1,), "threads": 1, "seconds": 0.001}
    report = bench_kernels(KernelBench(**shape), meter=FixedMeter())  # type: ignore[arg-type]
    measured = {row["format"] for row in report.rows}
    assert "Q4_0" in measured
    assert "Q4_K" not in measured
    assert any("linear Q4_K is left out: 96 columns" in note for note in report.notes)
    with pytest.raises(ConfigError, match="96 columns"):
        bench_kernels(KernelBench(formats=("Q4_K",), **shape), meter=FixedMeter())  # type: ignore[arg-type]


@needs_native
@pytest.mark.usefixtures("small")
def test_an_interrupt_keeps_what_there_is() -> None:
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            raise KeyboardInterrupt

    wanted = KernelBench(ops=("linear",), rows=16, columns=256, tokens=(1,), threads=1, seconds=0.001)
    report = bench_kernels(wanted, meter=FixedMeter(), log=log)
    assert report.interrupted
    assert [row["format"] for row in report.rows] == ["F32", "F16"]


@needs_native
@pytest.mark.usefixtures("small")
def test_every_format_of_the_extension_is_measured() -> None:
    from octavo.ops.native import storage_formats

    wanted = KernelBench(ops=("linear", "embedding"), rows=16, columns=256, tokens=(1,), threads=1, seconds=1e-6)
    report = bench_kernels(wanted, meter=FixedMeter())
    assert report.notes == []
    for op in wanted.ops:
        assert [row["format"] for row in report.rows if row["op"] == op] == storage_formats()


def test_a_case_computes_what_it_says() -> None:
    (case,) = linear_cases(ReferenceOps(), "Q8_0", 64, 32, [2])
    results = [call() for call in case.calls]
    assert results[0].shape == (2, 64)  # type: ignore[attr-defined]
    assert all(np.array_equal(results[0], other) for other in results)
    assert case.macs == 2 * 64 * 32


def test_copies_are_more_than_any_cache_holds() -> None:
    count, cold = copies_past_cache(1 << 20)
    assert cold
    assert count << 20 > max(cache.size_bytes for cache in kernel_cases.host_facts().caches or [_NO_CACHE])
    assert copies_past_cache(1 << 40) == (2, True)
    assert copies_past_cache(1) == (kernel_cases.MAX_COPIES, False)


class _NO_CACHE:
    size_bytes = kernel_cases.UNKNOWN_CACHE_BYTES


def test_calls_take_turns_and_the_first_is_not_counted() -> None:
    called: list[int] = []
    times = time_calls([lambda: called.append(0), lambda: called.append(1)], 0)
    assert len(times) == 5
    assert called == [1, 0, 1, 0, 1, 0]


def test_long_calls_are_timed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1000, 4))
    monkeypatch.setattr(kernel_bench.time, "perf_counter", lambda: float(next(now)))
    assert time_calls([lambda: None], 0.25) == [4.0, 4.0]


def test_fractions_of_the_limits() -> None:
    rates = Rates(10.0, 100.0, 50.0, 200.0)
    case = Case({"op": "linear"}, [], moved_bytes=10**9, cold=True, macs=10**10, kind="int8")
    row = kernel_row(case, [0.2, 0.25, 0.3], rates)
    assert (row["gb_s"], row["stream_fraction"]) == (4.0, pytest.approx(0.4))
    assert (row["gmac_s"], row["peak"], row["peak_fraction"]) == (40.0, "int8", pytest.approx(0.4))
    assert row["limit"] in ("stream", "dot")
    assert row["limit_fraction"] == pytest.approx(0.4)
    assert row["limit_fraction_best"] == pytest.approx(0.5)
    assert row["gb_s_best"] == pytest.approx(5.0)
    # In bf16 the peak is the tighter limit; in f32 it is memory, unless the data lies in a cache.
    found = {}
    for kind, cold in (("bf16", True), ("f32", True), ("f32", False)):
        again = kernel_row(replace(case, kind=kind, cold=cold), [0.25], rates)
        found[kind, cold] = (again["limit"], again["limit_fraction"], again["peak_fraction"])
    assert found == {
        ("bf16", True): ("dot", pytest.approx(0.8), pytest.approx(0.8)),
        ("f32", True): ("stream", pytest.approx(0.4), pytest.approx(0.2)),
        ("f32", False): ("dot", pytest.approx(0.2), pytest.approx(0.2)),
    }
    warm = kernel_row(Case({"op": "rms_norm"}, [], moved_bytes=8, cold=False), [1.0], rates)
    assert warm["limit"] is warm["limit_fraction"] is warm["gmac_s"] is warm["stream_fraction"] is warm["peak"] is None


def test_impossible_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="no op 'conv' to measure; possible: linear"):
        KernelBench(ops=("conv",))
    with pytest.raises(UnsupportedModelError, match="'Q9'"):
        KernelBench(formats=("Q9",))
    for changes in ({"rows": 0}, {"tokens": ()}, {"tokens": (0,)}, {"seconds": 0.0}, {"seconds": float("nan")}):
        with pytest.raises(ConfigError):
            KernelBench(**changes)  # type: ignore[arg-type]
