"""Samples of the machine's limits, and the time that work takes at them."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest

from octavo.measure.limits import LimitMeter, Rates, best_rates, mean_rates, median_rates, rates_as_json
from octavo.measure.model_cost import Limit, ModelCost, limit_of

SAMPLES = [Rates(10.0, 100.0), Rates(40.0, 300.0), Rates(20.0, 200.0)]


def test_samples_are_combined() -> None:
    assert mean_rates(SAMPLES[:2]) == Rates(25.0, 200.0)
    assert median_rates(SAMPLES) == Rates(20.0, 200.0)
    assert best_rates(SAMPLES) == Rates(40.0, 300.0)
    assert rates_as_json(SAMPLES)["stream_gb_s_best"] == 40.0
    assert rates_as_json(SAMPLES)["limit_samples"] == 3


def test_what_was_not_measured_stays_unknown() -> None:
    assert mean_rates([]) == Rates(None, None)
    assert mean_rates([Rates(4.0, None), Rates(2.0, None)]) == Rates(3.0, None)


def test_every_sample_is_a_new_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    native = pytest.importorskip("octavo.ops.native", exc_type=ImportError)
    rates = iter([5.0, 6.0, 7.0])
    monkeypatch.setattr(native, "measure_stream", functools.cache(lambda threads: next(rates) + threads))
    monkeypatch.setattr(native, "measure_dot", lambda threads: 100.0 * threads)
    meter = LimitMeter(2)
    assert [meter.sample() for _ in range(3)] == [Rates(7.0, 200.0), Rates(8.0, 200.0), Rates(9.0, 200.0)]
    assert meter.missing == ""


def test_an_extension_without_the_dot_measurement_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    native = pytest.importorskip("octavo.ops.native", exc_type=ImportError)
    monkeypatch.setattr(native, "measure_stream", lambda threads: 9.0)
    monkeypatch.delattr(native, "measure_dot", raising=False)
    meter = LimitMeter(1)
    assert meter.sample() == Rates(9.0, None)
    assert "no dot-product peak" in meter.missing


def test_the_reference_backend_has_no_limits() -> None:
    meter = LimitMeter(None)
    assert meter.sample() == Rates(None, None)
    assert "reference" in meter.missing


def test_the_slower_limit_counts() -> None:
    rates = Rates(stream_gb_s=2.0, dot_gmac_s=4.0)
    assert limit_of(2e9, 1e9, rates) == Limit(1.0, "stream")
    assert limit_of(2e9, 8e9, rates) == Limit(2.0, "dot")
    assert limit_of(2e9, 8e9, Rates(None, 4.0)) == Limit(2.0, "dot")
    assert limit_of(2e9, 8e9, Rates()) is None


def cost(windows: tuple[int, ...] = (0, 4)) -> ModelCost:
    shape = SimpleNamespace(hidden=8, heads=4, kv_heads=2, head_dim=3, ffn=16, vocab=50, layers=2, windows=windows)
    return ModelCost.from_config(shape, stream_bytes=1000, kv_dtype="float16")  # type: ignore[arg-type]


def test_the_cost_of_a_model() -> None:
    # q 8x12, k and v 8x6 each, out 12x8, gate, up and down 8x16 each; two layers.
    assert cost().layer_macs == 2 * (96 + 2 * 48 + 96 + 3 * 128)
    assert cost().head_macs == 400
    # K and V of 2 heads of 3 dimensions of 2 bytes; the second layer sees 4 tokens at most.
    assert cost().kv_bytes(3) == 24 * (3 + 3)
    assert cost().kv_bytes(10) == 24 * (10 + 4)


def test_the_decode_limit_adds_up_what_each_step_reads() -> None:
    limit = cost().decode_limit([10, 20], 2, Rates(stream_gb_s=1.0))
    kv = 24 * ((11 + 4) + (12 + 4) + (21 + 4) + (22 + 4))
    assert limit == Limit((2 * 1000 + kv) / 1e9, "stream")
    compute = cost().decode_limit([10, 20], 2, Rates(1e9, 1.0))
    assert compute == Limit(2 * 2 * (cost().layer_macs + 400) / 1e9, "dot")
    assert cost().decode_limit([10], 2, Rates(None, 1.0)) is None


def test_the_prefill_limit_counts_the_head_once_per_sequence() -> None:
    limit = cost().prefill_limit(3, 7, 2, Rates(1e9, 1.0))
    assert limit == Limit(3 * (7 * cost().layer_macs + 400) / 1e9, "dot")
    assert cost().prefill_limit(3, 7, 2, Rates(1e-9, 1.0)) == Limit(2 * 1000.0, "stream")
    assert cost().prefill_limit(3, 7, 2, Rates(1.0, None)) is None
