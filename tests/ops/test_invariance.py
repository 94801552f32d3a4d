"""A row's result depends on that row alone, bit for bit: on no other row, nor on its place, their number or threads."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.matrices import KINDS, activations, columns_for, f32, matrix, same_bits
from octavo.ops.api import Linear, Norm

native = pytest.importorskip("octavo.ops.native")

STORAGE = native.storage_formats()
TIERS = native.available_tiers()
COLUMNS = (32, 96, 128, 256, 576, 640, 768, 896, 1280, 2880)  # up to 11 full chunks of 256, and tails
ROWS = (1, 15, 17, 40, 129)
BLOCK = 256  # rows that pass a panel together: kBlockRows
WORK = 3 << 20  # multiply-accumulates of an example, about; the portable tier makes 10^9 a second


@cache
def engine(tier: str, threads: int) -> Any:
    return native.NativeOps(threads, tier=tier)


@cache
def packed(tier: str, parts: tuple[tuple[str, int], ...], columns: int, bias: bool, gated: bool) -> Linear:
    tensors = [matrix(dtype, rows, columns, seed) for seed, (dtype, rows) in enumerate(parts)]
    return engine(tier, 1).pack(tensors, bias=f32(sum(n for _, n in parts)) if bias else None, gated=gated)


@st.composite
def row_counts(draw: st.DrawFn, work_of_a_row: int, least: int = 1) -> int:
    """1 to 300 rows, the edges of passes and blocks more often, as far as the work allows."""
    most = max(8, min(300, WORK // work_of_a_row))
    edges = [n for n in (1, 2, 3, 5, 6, 7, 13, BLOCK - 1, BLOCK, BLOCK + 1, 300) if least <= n <= most]
    return draw(st.sampled_from(edges) | st.integers(least, most))


@st.composite
def subsets(draw: st.DrawFn, rows: int) -> np.ndarray:
    """Some of the rows, in any order: the first, one from anywhere, or a shuffled part."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.permutation(rows)[: draw(st.integers(1, rows))]


def check(tier: str, x: np.ndarray, w: Linear, chosen: np.ndarray, **more: Any) -> None:
    """Rows in one batch, a part of them in another order and number, one alone, and all on other threads."""
    residual = more.pop("residual", None)

    def run(rows: np.ndarray | slice, threads: int = 1) -> np.ndarray:
        rest = {} if residual is None else {"residual": np.ascontiguousarray(residual[rows])}
        return engine(tier, threads).linear(np.ascontiguousarray(x[rows]), w, **rest, **more)

    whole = run(slice(None))
    assert same_bits(run(chosen), whole[chosen])
    for row in {int(chosen[0]), len(x) - 1}:
        assert same_bits(run(slice(row, row + 1)), whole[row : row + 1]), row
    for threads in (2, 3):
        assert same_bits(run(slice(None), threads), whole), threads


def drawn_rows_of_one_format(tier: str, dtype: str, data: st.DataObject) -> None:
    columns = data.draw(st.sampled_from(columns_for(dtype, *COLUMNS)), "columns")
    n = data.draw(st.sampled_from(ROWS), "outputs")
    rows = data.draw(row_counts(columns * n), "rows")
    kinds = data.draw(st.sampled_from([("spikes",), ("normal", "spikes"), KINDS]), "kinds of rows")
    x = activations(rows, columns, kinds, seed=data.draw(st.integers(0, 99), "seed"))
    check(tier, x, packed(tier, ((dtype, n),), columns, False, False), data.draw(subsets(rows), "subset"))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", STORAGE)
@settings(max_examples=6)
@given(data=st.data())
def test_rows_of_any_format_do_not_depend_on_their_batch_or_the_threads(tier, dtype, data):
    drawn_rows_of_one_format(tier, dtype, data)


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", STORAGE)
@settings(max_examples=200)
@given(data=st.data())
def test_rows_of_any_format_do_not_depend_on_their_batch_or_the_threads_many(tier, dtype, data):
    drawn_rows_of_one_format(tier, dtype, data)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", STORAGE)
def test_every_number_of_rows_over_one_block_and_more(tier, dtype):
    """Each number of rows is split into passes in its own way."""
    columns = columns_for(dtype, 256)[0]
    x = activations(2 * BLOCK + 7, columns, ("normal", "spikes"), seed=3)
    w = packed(tier, ((dtype, 33),), columns, False, False)
    whole = engine(tier, 1).linear(x, w)
    for count in (*range(1, 20), 31, 64, 127, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 5, 2 * BLOCK + 1):
        assert same_bits(engine(tier, 2).linear(x[:count].copy(), w), whole[:count]), count


