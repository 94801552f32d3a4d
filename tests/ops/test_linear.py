"""Native matrix products against the reference: every format on every tier, parts, and all that a product may carry."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from helpers.matrices import FLOATS, activations, bf16, columns_for, f32, matrix, seen
from octavo.formats.ggml import FORMATS
from octavo.formats.tensor import Tensor
from octavo.ops.api import Norm
from octavo.ops.reference import ReferenceOps

native = pytest.importorskip("octavo.ops.native")

STORAGE = native.storage_formats()
reference = ReferenceOps()
SHAPES = [(1, 256, 1), (129, 576, 7), (40, 1280, 130), (17, 2880, 3)]  # rows, about how many columns, tokens


@pytest.fixture(scope="module", params=native.available_tiers())
def ops(request: pytest.FixtureRequest):
    return native.NativeOps(2, tier=request.param)


@cache
def case(dtype: str, rows: int, columns: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Activations with outliers, and a bias."""
    x = f32(tokens, columns, seed=1)
    x[:, 37 % columns] *= 50  # a massive activation, as some models have
    return x, f32(rows, seed=2)


@cache
def product(dtype: str, rows: int, columns: int, tokens: int, tier: str) -> tuple[np.ndarray, np.ndarray]:
    """The reference on what the kernels see, and how far f32 sums may be from it."""
    x, bias = case(dtype, rows, columns, tokens)
    x, w = seen(x, dtype, tier), reference.pack([matrix(dtype, rows, columns)], bias=bias)
    return reference.linear(x, w), 2e-6 * (np.abs(x) @ np.abs(w.weight).T + 1)


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize(("rows", "columns", "tokens"), SHAPES)
def test_linear_is_the_reference_on_rounded_activations(ops, dtype, rows, columns, tokens):
    columns -= columns % columns_for(dtype)[0]
    x, bias = case(dtype, rows, columns, tokens)
    got = ops.linear(x, ops.pack([matrix(dtype, rows, columns)], bias=bias))
    want, bound = product(dtype, rows, columns, tokens, "avx512_bf16" if ops.tier == "avx512_bf16" else "")
    assert (np.abs(got - want) <= bound).all(), np.abs(got - want).max()


@pytest.mark.parametrize("dtype", STORAGE)
def test_embedding_is_the_dequantized_row(ops, dtype):
    table = matrix(dtype, 50, 768)
    tokens = np.array([3, 49, 0, 3, *range(17)], np.int32)
    assert np.allclose(ops.embedding(table, tokens, 1.5), reference.embedding(table, tokens, 1.5), rtol=1e-6, atol=1e-9)
    assert np.array_equal(ops.embedding(table, tokens[:1]), ops.embedding(table, tokens)[:1])


def test_parts_of_different_formats_are_stacked(ops):
    parts = [matrix("Q4_K", 48, 512, 1), matrix("Q6_K", 17, 512, 2), matrix("F16", 5, 512, 3), matrix("INT8", 33, 512)]
    x, bias = f32(6, 512), f32(103)
    got = ops.linear(x, ops.pack(parts, bias=bias))
    assert got.shape == (6, 103)
    start = 0
    for part in parts:
        columns = slice(start, start := start + part.shape[0])
        want = reference.linear(seen(x, part.dtype, ops.tier), reference.pack([part], bias=bias[columns]))
        assert np.allclose(got[:, columns], want, rtol=1e-5, atol=1e-5), part.dtype


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("formats", [("F32", "F32"), ("F32", "F16")], ids="-".join)
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_norm_gate_residual_and_post_norm(ops, activation, formats, tokens):
    parts = [matrix(dtype, 100, 192, seed) for seed, dtype in enumerate(formats)]
    bias, x, norm = f32(200, seed=3), f32(tokens, 192, seed=4) * 3, Norm(f32(192, seed=5), 1e-6)
    residual, post = f32(tokens, 100, seed=6), Norm(f32(100, seed=7), 1e-5)

    def run(o, **more):
        return o.linear(x, o.pack(parts, bias=bias, gated=True), norm=norm, activation=activation, **more)

    assert np.allclose(run(ops), run(reference), rtol=1e-4, atol=1e-5)
    assert np.allclose(run(ops, residual=residual), run(reference, residual=residual), rtol=1e-4, atol=1e-5)
    both = {"residual": residual, "post_norm": post}
    assert np.allclose(run(ops, **both), run(reference, **both), rtol=1e-4, atol=1e-5)


