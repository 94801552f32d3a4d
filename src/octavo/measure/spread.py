"""A few numbers for many: percentiles of what was timed, and ratios of runs that took turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Self

import numpy as np

__all__ = ["Spread", "percentile", "ratios"]


@dataclass(frozen=True)
class Spread:
    """The median of some values, the least and the largest of them, and how many there were."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """None if there are no values."""
        return cls(median(values), min(values), max(values), len(values)) if values else None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many percent of the values do not exceed (nearest rank); NaN for none."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else float("nan")


def ratios(values: Sequence[float], of: Sequence[float]) -> Spread | None:
    """values[i] / of[i], runs of two variants that took turns; None if either has none.

    A run whose partner is missing (it was interrupted) is left out.
    """
    return Spread.of([a / b for a, b in zip(values, of, strict=False) if b])
