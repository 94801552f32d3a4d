"""The native ops one by one, as fractions of what memory and multipliers can do while they are measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from octavo.core.errors import ConfigError, UnsupportedModelError
from octavo.core.host import default_threads
from octavo.formats.ggml import find_format
from octavo.measure.kernel_cases import Case, attention_cases, embedding_cases, linear_cases, norm_cases
from octavo.measure.limits import LimitMeter, Meter, Rates, mean_rates
from octavo.measure.model_cost import limit_of
from octavo.measure.report import Report, host_row
from octavo.ops import make_ops
from octavo.ops.api import Ops

__all__ = ["OPS", "KernelBench", "bench_kernels", "kernel_row"]

OPS = ("linear", "attention", "rms_norm", "embedding")
MIN_CALLS = 5
# Long calls (a prompt of 8k tokens) are timed only twice if more would take longer than this.
PATIENCE_S = 3.0

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class KernelBench:
    """What to run.

    ops: among OPS. formats: storage formats; empty: all that the C++ extension knows. rows, columns: of the weight
    matrix, N x K. tokens: row counts M of the input. threads: None: as an engine would choose. seconds: for each row.

    Raises ConfigError: an unknown op, or a value out of range; UnsupportedModelError: an unknown format.
    """

    ops: tuple[str, ...] = OPS
    formats: tuple[str, ...] = ()
    rows: int = 4096
    columns: int = 4096
    tokens: tuple[int, ...] = (1, 2, 4, 8, 16, 128, 512)
    threads: int | None = None
    seconds: float = 0.25

    def __post_init__(self) -> None:
        if unknown := [name for name in self.ops if name not in OPS]:
            raise ConfigError(f"there is no op {unknown[0]!r} to measure; possible: {', '.join(OPS)}")
        for name in self.formats:
            find_format(name)
        if not self.tokens or min(self.rows, self.columns, *self.tokens) < 1:
            raise ConfigError(f"shape {self.rows}x{self.columns} and rows {list(self.tokens)} must all be at least 1")
        if not 0 < self.seconds <= 3600:
            raise ConfigError(f"seconds must be above 0 and at most 3600, not {self.seconds:g}")


def bench_kernels(bench: KernelBench, *, meter: Meter | None = None, log: Log = lambda line: None) -> Report:
    """Measure every case. Ctrl-C ends it; the report holds what there is by then.

    meter: measures the limits, between groups of cases that share their data; None: the C++ extension does.
    log: is told each group. A format of which the shape is no multiple is left out with a note, unless it was named.
    Raises ConfigError: the native backend is not built here, or the shape does not fit a format that was named.
    """
    threads = default_threads().threads if bench.threads is None else bench.threads
    ops = make_ops("native", threads)
    limits = LimitMeter(threads) if meter is None else meter
    notes = [limits.missing] if isinstance(limits, LimitMeter) and limits.missing else []
    rows: list[dict[str, Any]] = []
    samples: list[Rates] = []
    interrupted = False
    try:
        samples.append(limits.sample())
        for name, cases in _groups(bench, ops):
            try:
                timed = [(case, time_calls(case.calls, bench.seconds)) for case in cases]
            except (ConfigError, UnsupportedModelError) as error:
                if bench.formats:
                    raise
                notes.append(f"{name} is left out: {error}")
                continue
            samples.append(limits.sample())
            around = mean_rates(samples[-2:])
            rows += _relative([kernel_row(case, times, around) for case, times in timed])
            log(f"{name}: {len(timed)} rows")
    except KeyboardInterrupt:
        interrupted = True
    host = host_row(threads=threads, tier=getattr(ops, "tier", None), samples=samples)
    return Report(host, rows, notes, interrupted)


def time_calls(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Seconds of each call, in turn, after one that is not counted: for so long, and at least a handful."""
    clock = time.perf_counter
    times: list[float] = []
    calls[-1]()
    begin = clock()
    while (elapsed := clock() - begin) < seconds or len(times) < (2 if elapsed > PATIENCE_S else MIN_CALLS):
        call = calls[len(times) % len(calls)]
        start = clock()
        call()
        times.append(clock() - start)
    return times


def kernel_row(case: Case, times: Sequence[float], rates: Rates) -> dict[str, Any]:
    """One row of the report: rates of the median call and the best one, and the median's share of each limit.

    gb_s counts the bytes a call must move, gmac_s its multiply-accumulates; peak: what is multiplied (int8, bf16, f32),
    so which peak peak_fraction is of. limit: which limit is the tighter one (stream, dot); limit_fraction: time at that
    limit over time taken. A limit that does not apply (data in a cache, nothing multiplied) or is not known gives None.
    """
    typical, best = median(times), min(times)
    stream = rates.stream_gb_s if case.cold else None
    peak = rates.peak_gmac_s(case.kind) if case.macs else None
    limit = limit_of(case.moved_bytes, {case.kind: case.macs}, rates if case.cold else replace(rates, stream_gb_s=None))
    gb_s, gmac_s = case.moved_bytes / typical / 1e9, case.macs / typical / 1e9
    return {
        **case.labels,
        "calls": len(times),
        "time_us": 1e6 * typical,
        "time_us_best": 1e6 * best,
        "gb_s": gb_s,
        "gb_s_best": gb_s * typical / best,
        "stream_fraction": None if stream is None else gb_s / stream,
        "gmac_s": gmac_s if case.macs else None,
        "gmac_s_best": gmac_s * typical / best if case.macs else None,
        "peak": case.kind if case.macs else None,
        "peak_fraction": None if peak is None else gmac_s / peak,
        "limit": None if limit is None else limit.bound,
        "limit_fraction": None if limit is None else limit.seconds / typical,
        "limit_fraction_best": None if limit is None else limit.seconds / best,
    }


def _relative(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For linear: how much longer more rows take than the fewest."""
    linear = [row for row in rows if row["op"] == "linear"]
    if linear:
        least = min(linear, key=lambda row: row["tokens"])["time_us"]
        for row in linear:
            row["relative_time"] = row["time_us"] / least
    return rows


def _groups(bench: KernelBench, ops: Ops) -> Iterator[tuple[str, Iterator[Case]]]:
    """Groups of cases that share their data, which is made when a group is begun and dropped with it."""
    from octavo.ops.native import storage_formats  # there, since `ops` is a native backend

    formats = bench.formats or tuple(storage_formats())
    few = tuple(sorted({min(bench.tokens), max(bench.tokens)}))
    if "linear" in bench.ops:
        for dtype in formats:
            yield f"linear {dtype}", linear_cases(ops, dtype, bench.rows, bench.columns, bench.tokens)
    if "attention" in bench.ops:
        yield "attention", attention_cases(ops)
    if "rms_norm" in bench.ops:
        yield "rms_norm", norm_cases(ops, bench.columns, bench.tokens)
    if "embedding" in bench.ops:
        for dtype in formats:
            yield f"embedding {dtype}", embedding_cases(ops, dtype, bench.columns, few)