def test_a_gate_and_an_up_of_different_formats_see_the_same_activations(ops):
    gate, up = matrix("Q4_K", 40, 512, 1), matrix("Q6_K", 40, 512, 2)
    x = f32(9, 512)
    x[:, ::100] *= 40
    got = ops.linear(x, ops.pack([gate, up], gated=True), activation="silu")
    seen_x = seen(x, "Q4_K", ops.tier)
    want = reference.linear(seen_x, reference.pack([gate, up], gated=True), activation="silu")
    assert np.allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("kind", ["zeros", "denormal", "tiny", "huge"])
def test_extreme_rows_keep_their_size(ops, dtype, kind):
    """Zero gives zero, and what is representable comes out at its size, not as NaN, infinity, or another row's."""
    columns = columns_for(dtype, 768)[0]
    x, w = activations(3, columns, (kind,)), matrix(dtype, 40, columns)
    got = ops.linear(x, ops.pack([w]))
    assert np.isfinite(got).all()
    if kind in ("zeros", "denormal"):
        assert np.abs(got).max() < 1e-37  # denormals count as zero
    else:
        scale = {"tiny": 1e-21, "huge": 1e30}[kind]
        unit = reference.linear((x / np.float32(scale)).astype(np.float32), reference.pack([w]))
        assert np.abs(got / np.float32(scale) - unit).max() < 0.03 * np.abs(unit).max()


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_a_row_that_is_not_finite_spoils_itself_alone(ops, dtype, value):
    columns = columns_for(dtype, 768)[0]
    x, w = f32(9, columns), ops.pack([matrix(dtype, 40, columns)])
    clean = ops.linear(x, w)
    x[4, columns // 3] = value
    got = ops.linear(x, w)
    assert np.array_equal(np.delete(got, 4, axis=0), np.delete(clean, 4, axis=0))
    if dtype in FLOATS:
        assert not np.isfinite(got[4]).any()
    else:
        assert np.isnan(got[4]).all()


def test_bf16_rounds_to_nearest_even():
    x = np.array([1.0, 1.00390625, 1.01171875, 3.1415927, -0.0], np.float32)
    assert bf16(x).tolist() == [1.0, 1.0, 1.015625, 3.140625, -0.0]


@pytest.mark.parametrize("width", [1, 16, 20, 576, 577])
def test_rms_norm(ops, width):
    x, norm = f32(3, width) * 7, Norm(f32(width, seed=1), 1e-5)
    assert np.allclose(ops.rms_norm(x, norm), reference.rms_norm(x, norm), rtol=1e-5, atol=1e-6)


def test_logits_are_capped_and_only_of_the_rows_asked_for(ops):
    x, head, norm = f32(9, 256), [matrix("F16", 300, 256)], Norm(f32(256, seed=2), 1e-6)
    rows = np.array([8, 0], np.int32)
    got = ops.logits(x, ops.pack(head), norm, rows, 3.0)
    assert got.shape == (2, 300)
    assert np.allclose(got, reference.logits(x, reference.pack(head), norm, rows, 3.0), rtol=1e-4, atol=1e-5)


def test_every_storage_format_of_the_files_has_a_kernel_or_is_a_float_of_another_kind():
    assert set(STORAGE) <= set(FORMATS)
    w = Tensor("w", "Q4_K", (16, 256), matrix("Q4_K", 16, 256).data)
    assert native.NativeOps(1).pack([w]).packed_bytes >= w.data.nbytes