def drawn_product_with_all_it_may_carry(tier: str, data: st.DataObject) -> None:
    gated = data.draw(st.booleans(), "gated")
    dtypes = data.draw(st.lists(st.sampled_from(STORAGE), min_size=1 + gated, max_size=2 + (not gated)), "formats")
    n = data.draw(st.sampled_from(ROWS), "outputs")
    sizes = [n] * 2 if gated else data.draw(st.lists(st.sampled_from(ROWS), min_size=len(dtypes), max_size=len(dtypes)))
    columns = data.draw(st.sampled_from([k for k in (256, 768, 1280) if all(k in columns_for(d, k) for d in dtypes)]))
    parts = tuple(zip(dtypes, sizes, strict=True))
    out = n if gated else sum(sizes)
    rows = data.draw(row_counts(columns * sum(sizes)), "rows")
    seed = data.draw(st.integers(0, 99), "seed")
    x = activations(rows, columns, ("normal", "spikes", "zeros"), seed)
    more: dict[str, Any] = {"activation": data.draw(st.sampled_from(["silu", "gelu_tanh"]))} if gated else {}
    if data.draw(st.booleans(), "norm"):
        more["norm"] = Norm(f32(columns, seed=5), 1e-6)
    if data.draw(st.booleans(), "residual"):
        more["residual"] = f32(rows, out, seed=6)
    if data.draw(st.booleans(), "post-norm"):
        more["post_norm"] = Norm(f32(out, seed=7), 1e-5)
    w = packed(tier, parts, columns, data.draw(st.booleans(), "bias"), gated)
    check(tier, x, w, data.draw(subsets(rows), "subset"), **more)


@pytest.mark.parametrize("tier", TIERS)
@settings(max_examples=40)
@given(data=st.data())
def test_rows_of_a_product_with_all_it_may_carry(tier, data):
    drawn_product_with_all_it_may_carry(tier, data)


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
@settings(max_examples=1500)
@given(data=st.data())
def test_rows_of_a_product_with_all_it_may_carry_many(tier, data):
    drawn_product_with_all_it_may_carry(tier, data)


@pytest.mark.parametrize("tier", TIERS)
@settings(max_examples=20)
@given(data=st.data())
def test_rows_that_are_not_finite_change_no_other(tier, data):
    dtype = data.draw(st.sampled_from(STORAGE), "format")
    columns = data.draw(st.sampled_from(columns_for(dtype, *COLUMNS)), "columns")
    rows = data.draw(row_counts(columns * 17, least=2), "rows")
    x = activations(rows, columns, ("normal", "spikes"), seed=data.draw(st.integers(0, 99), "seed"))
    w = packed(tier, ((dtype, 17),), columns, False, False)
    clean = engine(tier, 2).linear(x, w)
    bad = data.draw(subsets(rows), "spoilt rows")
    x[bad, data.draw(st.integers(0, columns - 1), "column")] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    good = np.setdiff1d(np.arange(rows), bad)
    assert same_bits(engine(tier, 2).linear(x, w)[good], clean[good])


@pytest.mark.parametrize("tier", TIERS)
@settings(max_examples=30)
@given(data=st.data())
def test_norms_and_embeddings_do_not_depend_on_their_batch(tier, data):
    width = data.draw(st.sampled_from([1, 16, 17, 576, 577]), "width")
    x = activations(data.draw(st.integers(1, 300), "rows"), width, ("normal", "spikes", "zeros", "huge"))
    norm, chosen = Norm(f32(width, seed=1), 1e-5), data.draw(subsets(len(x)), "subset")
    whole = engine(tier, 1).rms_norm(x, norm)
    assert same_bits(engine(tier, 3).rms_norm(np.ascontiguousarray(x[chosen]), norm), whole[chosen])

    dtype = data.draw(st.sampled_from(STORAGE), "format")
    table = matrix(dtype, 50, 768)
    tokens = np.array(data.draw(st.lists(st.integers(0, 49), min_size=1, max_size=70), "tokens"), np.int32)
    every = engine(tier, 1).embedding(table, np.arange(50, dtype=np.int32), 1.5)
    assert same_bits(engine(tier, 3).embedding(table, tokens, 1.5), every[tokens])
