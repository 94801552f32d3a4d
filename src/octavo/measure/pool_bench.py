"""How much of the KV cache holds tokens, under requests of mixed lengths, and what preallocation would make of it.

The same requests are served three times, with the same weights, kernels and memory:

    paged    the engine as it is: pages of a few tokens, given as a sequence grows
    exact    contiguous memory for the true final length of each request, as if that were known when it starts
    whole    contiguous memory for max_model_len, as is needed when it is not known

For the last two the client sends a request only when its reservation fits beside those of the requests that run, which
is when a contiguous allocator without fragmentation would let it start. The engine below still has pages, so nothing
else differs. Steps take what max_num_batched_tokens allows (max_decode_stall_ms None), and preempted sequences are
computed again (no swap space).

Utilization is used slots over allocated ones (Kwon et al., PagedAttention, SOSP 2023, figure 2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from statistics import median
from typing import Any

from octavo.core.config import DEFAULT_BLOCK_SIZE
from octavo.core.errors import ConfigError
from octavo.engine.setup import Log
from octavo.measure.report import Report
from octavo.measure.rig import Needs, Rig, open_rig, turns, until_interrupted
from octavo.measure.serving import Run, State, serve
from octavo.measure.spread import ratios
from octavo.measure.workloads import Item, LogNormal, Workload

__all__ = ["ALLOCATORS", "PoolBench", "bench_pool"]

ALLOCATORS = ("paged", "exact", "whole")
# With means of 165 and 330 tokens, about as in conversations people have shared (ShareGPT: 161 and 338).
PROMPT_MEDIAN, OUTPUT_MEDIAN, SIGMA = 100, 200, 1.0
SHORTEST = 8
MOST_SEQUENCES = 128
PLOT_POINTS = 400


@dataclass(frozen=True, kw_only=True)
class PoolBench:
    """What to run.

    requests: all queued at once. max_model_len: of the engine; prompts and answers are each lognormal, up to half of
    it. pool_tokens: slots of the KV cache. repeats: runs of each allocator. The rest as EngineConfig has it.

    Raises ConfigError: a value is below 1, or the pool smaller than one sequence may be.
    """

    requests: int = 48
    max_model_len: int = 2048
    pool_tokens: int = 8192
    block_size: int = DEFAULT_BLOCK_SIZE
    repeats: int = 2
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("requests", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_model_len < 4 * SHORTEST:
            raise ConfigError(f"max_model_len must be at least {4 * SHORTEST}, not {self.max_model_len}")
        if self.pool_tokens < self.max_model_len:
            raise ConfigError(f"pool_tokens {self.pool_tokens} is below max_model_len {self.max_model_len}")

    def workload(self, repeat: int) -> Workload:
        half = self.max_model_len // 2
        prompt, output = (
            LogNormal(min(typical, half // 2), SIGMA, SHORTEST, half) for typical in (PROMPT_MEDIAN, OUTPUT_MEDIAN)
        )
        return Workload(requests=self.requests, prompt=prompt, output=output, seed=self.seed + repeat)

    def reserve(self, allocator: str) -> Callable[[Item], int] | None:
        """Slots that a request takes of a contiguous cache; None: the engine's pages are what counts."""
        if allocator == "paged":
            return None
        return (lambda item: self.max_model_len) if allocator == "whole" else (lambda item: item.total_tokens)


def bench_pool(model: str | PathLike[str], bench: PoolBench, *, log: Log = lambda line: None) -> Report:
    """Load a model and measure it. Ctrl-C during the runs ends them; the report holds what there is by then.

    Raises ModelError, ConfigError (the model's context or the memory is too small).
    """
    rig = open_rig(model, _needs(bench))
    runs: dict[str, list[Run]] = {name: [] for name in ALLOCATORS}
    with until_interrupted() as until:
        rig.warm_up()
        for repeat, name in turns(ALLOCATORS, bench.repeats):
            run = _run(rig, bench, bench.workload(repeat).items(rig.vocab), name)
            runs[name].append(run)
            log(f"{name}, repeat {repeat + 1} of {bench.repeats}: {run.wall_s:.2f} s")
    rows = [_row(name, runs, bench) for name in ALLOCATORS if runs[name]]
    workload = bench.workload(0)
    notes = [f"prompts {workload.prompt} tokens; answers {workload.output} tokens; all requests are there at the start"]
    return rig.report(bench, rows, notes, interrupted=until.interrupted)


def _needs(bench: PoolBench) -> Needs:
    return Needs(
        max_model_len=bench.max_model_len,
        kv_tokens=bench.pool_tokens,
        lower="--max-model-len or --pool-tokens",
        max_num_seqs=min(MOST_SEQUENCES, bench.requests),
        block_size=bench.block_size,
        threads=bench.threads,
        seed=bench.seed,
    )


def _run(rig: Rig, bench: PoolBench, items: Sequence[Item], allocator: str) -> Run:
    slots = bench.pool_tokens // bench.block_size * bench.block_size
    with rig.engine(max_decode_stall_ms=None) as engine:
        return serve(engine, items, states=True, reserve=bench.reserve(allocator), reservable=slots)


def _row(name: str, runs: dict[str, list[Run]], bench: PoolBench) -> dict[str, Any]:
    """One allocator; medians of its runs.

    utilization_*: used slots over allocated ones, mean over time and where most were allocated. pool_fraction: used
    slots over the whole cache while requests wait, mean over time; running: sequences then. speedup: of the time that
    "whole" takes. timeline: of the last run.
    """
    own = runs[name]
    speedup = ratios([run.wall_s for run in runs["whole"]], [run.wall_s for run in own])
    means = [_means(run.states, bench.pool_tokens) for run in own]
    return {
        "allocator": name,
        "requests": bench.requests,
        "repeats": len(own),
        "seconds": median(run.wall_s for run in own),
        "output_tok_s": median(run.output_tokens / run.wall_s for run in own),
        "speedup": None if speedup is None else speedup.as_json(),
        **{key: median(each[key] for each in means) for key in means[0]},
        "running_peak": max(state.running for run in own for state in run.states),
        "preemptions": median(run.preemptions for run in own),
        "mean_total_tokens": sum(served.item.total_tokens for served in own[-1].requests) / bench.requests,
        "timeline": _timeline(own[-1].states),
        "runs": [{"seconds": run.wall_s, "preemptions": run.preemptions} for run in own],
    }


def _allocated(state: State) -> int:
    return state.reserved_slots or state.allocated_slots


def _means(states: Sequence[State], pool_tokens: int) -> dict[str, float]:
    """Each state counts for as long as its step took. Without any wait at all, the whole run counts as one."""
    busy = [state for state in states if state.waiting] or list(states)
    top = max(states, key=_allocated)
    return {
        "utilization_mean": _over_time(states, lambda s: s.used_slots) / _over_time(states, _allocated),
        "utilization_peak": top.used_slots / _allocated(top),
        "pool_fraction": _over_time(busy, lambda s: s.used_slots) / pool_tokens,
        "running": _over_time(busy, lambda s: s.running),
    }


def _over_time(states: Sequence[State], value: Callable[[State], float]) -> float:
    return sum(value(state) * state.step_s for state in states) / sum(state.step_s for state in states)


def _timeline(states: Sequence[State]) -> dict[str, list[float]]:
    """Seconds and slots, at most PLOT_POINTS of each."""
    kept = states[:: -(-len(states) // PLOT_POINTS)]
    return {
        "time_s": [state.time_s for state in kept],
        "used_slots": [state.used_slots for state in kept],
        "allocated_slots": [_allocated(state) for state in kept],
    }
