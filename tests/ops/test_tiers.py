"""Instruction-set tiers: what has to be the same bits on all of them, what need not, and how one is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.matrices import FLOATS, KINDS, activations, bf16, columns_for, f32, matrix, same_bits
from octavo.core.env import ISA_TIERS
from octavo.core.errors import ConfigError
from octavo.ops.api import Norm

native = pytest.importorskip("octavo.ops.native")

STORAGE = native.storage_formats()
TIERS = native.available_tiers()
BF16_DOTS = [dtype for dtype in FLOATS if dtype not in ("F32", "F16")]
"""Formats that the tier avx512_bf16 multiplies with activations rounded to bf16."""


def tiers_alike(dtype: str) -> list[str]:
    return [tier for tier in TIERS if tier != "avx512_bf16" or dtype not in BF16_DOTS]


def test_portable_is_there_and_the_best_is_first():
    assert TIERS[-1] == "portable"
    assert native.NativeOps(1, tier="auto").tier == TIERS[0]
    assert [tier for tier in ISA_TIERS if tier in TIERS] == TIERS


def drawn_products(dtype: str, data: st.DataObject) -> None:
    columns = data.draw(st.sampled_from(columns_for(dtype, 32, 96, 128, 256, 576, 640, 768, 896, 1280)), "columns")
    n, rows = data.draw(st.sampled_from([1, 15, 17, 40]), "outputs"), data.draw(st.integers(1, 40), "rows")
    x = activations(rows, columns, KINDS, seed=data.draw(st.integers(0, 99), "seed"))
    results = []
    for tier in tiers_alike(dtype):
        ops = native.NativeOps(1, tier=tier)
        results.append(ops.linear(x, ops.pack([matrix(dtype, n, columns)], bias=f32(n))))
    for tier, result in zip(tiers_alike(dtype), results, strict=True):
        assert same_bits(result, results[-1]), tier


@pytest.mark.parametrize("dtype", STORAGE)
@settings(max_examples=8)
@given(data=st.data())
def test_tiers_give_the_same_bits(dtype, data):
    drawn_products(dtype, data)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", STORAGE)
@settings(max_examples=300)
@given(data=st.data())
def test_tiers_give_the_same_bits_many(dtype, data):
    drawn_products(dtype, data)


@pytest.mark.parametrize("dtype", STORAGE)
def test_rows_that_are_not_finite_are_alike_on_all_tiers(dtype):
    columns = columns_for(dtype, 768)[0]
    x = f32(4, columns)
    x[np.arange(3), [1, 40 % columns, columns - 1]] = [np.nan, np.inf, -np.inf]
    results = []
    for tier in tiers_alike(dtype):
        ops = native.NativeOps(1, tier=tier)
        results.append(ops.linear(x, ops.pack([matrix(dtype, 17, columns)])))
    assert all(same_bits(result, results[0]) for result in results)


@pytest.mark.skipif("avx512_bf16" not in TIERS, reason="this CPU has no bf16 dot instruction")
@pytest.mark.parametrize("dtype", BF16_DOTS)
def test_bf16_dots_differ_by_the_rounding_of_activations_alone(dtype):
    x, w = f32(9, 768), matrix(dtype, 40, 768)
    exact, dots = (native.NativeOps(1, tier=tier) for tier in ("avx512", "avx512_bf16"))
    got, plain = (ops.linear(x, ops.pack([w])) for ops in (dots, exact))
    on_rounded = exact.linear(bf16(x), exact.pack([w]))
    size = np.abs(plain).max()
    assert np.abs(got - on_rounded).max() < 2e-6 * size
    assert np.abs(got - plain).max() > 1e-4 * size  # so the test above says something
    assert np.abs(got - plain).max() < 1e-2 * size


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_all_but_the_products_is_the_same_bits_too(activation):
    x, residual = activations(45, 192, ("normal", "spikes", "huge")), f32(45, 100)
    norm, post, rows = Norm(f32(192), 1e-6), Norm(f32(100), 1e-6), np.arange(0, 45, 4, dtype=np.int32)
    results = []
    for tier in TIERS:
        ops = native.NativeOps(2, tier=tier)
        w = ops.pack([matrix("F32", 100, 192, 1), matrix("Q8_0", 100, 192, 2)], gated=True)
        out = [ops.linear(x, w, norm=norm, activation=activation, residual=residual, post_norm=post)]
        out += [ops.rms_norm(x, norm), ops.logits(x, ops.pack([matrix("F16", 33, 192)]), norm, rows, 3.0)]
        out += [ops.embedding(matrix(dtype, 20, 768), np.arange(20, dtype=np.int32)) for dtype in STORAGE]
        results.append(out)
    for tier, out in zip(TIERS, results, strict=True):
        for i, (a, b) in enumerate(zip(out, results[-1], strict=True)):
            assert same_bits(a, b), (tier, i)


@pytest.mark.parametrize("tier", TIERS)
def test_the_environment_picks_the_tier(tier, monkeypatch):
    monkeypatch.setenv("OCTAVO_ISA", tier.upper())
    assert native.NativeOps(1).tier == tier
    assert native.NativeOps(1, tier="portable").tier == "portable"  # an argument comes before it


def test_a_tier_that_is_not_there_is_refused_and_the_possible_ones_named(monkeypatch):
    with pytest.raises(ConfigError, match=r"'mmx' is not available here; possible: auto, .*portable"):
        native.NativeOps(1, tier="mmx")
    monkeypatch.setenv("OCTAVO_ISA", "mmx")
    with pytest.raises(ConfigError, match=r"OCTAVO_ISA='mmx' is not possible; .*avx512.*portable"):
        native.NativeOps(1)
    monkeypatch.setattr(native, "available_tiers", lambda: ["portable"])
    monkeypatch.setenv("OCTAVO_ISA", "avx2")
    with pytest.raises(ConfigError, match=r"'avx2' is not available here; possible: auto, portable \(OCTAVO_ISA\)"):
        native.NativeOps(1)
