"""What running answers feel of a long prompt that arrives: the time between their tokens until it is computed.

Three ways to compute the prompt, with the same weights and requests:

    budget   chunks sized by the cost model, so that no step takes longer than max_decode_stall_ms
    chunks   chunks of max_num_batched_tokens, whatever they take (max_decode_stall_ms None)
    whole    one step for the whole prompt (max_num_batched_tokens above its length)

In every run some requests decode; then long prompts arrive one after another. The first of them is not counted: the
cost model of a fresh engine learns from it, as a server does from its first requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np

from octavo.core.config import DEFAULT_MAX_DECODE_STALL_MS, DEFAULT_MAX_NUM_BATCHED_TOKENS
from octavo.core.errors import ConfigError
from octavo.engine.setup import Log
from octavo.measure.report import Report
from octavo.measure.rig import Needs, Rig, open_rig, turns, until_interrupted
from octavo.measure.serving import Client, Served
from octavo.measure.spread import Spread, percentile, ratios
from octavo.measure.workloads import Item, random_tokens, stream

__all__ = ["WAYS", "StallBench", "bench_stall"]

WAYS = ("budget", "chunks", "whole")
SHORT_PROMPT = 64
# Decode steps before each arrival: undisturbed ones, to compare with.
SETTLE_STEPS = 24
# After its first token, for the picture alone.
AFTER_STEPS = 16
# Tokens of a chunk at the least: the scheduler goes no lower, whatever the time limit.
LEAST_CHUNK = 16


@dataclass(frozen=True, kw_only=True)
class StallBench:
    """What to run.

    prompt_tokens: of the long prompt. decodes: answers that run. stall_ms: max_decode_stall_ms of "budget". arrivals:
    long prompts of each run that count. repeats: runs of each way, in turn.

    Raises ConfigError: a value is out of range.
    """

    prompt_tokens: int = 4000
    decodes: int = 8
    stall_ms: float = DEFAULT_MAX_DECODE_STALL_MS
    arrivals: int = 2
    repeats: int = 3
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "decodes", "arrivals", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.stall_ms > 0:
            raise ConfigError(f"stall_ms must be above 0, not {self.stall_ms:g}")

    @property
    def whole_step(self) -> int:
        """max_num_batched_tokens that takes the long prompt beside the decodes."""
        return max(DEFAULT_MAX_NUM_BATCHED_TOKENS, self.prompt_tokens + self.decodes + 1)

    @property
    def answer_tokens(self) -> int:
        """Of each running answer: enough for all arrivals in the shortest chunks, so that none ends before."""
        steps = -(-self.prompt_tokens // LEAST_CHUNK) + SETTLE_STEPS + AFTER_STEPS
        return (1 + self.arrivals) * steps + self.decodes * SHORT_PROMPT

    def changes(self, way: str) -> dict[str, Any]:
        """Fields of EngineConfig."""
        tokens = self.whole_step if way == "whole" else max(DEFAULT_MAX_NUM_BATCHED_TOKENS, self.decodes + 1)
        stall = self.stall_ms if way == "budget" else None
        return {"max_num_batched_tokens": tokens, "max_decode_stall_ms": stall}


@dataclass
class _Arrival:
    """One long prompt.

    ttft_s: to its first token. alone_s: gaps between tokens before it came; gaps_s: while it was computed.
    times_s: of the first answer's tokens, before, meanwhile and after: when each came, since the arrival, and its gap.
    """

    ttft_s: float
    alone_s: list[float]
    gaps_s: list[float]
    times_s: list[tuple[float, float]]


def bench_stall(model: str | PathLike[str], bench: StallBench, *, log: Log = lambda line: None) -> Report:
    """Load a model and measure it. Ctrl-C during the runs ends them; the report holds what there is by then.

    Raises ModelError, ConfigError (the model's context or the memory is too small).
    """
    rig = open_rig(model, _needs(bench))
    found: dict[str, list[list[_Arrival]]] = {way: [] for way in WAYS}
    with until_interrupted() as until:
        rig.warm_up()
        for repeat, way in turns(WAYS, bench.repeats):
            arrivals = _run(rig, bench, way, repeat)
            found[way].append(arrivals)
            worst = max(max(arrival.gaps_s) for arrival in arrivals)
            log(f"{way}, repeat {repeat + 1} of {bench.repeats}: {1e3 * worst:.0f} ms between tokens at most")
    rows = [_row(way, found, bench) for way in WAYS if found[way]]
    return rig.report(bench, rows, interrupted=until.interrupted)


def _needs(bench: StallBench) -> Needs:
    answer = SHORT_PROMPT + bench.answer_tokens
    return Needs(
        max_model_len=max(bench.prompt_tokens + 1, answer),
        kv_tokens=bench.decodes * (answer + 64) + bench.prompt_tokens + 256,
        lower="--prompt-tokens or --arrivals",
        max_num_seqs=bench.decodes + 1,
        max_num_batched_tokens=bench.whole_step,
        threads=bench.threads,
        seed=bench.seed,
    )


def _run(rig: Rig, bench: StallBench, way: str, repeat: int) -> list[_Arrival]:
    """A fresh engine, one arrival that does not count, and those that do."""
    rng = stream(bench.seed, repeat)
    with rig.engine(**bench.changes(way)) as engine:
        client = Client(engine)
        try:
            answers = _start_answers(client, bench, rng, rig.vocab)
            arrivals = []
            for _ in range(1 + bench.arrivals):
                prompt = random_tokens(rng, bench.prompt_tokens, rig.vocab)
                arrivals.append(_arrive(client, answers, prompt))
        finally:
            client.abort()
    return arrivals[1:]


def _start_answers(client: Client, bench: StallBench, rng: np.random.Generator, vocab: int) -> list[Served]:
    prompts = [random_tokens(rng, SHORT_PROMPT, vocab) for _ in range(bench.decodes)]
    answers = [client.send(Item(prompt_token_ids=ids, output_tokens=bench.answer_tokens)) for ids in prompts]
    while not all(answer.token_s for answer in answers):
        client.step()
    return answers


def _arrive(client: Client, answers: Sequence[Served], prompt: list[int]) -> _Arrival:
    """Some undisturbed steps, the long prompt until its first token, some more steps."""
    begin = client.now()
    for _ in range(SETTLE_STEPS):
        client.step()
    start = client.now()
    long = client.send(Item(prompt_token_ids=prompt, output_tokens=1, arrival_s=start))
    while long.finished_s is None:
        client.step()
    end = long.finished_s
    for _ in range(AFTER_STEPS):
        client.step()
    assert not any(answer.reason for answer in answers), "an answer ended before the benchmark did"
    gaps = [(b, b - a) for answer in answers for a, b in pairwise(answer.token_s)]
    return _Arrival(
        ttft_s=end - start,
        alone_s=[gap for at, gap in gaps if begin < at <= start],
        gaps_s=[gap for at, gap in gaps if start < at <= end],
        times_s=[(b - start, b - a) for a, b in pairwise(answers[0].token_s) if b > begin],
    )


def _row(way: str, found: dict[str, list[list[_Arrival]]], bench: StallBench) -> dict[str, Any]:
    """One way to compute the prompt.

    alone_p50_ms: between tokens before the prompt came. gap_*_ms: while it was computed, over all answers and arrivals.
    over_fraction: of these gaps, longer than stall_ms. ttft_ms: of the long prompt; ttft_ratio: against "whole".
    timeline: the tokens of one answer around the last arrival.
    """
    own = [arrival for run in found[way] for arrival in run]
    whole = [arrival for run in found["whole"] for arrival in run]
    gaps = [1e3 * gap for arrival in own for gap in arrival.gaps_s]
    ttft = Spread.of([1e3 * arrival.ttft_s for arrival in own])
    ratio = ratios([arrival.ttft_s for arrival in own], [arrival.ttft_s for arrival in whole])
    return {
        "way": way,
        **bench.changes(way),
        "arrivals": len(own),
        "alone_p50_ms": 1e3 * percentile([gap for arrival in own for gap in arrival.alone_s], 50),
        "gap_p50_ms": percentile(gaps, 50),
        "gap_p99_ms": percentile(gaps, 99),
        "gap_max_ms": max(gaps),
        "over_fraction": sum(gap > bench.stall_ms for gap in gaps) / len(gaps),
        "steps": len(own[-1].gaps_s) / bench.decodes,
        "ttft_ms": None if ttft is None else ttft.as_json(),
        "ttft_ratio": None if ratio is None else ratio.as_json(),
        "timeline": {
            "time_s": [at for at, _ in own[-1].times_s],
            "gap_ms": [1e3 * gap for _, gap in own[-1].times_s],
        },
    }
