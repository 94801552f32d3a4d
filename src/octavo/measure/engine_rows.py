"""From the runs of one batch size to a row of the report: medians, bests, and fractions of the limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from octavo.measure.limits import Rates, best_rates, mean_rates
from octavo.measure.model_cost import Limit, ModelCost
from octavo.measure.overhead import StepCost

__all__ = ["EngineRun", "engine_row"]


@dataclass(frozen=True)
class EngineRun:
    """One run of one batch.

    prefill_s, prefill_steps: until every sequence had its first token. contexts: tokens of each sequence then.
    step_s: seconds of each decode step. rates: the machine's limits around it.
    split: where the time of further steps went; None if it was not measured.
    """

    prefill_s: float
    prefill_steps: int
    contexts: tuple[int, ...]
    step_s: tuple[float, ...]
    rates: Rates = field(default_factory=Rates)
    split: StepCost | None = None


def engine_row(batch: int, prompt_tokens: int, runs: Sequence[EngineRun], cost: ModelCost) -> dict[str, Any]:
    """One row of the report.

    *_tok_s: tokens per second of the whole batch, median of the runs; *_best: of the best run. *_limit_tok_s: what the
    limits, as they were during the runs, would allow (mean); *_limit: which of them, stream or dot.
    *_limit_fraction: median of each run's share of the limits around it; *_best: the best run against the best limits.
    prefill_attention_fraction: time of attention's products at the f32 peak over the time taken. The limit leaves them
    out, so the two fractions together are the share of the time that the machine needs.
    split: where the time of a decode step goes.
    """
    steps = len(runs[0].step_s)

    def prefill(run: EngineRun, rates: Rates) -> Limit | None:
        return cost.prefill_limit(batch, prompt_tokens, run.prefill_steps, rates)

    def decode(run: EngineRun, rates: Rates) -> Limit | None:
        return cost.decode_limit(run.contexts, steps, rates)

    splits = [run.split for run in runs if run.split is not None]
    return {
        "batch": batch,
        "prompt_tokens": prompt_tokens,
        "output_tokens": steps,
        "repeats": len(runs),
        **_phase("prefill", batch * prompt_tokens, runs, lambda run: run.prefill_s, prefill),
        **_phase("decode", batch * steps, runs, lambda run: sum(run.step_s), decode),
        "prefill_attention_fraction": _attention_fraction(batch, prompt_tokens, runs, cost),
        "prefill_steps": runs[0].prefill_steps,
        "first_token_s": median(run.prefill_s for run in runs),
        "decode_step_ms": median(1e3 * second for run in runs for second in run.step_s),
        "decode_step_ms_best": min(1e3 * second for run in runs for second in run.step_s),
        "split": splits[-1].as_json() if splits else None,
        "runs": [{"prefill_s": run.prefill_s, "decode_s": sum(run.step_s), **run.rates.as_json()} for run in runs],
    }


def _attention_fraction(batch: int, prompt_tokens: int, runs: Sequence[EngineRun], cost: ModelCost) -> float | None:
    seconds = [(cost.attention_limit_s(batch, prompt_tokens, run.rates), run.prefill_s) for run in runs]
    known = [least / taken for least, taken in seconds if least is not None]
    return median(known) if known else None


def _phase(
    name: str,
    tokens: int,
    runs: Sequence[EngineRun],
    seconds: Callable[[EngineRun], float],
    limit: Callable[[EngineRun, Rates], Limit | None],
) -> dict[str, Any]:
    best = min(runs, key=seconds)
    rates = [run.rates for run in runs]
    typical, ideal = limit(best, mean_rates(rates)), limit(best, best_rates(rates))
    fractions = [at.seconds / seconds(run) for run in runs if (at := limit(run, run.rates)) is not None]
    return {
        f"{name}_tok_s": tokens / median(map(seconds, runs)),
        f"{name}_tok_s_best": tokens / seconds(best),
        f"{name}_limit": None if typical is None else typical.bound,
        f"{name}_limit_tok_s": None if typical is None else tokens / typical.seconds,
        f"{name}_limit_fraction": median(fractions) if fractions else None,
        f"{name}_limit_fraction_best": None if ideal is None else ideal.seconds / seconds(best),
    }
