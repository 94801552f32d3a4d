"""Workloads: what is drawn, that a seed draws it again, and that one quantity does not disturb another."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.errors import ConfigError
from octavo.measure.workloads import Fixed, Lengths, LogNormal, Uniform, Workload, stream

BASE = Workload(requests=50, prompt=Uniform(4, 40), output=LogNormal(12, 1.0, 2, 90), seed=7)


def test_a_seed_draws_the_same_again_and_another_does_not() -> None:
    items = BASE.items(1000)
    assert items == BASE.items(1000)
    assert items != replace(BASE, seed=8).items(1000)
    assert len({tuple(item.prompt_token_ids) for item in items}) == 50


def test_no_quantity_disturbs_another() -> None:
    plain = BASE.items(1000)
    changed = replace(BASE, rate=3.0, priorities=(1, 2), output=Fixed(5)).items(1000)
    assert [item.prompt_token_ids for item in changed] == [item.prompt_token_ids for item in plain]
    assert {item.output_tokens for item in changed} == {5}
    assert {item.priority for item in changed} == {1, 2}
    assert {item.priority for item in plain} == {0}
    longer = replace(BASE, prompt=Fixed(9)).items(1000)
    assert [item.output_tokens for item in longer] == [item.output_tokens for item in plain]
    assert replace(BASE, prompt=Uniform(9, 9)).items(1000) == longer


def test_a_prefix_comes_before_own_tokens() -> None:
    workload = replace(BASE, prefix=(5, 6, 7))
    assert all(
        item.prompt_token_ids == [5, 6, 7, *plain.prompt_token_ids]
        for item, plain in zip(workload.items(1000), BASE.items(1000), strict=True)
    )
    assert workload.longest == 3 + 40 + 90
    assert max(item.total_tokens for item in workload.items(1000)) <= workload.longest


def test_arrivals_are_a_poisson_process_from_zero_on() -> None:
    assert {item.arrival_s for item in BASE.items(10)} == {0.0}
    times = [item.arrival_s for item in replace(BASE, requests=4000, rate=8.0).items(10)]
    assert times[0] == 0
    assert times == sorted(times)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # Exponential gaps of mean 1/8: so is their standard deviation, and e^-1 of them are longer than the mean.
    assert fmean(gaps) == pytest.approx(1 / 8, rel=0.05)
    assert sum(gap > 1 / 8 for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.03)


def test_lognormal_lengths_have_their_median_and_tail_and_are_cut() -> None:
    drawn = [item.output_tokens for item in replace(BASE, requests=4000).items(10)]
    assert median(drawn) == pytest.approx(12, abs=1)
    assert (min(drawn), max(drawn)) == (2, 90)
    # P(Z > ln(90 / 12)) = 2.2 % are moved to the end.
    assert sum(length == 90 for length in drawn) / len(drawn) == pytest.approx(0.022, abs=0.008)


@given(st.sampled_from([Fixed(3), Uniform(2, 6), LogNormal(3, 2.0, 2, 7)]), st.integers(0, 2**32), st.integers(1, 300))
def test_everything_is_in_its_range(lengths: Lengths, seed: int, vocab: int) -> None:
    items = Workload(requests=8, prompt=lengths, output=lengths, seed=seed).items(vocab)
    assert all(2 <= len(item.prompt_token_ids) <= lengths.high for item in items)
    assert all(2 <= item.output_tokens <= lengths.high for item in items)
    assert all(0 <= token < vocab for item in items for token in item.prompt_token_ids)


def test_both_ends_of_a_uniform_range_are_drawn() -> None:
    assert {item.output_tokens for item in replace(BASE, requests=200, output=Uniform(1, 3)).items(10)} == {1, 2, 3}


def test_streams_are_of_their_own() -> None:
    keys: list[tuple[int, ...]] = [(), (0,), (0, 0), (0, 0, 0), (1,), (1, 0), (0, 1)]
    assert len({stream(0, *key).integers(2**60) for key in keys}) == len(keys)
    assert stream(3, 1).integers(2**60) == stream(3, 1).integers(2**60) != stream(4, 1).integers(2**60)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"requests": 0}, "requests must be at least 1"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"rate": float("inf")}, "rate must be above 0"),
        ({"priorities": ()}, "priorities must hold"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_impossible_workloads_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(BASE, **change)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Fixed(0), "at least 1"),
        (lambda: Uniform(5, 4), "in order"),
        (lambda: LogNormal(1, 1.0, 2, 9), "median"),
        (lambda: LogNormal(3, 0.0, 2, 9), "sigma"),
    ],
)
def test_impossible_lengths_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()
