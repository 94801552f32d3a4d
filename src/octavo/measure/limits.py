"""What the machine can do: bytes it streams and products it adds up per second, measured beside what is benchmarked.

A shared machine is not equally fast all the time, so the limits are sampled again and again between the runs that are
compared with them; a single measurement at the start would judge them all by one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Protocol

__all__ = ["LimitMeter", "Meter", "Rates", "best_rates", "mean_rates", "median_rates", "rates_as_json"]


@dataclass(frozen=True)
class Rates:
    """One sample. None: not measured (no C++ extension in use, or one without this measurement).

    stream_gb_s: 10^9 bytes per second read from memory. dot_gmac_s: 10^9 multiply-accumulates per second of the int8
    dot products of the tier in use.
    """

    stream_gb_s: float | None = None
    dot_gmac_s: float | None = None


class Meter(Protocol):
    """Measures the limits whenever it is asked."""

    def sample(self) -> Rates: ...


class LimitMeter:
    """Samples both limits with the C++ extension, about a quarter of a second each.

    threads: as many as the benchmark uses; None (the reference backend has none): every sample is empty.
    missing: what cannot be measured here, in words; empty if all can.
    """

    def __init__(self, threads: int | None) -> None:
        self.missing = ""
        self._stream: Callable[[int], float] | None = None
        self._dot: Callable[[int], float] | None = None
        self._threads = threads or 1
        if threads is None:
            self.missing = "the reference backend is in use, so the machine's limits are not measured"
            return
        from octavo.ops import native

        self._stream = _uncached(native.measure_stream)
        dot = getattr(native, "measure_dot", None)
        if dot is None:
            self.missing = "this build of the extension measures no dot-product peak, so fractions of it are missing"
        else:
            self._dot = _uncached(dot)

    def sample(self) -> Rates:
        """Both limits, now."""
        return Rates(
            stream_gb_s=None if self._stream is None else self._stream(self._threads),
            dot_gmac_s=None if self._dot is None else self._dot(self._threads),
        )


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
    typical, best = median_rates(samples), best_rates(samples)
    return {
        "stream_gb_s": typical.stream_gb_s,
        "stream_gb_s_best": best.stream_gb_s,
        "dot_gmac_s": typical.dot_gmac_s,
        "dot_gmac_s_best": best.dot_gmac_s,
        "limit_samples": len(samples),
    }


def _combine(samples: Sequence[Rates], function: Callable[[list[float]], float]) -> Rates:
    streams = [s.stream_gb_s for s in samples if s.stream_gb_s is not None]
    dots = [s.dot_gmac_s for s in samples if s.dot_gmac_s is not None]
    return Rates(function(streams) if streams else None, function(dots) if dots else None)


def _uncached(function: Callable[[int], float]) -> Callable[[int], float]:
    """The function behind functools.cache: each sample has to be a new one."""
    plain: Callable[[int], float] = getattr(function, "__wrapped__", function)
    return plain
