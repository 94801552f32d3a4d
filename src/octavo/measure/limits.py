"""What the machine can do: bytes it streams and products it adds up per second, measured beside what is benchmarked.

A shared machine is not equally fast all the time, so the limits are sampled again and again between the runs that are
compared with them; a single measurement at the start would judge them all by one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean, median
from typing import Any, Literal, Protocol

__all__ = [
    "Kind",
    "LimitMeter",
    "Meter",
    "Rates",
    "best_rates",
    "kind_of_format",
    "mean_rates",
    "median_rates",
    "rates_as_json",
]

Kind = Literal["int8", "bf16", "f32"]
"""What is multiplied: int8 by the dot unit, bf16 by what the tier has for it (else f32), f32 by multiply-add."""


@dataclass(frozen=True)
class Rates:
    """One sample. None: not measured (no C++ extension in use).

    stream_gb_s: 10^9 bytes per second read from memory. The others: 10^9 multiply-accumulates per second of the
    instructions alone that the tier in use has for int8 dot products (dot), for bf16 and for f32.
    """

    stream_gb_s: float | None = None
    dot_gmac_s: float | None = None
    bf16_gmac_s: float | None = None
    f32_gmac_s: float | None = None

    def peak_gmac_s(self, kind: Kind) -> float | None:
        """The peak of this kind of product."""
        return {"int8": self.dot_gmac_s, "bf16": self.bf16_gmac_s, "f32": self.f32_gmac_s}[kind]

    def as_json(self) -> dict[str, float | None]:
        return asdict(self)


def kind_of_format(dtype: str) -> Kind:
    """How the native backend multiplies weights stored in this format, so which peak is their limit."""
    if dtype in ("F32", "F16"):
        return "f32"
    return "bf16" if dtype == "BF16" or dtype.startswith("FP8") else "int8"


class Meter(Protocol):
    """Measures the limits whenever it is asked."""

    def sample(self) -> Rates: ...


class LimitMeter:
    """Samples all limits with the C++ extension, about a quarter of a second each.

    threads: as many as the benchmark uses; None (the reference backend has none): every sample is empty.
    missing: what cannot be measured here, in words; empty if all can.
    """

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self.missing = ""
        if threads is None:
            self.missing = "the reference backend is in use, so the machine's limits are not measured"

    def sample(self) -> Rates:
        """All limits, now."""
        if self._threads is None:
            return Rates()
        from octavo.ops import native

        stream, dot = _uncached(native.measure_stream), _uncached(native.measure_dot)
        peaks = [dot(self._threads, kind) for kind in ("int8", "bf16", "f32")]
        return Rates(stream(self._threads), *peaks)


def mean_rates(samples: Sequence[Rates]) -> Rates:
    """What held on average, as between the sample before a run and the one after it."""
    return _combine(samples, fmean)


def median_rates(samples: Sequence[Rates]) -> Rates:
    """What held most of the time."""
    return _combine(samples, median)


def best_rates(samples: Sequence[Rates]) -> Rates:
    """What the machine can do when it is left alone."""
    return _combine(samples, max)


def rates_as_json(samples: Sequence[Rates]) -> dict[str, Any]:
    """Median and best of all samples under the names that reports use."""
    best = best_rates(samples).as_json()
    both = {name: {name: rate, f"{name}_best": best[name]} for name, rate in median_rates(samples).as_json().items()}
    return {key: rate for each in both.values() for key, rate in each.items()} | {"limit_samples": len(samples)}


def _combine(samples: Sequence[Rates], function: Callable[[list[float]], float]) -> Rates:
    known = {each.name: [r for s in samples if (r := getattr(s, each.name)) is not None] for each in fields(Rates)}
    return Rates(**{name: function(rates) if rates else None for name, rates in known.items()})


def _uncached(function: Callable[..., float]) -> Callable[..., float]:
    """The function behind functools.cache: each sample has to be a new one."""
    plain: Callable[..., float] = getattr(function, "__wrapped__", function)
    return plain
