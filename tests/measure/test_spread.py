"""Percentiles and ratios on numbers whose answers are known."""

from __future__ import annotations

import math

from octavo.measure.spread import Spread, percentile, ratios


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, percent) for percent in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([3.0, 1.0], 50) == 1
    assert percentile([3.0, 1.0], 51) == 3
    assert percentile([7.0] * 8 + [9.0], 50) == 7
    assert math.isnan(percentile([], 50))


def test_a_spread_is_median_and_ends() -> None:
    assert Spread.of([4.0, 1.0, 2.0]) == Spread(2.0, 1.0, 4.0, 3)
    assert Spread.of([]) is None


def test_ratios_are_of_runs_that_took_turns() -> None:
    assert ratios([10.0, 30.0, 9.0], [5.0, 10.0, 9.0]) == Spread(2.0, 1.0, 3.0, 3)
    # The second variant was interrupted before its last run.
    assert ratios([10.0, 30.0], [5.0]) == Spread(2.0, 2.0, 2.0, 1)
    assert ratios([], [5.0]) is None
    assert ratios([1.0], [0.0]) is None


def test_a_spread_as_json() -> None:
    found = Spread.of([2.0])
    assert found is not None
    assert found.as_json() == {"median": 2.0, "low": 2.0, "high": 2.0, "count": 1}
