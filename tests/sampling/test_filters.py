"""Filters against full sorts, on small vocabularies with many ties and on large ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from helpers.plain_sampling import kept, kept_min_p, kept_top_k, kept_top_p, ranking
from octavo.core.params import SamplingParams
from octavo.sampling.filters import filter_row, nucleus, scale, top_ids, weights
from octavo.sampling.noise import block_maxima

TIED = st.integers(-8, 8).map(lambda i: i / 2)
FREE = st.floats(-30, 30, width=32)
ROWS = hnp.arrays(np.float32, st.integers(1, 40), elements=st.one_of(TIED, FREE, st.just(-np.inf)))
TEMPERATURES = st.sampled_from([0.05, 0.5, 0.7, 1.0, 1.3, 5.0])
UNDECIDED = 1e-5  # a decision nearer than this may fall either way: weights are float32


def survivors(row: np.ndarray, params: SamplingParams) -> set[int]:
    """Ids left at finite logits, after checking that they are ascending and carry the right values."""
    found = filter_row(row, block_maxima(row), params)
    if found is None:
        return {t for t in range(len(row)) if row[t] > -np.inf}
    assert np.all(np.diff(found.ids) > 0)
    expected = (row[found.ids].astype(np.float64) - row.max()) / params.temperature
    assert np.array_equal(found.scaled, expected)
    return {t for t in found.ids.tolist() if row[t] > -np.inf}


def finite(row: np.ndarray, tokens: set[int]) -> set[int]:
    return {t for t in tokens if row[t] > -np.inf}


@given(ROWS, st.integers(1, 60))
def test_top_ids_is_the_head_of_the_ranking(row: np.ndarray, k: int) -> None:
    assert top_ids(row, k).tolist() == ranking(row)[:k]


@given(ROWS, st.integers(-1, 60).filter(lambda k: k != 0))
def test_top_k(row: np.ndarray, k: int) -> None:
    assume(row.max() > -np.inf)
    assert survivors(row, SamplingParams(top_k=k)) == finite(row, kept_top_k(row, k))


@given(ROWS, st.floats(0.01, 0.999), TEMPERATURES)
def test_top_p(row: np.ndarray, top_p: float, temperature: float) -> None:
    assume(row.max() > -np.inf)
    expected, margin = kept_top_p(row, top_p, temperature)
    assume(margin > UNDECIDED)
    assert survivors(row, SamplingParams(top_p=top_p, temperature=temperature)) == finite(row, expected)


@given(ROWS, st.floats(0.001, 1.0), TEMPERATURES)
def test_min_p(row: np.ndarray, min_p: float, temperature: float) -> None:
    assume(row.max() > -np.inf)
    expected, margin = kept_min_p(row, min_p, temperature)
    assume(margin > 1e-9)
    assert survivors(row, SamplingParams(min_p=min_p, temperature=temperature)) == finite(row, expected)


@given(ROWS, st.integers(0, 45), st.floats(0.05, 1.0), st.floats(0.0, 0.5), TEMPERATURES)
def test_all_filters_in_their_order(row: np.ndarray, k: int, top_p: float, min_p: float, temperature: float) -> None:
    assume(row.max() > -np.inf)
    params = SamplingParams(top_k=k, top_p=top_p, min_p=min_p, temperature=temperature)
    expected, margin = kept(row, params)
    assume(margin > UNDECIDED)
    assert survivors(row, params) == finite(row, expected)


def test_no_filter_keeps_everything_without_listing_it() -> None:
    row = np.array([1, 2, 3], np.float32)
    for params in (SamplingParams(), SamplingParams(top_k=3), SamplingParams(top_k=1000), SamplingParams(top_p=1.0)):
        assert filter_row(row, block_maxima(row), params) is None


def test_ties_go_to_the_lowest_id() -> None:
    row = np.array([1, 2, 2, 2, 0], np.float32)
    assert survivors(row, SamplingParams(top_k=2)) == {1, 2}
    equal = np.zeros(4, np.float32)
    assert survivors(equal, SamplingParams(top_p=0.5)) == {0, 1}
    assert survivors(equal, SamplingParams(top_p=0.51)) == {0, 1, 2}
    assert survivors(row, SamplingParams(min_p=1.0)) == {1, 2, 3}


def test_logits_rank_where_weights_are_equal() -> None:
    """Two logits next to each other have one float32 weight; the larger stays, though its id is higher."""
    low = np.float32(-2.0)
    row = np.array([0, low, np.nextafter(low, np.float32(0))], np.float32)
    assert survivors(row, SamplingParams(top_p=0.85)) == {0, 2}


def test_top_p_is_taken_of_what_top_k_leaves() -> None:
    """Of p = .4 .3 .2 .1, top-k 2 leaves 4/7 and 3/7: top-p .5 then keeps one token, alone it would keep two."""
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    assert survivors(row, SamplingParams(top_p=0.5)) == {0, 1}
    assert survivors(row, SamplingParams(top_p=0.5, top_k=2)) == {0}


def test_min_p_compares_with_the_largest_probability_at_this_temperature() -> None:
    row = np.log(np.array([0.5, 0.25, 0.125])).astype(np.float32)
    assert survivors(row, SamplingParams(min_p=0.3)) == {0, 1}
    assert survivors(row, SamplingParams(min_p=0.3, temperature=2.0)) == {0, 1, 2}
    assert survivors(row, SamplingParams(min_p=0.3, temperature=0.5)) == {0}


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-42, 100.0])
def test_extreme_temperatures_make_no_nan_and_keep_the_best(temperature: float) -> None:
    row = np.array([-3e38, 1, 3e38, 2], np.float32)
    with np.errstate(invalid="raise", divide="raise"):
        left = survivors(row, SamplingParams(top_p=0.9, min_p=0.1, temperature=temperature))
        assert not np.isnan(scale(row, row.max(), temperature)).any()
    assert left == {2}


@pytest.mark.parametrize("size", [2049, 32_768, 50_257, 151_936])
@pytest.mark.parametrize("shape", ["normal", "flat", "equal", "steps", "peaked"])
@pytest.mark.parametrize("top_p", [0.1, 0.95, 0.9999])
def test_nucleus_of_a_large_vocabulary_equals_a_full_sort(size: int, shape: str, top_p: float) -> None:
    rng = np.random.default_rng(size)
    row = {
        "normal": lambda: 3 * rng.normal(size=size),
        "flat": lambda: 0.01 * rng.normal(size=size),
        "equal": lambda: np.zeros(size),
        "steps": lambda: rng.integers(0, 14, size).astype(float),
        "peaked": lambda: np.where(np.arange(size) == 77, 40.0, rng.normal(size=size)),
    }[shape]().astype(np.float32)
    w = weights(row, row.max(), 1.0)
    order = np.argsort(-row, kind="stable")
    reached = np.cumsum(w[order], dtype=np.float64)
    target = top_p * w.sum(dtype=np.float64)
    found = nucleus(row, top_p, 1.0)
    count = int(np.searchsorted(reached, target)) + 1
    near = np.abs(reached[max(0, count - 2) : count + 1] / target - 1).min() < 1e-11  # sums in another order may differ
    assert abs(len(found) - count) <= int(near)
    assert np.array_equal(found, np.sort(order[: len(found)]))


@pytest.mark.parametrize("size", [2049, 50_257, 151_936])
@pytest.mark.parametrize("k", [1, 50, 200, 1000, 2000])
def test_top_k_of_a_large_vocabulary_equals_a_full_sort(size: int, k: int) -> None:
    rng = np.random.default_rng(k)
    for row in (rng.normal(size=size), rng.integers(0, 40, size), np.zeros(size)):
        logits = row.astype(np.float32)
        assert np.array_equal(top_ids(logits, k), np.argsort(-logits, kind="stable")[:k])
