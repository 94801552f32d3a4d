"""Continuous against static batching on answers whose lengths have a long tail.

A static batch is admitted as a whole and runs until its longest answer has ended; places whose answer was short stay
empty. Continuous batching fills a place in the step after it became free (Yu et al., Orca, OSDI 2022). The same
requests are served both ways in turn; a latency counts from the time at which its request was due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from statistics import fmean, median
from typing import Any, get_args

from octavo.core.config import Policy
from octavo.core.errors import ConfigError
from octavo.engine.setup import Log
from octavo.measure.report import Report
from octavo.measure.rig import Needs, open_rig, turns, until_interrupted
from octavo.measure.serving import Run, serve
from octavo.measure.spread import percentile, ratios
from octavo.measure.workloads import LogNormal, Uniform, Workload

__all__ = ["BatchingBench", "bench_batching"]

PROMPTS = Uniform(16, 128)
SUMMARIES: dict[str, Callable[[list[float]], float]] = {
    "mean": fmean,
    "p50": lambda values: percentile(values, 50),
    "p99": lambda values: percentile(values, 99),
}


@dataclass(frozen=True, kw_only=True)
class BatchingBench:
    """What to run.

    requests: of each run. batch: sequences at the same time. rate: arrivals per second (Poisson); None: all are there
    at the start. median_tokens, sigma, max_tokens: of the lognormal answers. repeats: runs of each policy, in turn,
    each with requests of its own.

    Raises ConfigError: a value is out of range.
    """

    requests: int = 128
    batch: int = 16
    rate: float | None = None
    median_tokens: int = 48
    sigma: float = 1.0
    max_tokens: int = 512
    repeats: int = 3
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        self.workload(0)  # raises if something in it is out of range

    def workload(self, repeat: int) -> Workload:
        output = LogNormal(self.median_tokens, self.sigma, 1, self.max_tokens)
        seed = self.seed + repeat
        return Workload(requests=self.requests, prompt=PROMPTS, output=output, rate=self.rate, seed=seed)


def bench_batching(model: str | PathLike[str], bench: BatchingBench, *, log: Log = lambda line: None) -> Report:
    """Load a model and measure it. Ctrl-C during the runs ends them; the report holds what there is by then.

    Raises ModelError, ConfigError (the model's context or the memory is too small).
    """
    workload = bench.workload(0)
    rig = open_rig(model, _needs(bench, workload.longest))
    runs: dict[Policy, list[Run]] = {policy: [] for policy in get_args(Policy)}
    with until_interrupted() as until:
        rig.warm_up()
        for repeat, policy in turns(list(runs), bench.repeats):
            with rig.engine(scheduling_policy=policy) as engine:
                run = serve(engine, bench.workload(repeat).items(rig.vocab))
            runs[policy].append(run)
            log(f"{policy}, repeat {repeat + 1} of {bench.repeats}: {run.wall_s:.2f} s")
    rows = [_row(policy, runs, bench) for policy, done in runs.items() if done]
    arrivals = "all requests are there at the start"
    if bench.rate is not None:
        arrivals = f"requests arrive as a Poisson process of {bench.rate:g} per second"
    notes = [f"prompts {workload.prompt} tokens; answers {workload.output} tokens; {arrivals}"]
    return rig.report(bench, rows, notes, interrupted=until.interrupted)


def _needs(bench: BatchingBench, longest: int) -> Needs:
    return Needs(
        max_model_len=longest,
        # Room for a whole batch of the longest, so that no policy is held up by memory.
        kv_tokens=(bench.batch + 2) * (longest + 64),
        lower="--max-tokens or --batch",
        max_num_seqs=bench.batch,
        threads=bench.threads,
        seed=bench.seed,
    )


def _row(policy: Policy, runs: dict[Policy, list[Run]], bench: BatchingBench) -> dict[str, Any]:
    """One policy; medians of its runs.

    output_tok_s: generated tokens over the whole run, from the first arrival to the last end. latency_*_s: from when a
    request was due to its last token. *_ratio: against static batching, run by run; above 1 is better for throughput,
    below 1 for latency. bookkeeping_fraction: of the steps' time, in scheduling and in committing tokens.
    latencies_s: of all requests of all runs.
    """
    own, static = runs[policy], runs["static"]
    row: dict[str, Any] = {
        "policy": policy,
        "requests": bench.requests,
        "batch": bench.batch,
        "rate": bench.rate,
        "repeats": len(own),
        "seconds": median(run.wall_s for run in own),
        "output_tok_s": median(run.output_tokens / run.wall_s for run in own),
        "ttft_p50_s": median(percentile(run.ttfts_s, 50) for run in own),
    }
    speed = ratios(*([run.output_tokens / run.wall_s for run in each] for each in (own, static)))
    row["throughput_ratio"] = None if speed is None else speed.as_json()
    for name, summary in SUMMARIES.items():
        row[f"latency_{name}_s"] = median(summary(run.latencies_s) for run in own)
        ratio = ratios(*([summary(run.latencies_s) for run in each] for each in (own, static)))
        row[f"latency_{name}_ratio"] = None if ratio is None else ratio.as_json()
    return row | {
        "bookkeeping_fraction": median(run.bookkeeping_fraction for run in own),
        "latencies_s": sorted(latency for run in own for latency in run.latencies_s),
        "runs": [{"seconds": run.wall_s, "output_tokens": run.output_tokens} for run in own],
    }
