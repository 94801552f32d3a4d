"""The reference ops against formulas written out element by element, in f64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.batches import make_batch
from octavo.core.errors import ConfigError, UnsupportedModelError
from octavo.formats.ggml import FORMATS, dequantize_tensor
from octavo.formats.quantize import QUANTIZABLE, quantize
from octavo.formats.tensor import Tensor
from octavo.ops import make_ops
from octavo.ops.api import AttentionSpec, Norm, RopeTable
from octavo.ops.kv import KVStore
from octavo.ops.reference import ReferenceOps
from octavo.ops.reference_attention import read_kv, write_kv
from octavo.ops.reference_math import activate, from_bfloat16, rotate, softcap, to_bfloat16, to_storage

OPS = ReferenceOps()


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stored(values: np.ndarray, name: str = "w") -> Tensor:
    return Tensor(name, "F32", values.shape, np.ascontiguousarray(values).view(np.uint8))


# Linear, norm, embedding


@pytest.mark.parametrize("rows", [1, 7, 33])
def test_linear_norm_bias_residual_and_post_norm_come_in_the_order_of_the_contract(rows: int) -> None:
    x, a, b, bias = normal(rows, 48), normal(5, 48, seed=1), normal(3, 48, seed=2), normal(8, seed=3)
    before, after, residual = Norm(normal(48, seed=4), 1e-5), Norm(normal(8, seed=5), 1e-3), normal(rows, 8, seed=6)
    got = OPS.linear(x, OPS.pack([stored(a), stored(b)], bias=bias), norm=before, post_norm=after, residual=residual)
    for t in range(rows):
        scaled = x[t].astype(np.float64)
        scaled = scaled / math.sqrt((scaled**2).mean() + 1e-5) * before.weight
        y = np.concatenate([a, b]).astype(np.float64) @ scaled + bias
        expected = residual[t] + y / math.sqrt((y**2).mean() + 1e-3) * after.weight
        np.testing.assert_allclose(got[t], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_linear_activates_the_gate_only(activation: str) -> None:
    x, gate, up, bias = normal(3, 32), normal(6, 32, seed=1), normal(6, 32, seed=2), normal(12, seed=3)
    w = OPS.pack([stored(gate), stored(up)], bias=bias, gated=True)
    g, u = x @ gate.T + bias[:6], x @ up.T + bias[6:]
    expected = activate(g, activation) * u  # type: ignore[arg-type]
    got = OPS.linear(x, w, activation=activation)  # type: ignore[arg-type]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert (w.rows, w.columns, w.packed_bytes) == (12, 32, 12 * 32 * 4 + 48)


def test_activations_follow_their_formulas() -> None:
    x = np.linspace(-120, 120, 401, dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        silu, gelu = activate(x, "silu"), activate(x, "gelu_tanh")
    exact = x.astype(np.float64)
    # silu comes from 1 + tanh, whose small values carry the rounding of a number near 1.
    np.testing.assert_allclose(silu, exact / (1 + np.exp(-exact)), rtol=1e-6, atol=1e-5)
    inner = math.sqrt(2 / math.pi) * (exact + 0.044715 * exact**3)
    np.testing.assert_allclose(gelu, exact * 0.5 * (1 + np.tanh(inner)), rtol=1e-6, atol=1e-6)


def test_mixed_formats_stack_into_one_matrix() -> None:
    half = normal(2, 32).astype(np.float16)
    w = OPS.pack([stored(normal(3, 32, seed=1)), Tensor("h", "F16", half.shape, half.view(np.uint8))])
    np.testing.assert_array_equal(w.weight[3:], half.astype(np.float32))
    np.testing.assert_array_equal(w.weight[:3], normal(3, 32, seed=1))


@pytest.mark.parametrize("dtype", QUANTIZABLE)
def test_formats_of_quantized_checkpoints(dtype: str) -> None:
    columns = 3 * FORMATS[dtype].block_elements
    first, second = (quantize(normal(rows, columns, seed=rows), dtype) for rows in (5, 130))
    both = np.concatenate([dequantize_tensor(first), dequantize_tensor(second)])
    w = OPS.pack([first, second])
    np.testing.assert_array_equal(w.weight, both)
    x = normal(2, columns)
    np.testing.assert_array_equal(OPS.linear(x, w), x @ both.T)
    tokens = np.array([129, 0, 0, 7], np.int32)
    np.testing.assert_array_equal(OPS.embedding(second, tokens), both[5:][tokens])


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_q\.weight is stored as IQ1_S.*Q4_K"):
        OPS.pack([Tensor("blk.0.attn_q.weight", "IQ1_S", (2, 256), np.zeros((2, 50), np.uint8))])


def test_embedding_and_logits() -> None:
    table = normal(11, 32)
    tokens = np.array([3, 3, 10, 0], np.int32)
    np.testing.assert_array_equal(OPS.embedding(stored(table), tokens, 2.5), table[tokens] * np.float32(2.5))
    x, norm, rows = normal(4, 32, seed=1), Norm(normal(32, seed=2), 1e-6), np.array([3, 1], np.int32)
    expected = OPS.rms_norm(x, norm)[[3, 1]] @ table.T
    head = OPS.pack([stored(table)])
    np.testing.assert_allclose(OPS.logits(x, head, norm, rows), expected, rtol=0, atol=1e-5)
    capped = OPS.logits(x, head, norm, rows, softcap=4.0)
    np.testing.assert_allclose(capped, 4 * np.tanh(expected / 4), rtol=0, atol=1e-5)
    assert OPS.logits(x, head, norm, np.zeros(0, np.int32)).shape == (0, 11)


# Rounding


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_bfloat16_rounds_to_the_nearest_and_ties_to_even(values: list[float]) -> None:
    x = np.asarray(values, np.float32)
    bits = to_bfloat16(x)
    back = from_bfloat16(bits)
    np.testing.assert_array_equal(np.isnan(back), np.isnan(x))
    for value, code, got in zip(x.astype(np.float64), bits, back.astype(np.float64), strict=True):
        if not np.isfinite(value) or not np.isfinite(got):
            assert np.isnan(value) or got == value or abs(value) > 3.38e38
            continue
        for neighbour in (code - 1, code + 1) if code & 0x7FFF else (1, 0x8001):
            other = float(from_bfloat16(np.asarray([neighbour & 0xFFFF], np.uint16))[0])
            if np.isfinite(other):
                assert abs(got - value) < abs(other - value) or (
                    abs(got - value) == abs(other - value) and code % 2 == 0
                )


def test_float16_storage_rounds_to_even_and_overflows_to_infinity() -> None:
    x = np.array([2049.0, 2051.0, 65504.0, 65520.0, -1e9], np.float32)
    np.testing.assert_array_equal(to_storage(x, "float16"), np.array([2048, 2052, 65504, np.inf, -np.inf], np.float16))


# RoPE


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotation_turns_pairs_and_leaves_the_rest(interleaved: bool) -> None:
    angles = np.arange(9)[:, None] * np.array([1.0, 0.3, 0.02])
    rope = RopeTable(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), interleaved)
    x, positions = normal(4, 2, 8), np.array([0, 8, 3, 3], np.int32)
    got = rotate(x, positions, rope)
    for t, head, i in np.ndindex(4, 2, 3):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + 3)
        turned = complex(x[t, head, first], x[t, head, second]) * np.exp(1j * angles[positions[t], i])
        assert got[t, head, first] == pytest.approx(turned.real, abs=1e-6)
        assert got[t, head, second] == pytest.approx(turned.imag, abs=1e-6)
    np.testing.assert_array_equal(got[..., 6:], x[..., 6:])


# KV pages and attention


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("page_size", [16, 48])
def test_keys_and_values_lie_where_the_layout_says_and_come_back(dtype: str, page_size: int) -> None:
    kv = KVStore(2, 5, page_size, 2, 8, dtype)
    batch = make_batch([range(page_size + 3), range(2)], [0, 20], [[4, 1], [0, 2]])
    total = batch.num_tokens
    k, v = normal(total, 2, 8), normal(total, 2, 8, seed=1)
    write_kv(k, v, kv, 1, batch)
    position = page_size + 1
    slot = position - page_size
    assert kv.k[1][1, 1, slot // 16, 5, slot % 16] == to_storage(k[position, 1, 5], dtype)
    assert kv.v[1][1, 1, slot, 5] == to_storage(v[position, 1, 5], dtype)
    assert not kv.k[0].any()
    keys, values = read_kv(kv, 1, batch.page_tables[0], page_size + 3)
    tolerance = {"float32": 0, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    np.testing.assert_allclose(keys.transpose(1, 0, 2), k[: page_size + 3], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(values.transpose(1, 0, 2), v[: page_size + 3], rtol=tolerance, atol=tolerance)


def dense_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, positions: np.ndarray, spec: AttentionSpec
) -> np.ndarray:
    """q [n, heads, D], k, v [L, kv_heads, D], one query and one key at a time, f64 -> [n, heads * D]."""
    result = np.zeros(q.shape)
    for t, head in np.ndindex(q.shape[:2]):
        last = positions[t]
        seen = range(max(0, last - spec.window + 1) if spec.window else 0, last + 1)
        kv_head = head // (spec.heads // spec.kv_heads)
        scores = np.array([spec.scale * float(q[t, head].astype(np.float64) @ k[j, kv_head]) for j in seen])
        if spec.softcap:
            scores = spec.softcap * np.tanh(scores / spec.softcap)
        weights = np.exp(scores - scores.max())
        result[t, head] = (weights / weights.sum()) @ v[seen.start : seen.stop, kv_head].astype(np.float64)
    return result.reshape(len(q), -1)


@pytest.mark.parametrize("window", [0, 1, 5, 16, 100])
@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
def test_attention_of_a_ragged_batch(window: int, cap: float, heads: int, kv_heads: int) -> None:
    spec = AttentionSpec(heads, kv_heads, 8, 0.4, window, cap)
    kv = KVStore(1, 8, 16, kv_heads, 8, "float32")
    tables, lengths = [[5, 2, 7], [0], [3, 1]], [39, 9, 17]
    k = [normal(n, kv_heads, 8, seed=n) for n in lengths]
    v = [normal(n, kv_heads, 8, seed=n + 1) for n in lengths]
    write_kv(np.concatenate(k), np.concatenate(v), kv, 0, make_batch([range(n) for n in lengths], [0, 0, 0], tables))
    fed = [7, 9, 1]  # a chunk, a whole prompt, a decode step
    starts = [n - m for n, m in zip(lengths, fed, strict=True)]
    batch = make_batch([range(m) for m in fed], starts, tables)
    q = normal(sum(fed), heads, 8, seed=99)
    got = OPS.attention(q.reshape(sum(fed), -1), kv, 0, batch, spec)
    for s in range(3):
        rows = slice(batch.query_starts[s], batch.query_starts[s + 1])
        expected = dense_attention(q[rows], k[s], v[s], batch.positions[rows], spec)
        np.testing.assert_allclose(got[rows], expected, rtol=0, atol=2e-6)


def test_rope_kv_write_normalizes_then_rotates_queries_and_keys_but_not_values() -> None:
    spec = AttentionSpec(3, 1, 8, 1.0)
    angles = np.arange(40)[:, None] * np.array([1.0, 0.5, 0.2, 0.1])
    rope = RopeTable(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), False)
    q_norm, k_norm = Norm(normal(8, seed=7), 1e-6), Norm(normal(8, seed=8), 1e-6)
    kv, batch, qkv = KVStore(1, 3, 16, 1, 8, "float32"), make_batch([range(6)], [30], [[2, 0, 1]]), normal(6, 40)
    q = OPS.rope_kv_write(qkv, kv, 0, batch, spec, rope, q_norm=q_norm, k_norm=k_norm)
    heads = qkv.reshape(6, 5, 8)
    np.testing.assert_array_equal(q.reshape(6, 3, 8), rotate(OPS.rms_norm(heads[:, :3], q_norm), batch.positions, rope))
    keys, values = read_kv(kv, 0, batch.page_tables[0], 36)
    expected = rotate(OPS.rms_norm(heads[:, 3:4], k_norm), batch.positions, rope)
    np.testing.assert_array_equal(keys[0, 30:], expected[:, 0])
    np.testing.assert_array_equal(values[0, 30:], heads[:, 4])
    plain = OPS.rope_kv_write(qkv, kv, 0, batch, spec, None)
    np.testing.assert_array_equal(plain, qkv[:, :24])


def test_softcap_bounds_and_zero_means_none() -> None:
    x = normal(50) * 100
    assert np.abs(softcap(x, 30.0)).max() <= 30
    assert softcap(x, 0.0) is x


# Backends by name


def test_make_ops_names_what_is_possible() -> None:
    assert make_ops("reference").name == "reference"
    with pytest.raises(ConfigError, match="backend 'cuda' is not known; possible: native, reference"):
        make_ops("cuda")
    with pytest.raises(ConfigError, match="OPENBLAS_NUM_THREADS"):
        make_ops("reference", threads=2)
