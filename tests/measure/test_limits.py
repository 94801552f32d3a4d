"""Samples of the machine's limits, and the time that work takes at them."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from octavo.formats.ggml import FORMATS
from octavo.formats.tensor import Tensor
from octavo.measure.limits import (
    LimitMeter,
    Rates,
    best_rates,
    kind_of_format,
    mean_rates,
    median_rates,
    rates_as_json,
)
from octavo.measure.model_cost import Limit, MatrixMacs, ModelCost, limit_of

SAMPLES = [Rates(10.0, 100.0, 50.0, 25.0), Rates(40.0, 300.0, 150.0, 75.0), Rates(20.0, 200.0, 100.0, 50.0)]


def test_samples_are_combined() -> None:
    assert mean_rates(SAMPLES[:2]) == Rates(25.0, 200.0, 100.0, 50.0)
    assert median_rates(SAMPLES) == Rates(20.0, 200.0, 100.0, 50.0)
    assert best_rates(SAMPLES) == Rates(40.0, 300.0, 150.0, 75.0)
    assert rates_as_json(SAMPLES) == {
        "stream_gb_s": 20.0, "stream_gb_s_best": 40.0, "dot_gmac_s": 200.0, "dot_gmac_s_best": 300.0,
        "bf16_gmac_s": 100.0, "bf16_gmac_s_best": 150.0, "f32_gmac_s": 50.0, "f32_gmac_s_best": 75.0,
        "limit_samples": 3,
    }  # fmt: skip


def test_each_format_has_the_peak_of_what_multiplies_it() -> None:
    kinds = {name: kind_of_format(name) for name in FORMATS}
    assert {name for name, kind in kinds.items() if kind == "f32"} == {"F32", "F16"}
    assert {name for name, kind in kinds.items() if kind == "bf16"} == {"BF16", "FP8_E4M3", "FP8_E4M3_B128"}
    assert kinds["INT8"] == kinds["INT4_G64_Z"] == kinds["Q6_K"] == kinds["MXFP4"] == "int8"
    rates = Rates(1.0, 2.0, 3.0, 4.0)
    assert [rates.peak_gmac_s(kind) for kind in ("int8", "bf16", "f32")] == [2.0, 3.0, 4.0]


def test_what_was_not_measured_stays_unknown() -> None:
    assert mean_rates([]) == Rates()
    assert mean_rates([Rates(4.0, None), Rates(2.0, None)]) == Rates(3.0, None)


def test_every_sample_is_a_new_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    native = pytest.importorskip("octavo.ops.native", exc_type=ImportError)
    rates = iter([5.0, 6.0, 7.0])
    monkeypatch.setattr(native, "measure_stream", functools.cache(lambda threads: next(rates) + threads))
    peaks = {"int8": 100.0, "bf16": 50.0, "f32": 25.0}
    monkeypatch.setattr(native, "measure_dot", lambda threads, kind: peaks[kind] * threads)
    meter = LimitMeter(2)
    assert [meter.sample() for _ in range(3)] == [Rates(x, 200.0, 100.0, 50.0) for x in (7.0, 8.0, 9.0)]
    assert meter.missing == ""


def test_the_reference_backend_has_no_limits() -> None:
    meter = LimitMeter(None)
    assert meter.sample() == Rates(None, None, None, None)
    assert "reference" in meter.missing


def test_the_slower_limit_counts() -> None:
    rates = Rates(stream_gb_s=2.0, dot_gmac_s=4.0)
    assert limit_of(2e9, {"int8": 10**9}, rates) == Limit(1.0, "stream")
    assert limit_of(2e9, {"int8": 8 * 10**9}, rates) == Limit(2.0, "dot")
    assert limit_of(2e9, {"int8": 8 * 10**9}, Rates(None, 4.0)) == Limit(2.0, "dot")
    assert limit_of(2e9, {"int8": 8 * 10**9}, Rates()) is None


def test_each_kind_of_product_takes_its_own_time() -> None:
    rates = Rates(None, dot_gmac_s=4.0, bf16_gmac_s=2.0, f32_gmac_s=1.0)
    assert limit_of(0, {"int8": 4 * 10**9, "bf16": 10**9, "f32": 3 * 10**9}, rates) == Limit(1 + 0.5 + 3, "dot")
    # A peak that is missing makes the sum unknown, unless nothing needs it.
    assert limit_of(0, {"int8": 4, "f32": 1}, Rates(None, 4.0)) is None
    assert limit_of(0, {"int8": 4 * 10**9, "f32": 0}, Rates(None, 4.0)) == Limit(1.0, "dot")
    assert limit_of(1e9, {"int8": 4, "f32": 10**12}, Rates(2.0, 4.0)) == Limit(0.5, "stream")


def tensors(**dtypes: str) -> dict[str, Tensor]:
    """Two layers, hidden 8, 4 heads over 2 KV heads of 3, ffn 16, vocabulary 50; all Q8_0 but for `dtypes`."""
    matrices = {"attn_q": (12, 8), "attn_k": (6, 8), "attn_v": (6, 8), "attn_output": (8, 12)}
    matrices |= {"ffn_gate": (16, 8), "ffn_up": (16, 8), "ffn_down": (8, 16)}
    shapes: dict[str, tuple[int, ...]] = {f"blk.{i}.{name}.weight": x for i in (0, 1) for name, x in matrices.items()}
    shapes |= {"blk.0.attn_norm.weight": (8,), "blk.0.attn_q.bias": (12,), "output_norm.weight": (8,)}
    shapes |= {"token_embd.weight": (50, 8), "mm.0.weight": (5, 5)}
    none = np.zeros((0, 0), np.uint8)
    found = {name: Tensor(name, dtypes.get(name.split(".")[-2], "Q8_0"), x, none) for name, x in shapes.items()}
    if "output" in dtypes:
        found["output.weight"] = Tensor("output.weight", dtypes["output"], (50, 8), none)
    return found


LAYERS = 2 * (96 + 2 * 48 + 96 + 3 * 128)


def cost(windows: tuple[int, ...] = (0, 4), **dtypes: str) -> ModelCost:
    shape = SimpleNamespace(heads=4, kv_heads=2, head_dim=3, windows=windows)
    matrices = MatrixMacs.of(tensors(**dtypes))
    return ModelCost.from_config(shape, matrices, stream_bytes=1000, kv_dtype="float16")  # type: ignore[arg-type]


def test_the_products_of_a_model() -> None:
    assert MatrixMacs.of(tensors()) == MatrixMacs({"int8": LAYERS}, {"int8": 400})
    mixed = MatrixMacs.of(tensors(attn_v="F16", ffn_down="BF16", output="F32"))
    assert mixed == MatrixMacs({"int8": LAYERS - 96 - 256, "f32": 96, "bf16": 256}, {"f32": 400})
    assert mixed.times(10, 3) == {"int8": 10 * (LAYERS - 352), "f32": 960 + 1200, "bf16": 2560}
    assert MatrixMacs.of(tensors(token_embd="F32")).head == {"f32": 400}
    assert MatrixMacs.of(tensors(token_embd="F32", output="Q6_K")).head == {"int8": 400}


def test_the_cost_of_attention() -> None:
    # K and V of 2 heads of 3 dimensions of 2 bytes; the second layer sees 4 tokens at most.
    assert cost().kv_bytes(3) == 24 * (3 + 3)
    assert cost().kv_bytes(10) == 24 * (10 + 4)


def test_the_decode_limit_adds_up_what_each_step_reads() -> None:
    limit = cost().decode_limit([10, 20], 2, Rates(stream_gb_s=1.0))
    kv = 24 * ((11 + 4) + (12 + 4) + (21 + 4) + (22 + 4))
    assert limit == Limit((2 * 1000 + kv) / 1e9, "stream")
    compute = cost().decode_limit([10, 20], 2, Rates(1e9, 1.0))
    assert compute == Limit(2 * 2 * (LAYERS + 400) / 1e9, "dot")
    assert cost().decode_limit([10], 2, Rates(None, 1.0)) is None


def test_the_prefill_limit_counts_the_head_once_per_sequence() -> None:
    limit = cost().prefill_limit(3, 7, 2, Rates(1e9, 1.0))
    assert limit == Limit(3 * (7 * LAYERS + 400) / 1e9, "dot")
    assert cost().prefill_limit(3, 7, 2, Rates(1e-9, 1.0)) == Limit(2 * 1000.0, "stream")
    assert cost().prefill_limit(3, 7, 2, Rates(1.0, None)) is None


def test_a_matrix_that_stays_in_floats_counts_at_the_peak_of_floats() -> None:
    limit = cost(ffn_down="F32").prefill_limit(3, 7, 1, Rates(1e9, 2.0, 1.0, 0.5))
    assert limit is not None
    assert limit.seconds == pytest.approx((21 * (LAYERS - 256) + 1200) / 2e9 + 21 * 256 / 0.5e9)
    assert cost(ffn_down="F32").prefill_limit(3, 7, 1, Rates(1e9, 2.0)) is None


@pytest.mark.parametrize("window", [0, 1, 4, 7, 100])
def test_attention_of_a_prompt_counts_what_each_token_sees(window: int) -> None:
    seen = sum(min(position + 1, window or 7) for position in range(7))
    seconds = cost((0, window)).attention_limit_s(3, 7, Rates(f32_gmac_s=1.0))
    # Twice 4 heads of 3 dimensions for each position that a token sees.
    assert seconds == pytest.approx(3 * (28 + seen) * 24 / 1e9)
    assert cost().attention_limit_s(3, 7, Rates(1.0, 1.0, 1.0)) is None
