"""What sharing a prefix saves: pages, time and the wait for the first token.

Three waves of requests that begin with the same tokens and go on with their own, all queued at once:

    off    the prefix cache is switched off: every request computes and stores the prefix for itself
    cold   the cache is on and empty: one request computes the prefix, the others wait for it and share its pages
    warm   the same prefix again with other own tokens: every request finds it

Then single requests to the idle engine: one with new tokens throughout, and one whose prompt is cached whole. Steps
take what max_num_batched_tokens allows (max_decode_stall_ms None): all requests are there, and nobody watches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from statistics import median
from typing import Any

from octavo.core.config import DEFAULT_BLOCK_SIZE
from octavo.core.errors import ConfigError
from octavo.engine.setup import Log
from octavo.engine.step import Engine
from octavo.measure.report import Report
from octavo.measure.rig import Needs, Rig, open_rig, turns, until_interrupted
from octavo.measure.serving import Run, State, serve
from octavo.measure.spread import Spread, percentile, ratios
from octavo.measure.workloads import Fixed, Item, Workload, random_tokens, stream

__all__ = ["PrefixBench", "bench_prefix"]

WAVES = ("off", "cold", "warm")
# Pairs of single requests after each warm wave: a first token takes a moment, so that many cost nothing.
HIT_PAIRS = 3


@dataclass(frozen=True, kw_only=True)
class PrefixBench:
    """What to run.

    requests: of a wave. shared_tokens, own_tokens: of each prompt. output_tokens: of each answer; enough of them keep
    the first request running until the last is admitted. repeats: of all waves. The rest as EngineConfig has it.

    Raises ConfigError: a value is below 1.
    """

    requests: int = 32
    shared_tokens: int = 2000
    own_tokens: int = 200
    output_tokens: int = 32
    block_size: int = DEFAULT_BLOCK_SIZE
    repeats: int = 2
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("requests", "shared_tokens", "own_tokens", "output_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def total_tokens(self) -> int:
        """Of one request, prompt and answer."""
        return self.shared_tokens + self.own_tokens + self.output_tokens

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def waves(self, vocab: int, repeat: int) -> dict[str, list[Item]]:
        """The requests of each wave; "off" runs those of "cold"."""
        rng = stream(self.seed, repeat)
        prefix = tuple(random_tokens(rng, self.shared_tokens, vocab))
        own, output = Fixed(self.own_tokens), Fixed(self.output_tokens)
        first, second = rng.integers(0, 2**31, 2).tolist()
        cold = Workload(requests=self.requests, prompt=own, output=output, prefix=prefix, seed=first)
        items = cold.items(vocab)
        return {"off": items, "cold": items, "warm": replace(cold, seed=second).items(vocab)}

    def single(self, vocab: int, repeat: int, number: int) -> Item:
        """A request whose prompt has nothing in common with any other."""
        rng = stream(self.seed, repeat, number)
        tokens = random_tokens(rng, self.shared_tokens + self.own_tokens, vocab)
        return Item(prompt_token_ids=tokens, output_tokens=1)


@dataclass
class _Results:
    """Runs of each wave, and the seconds to the first token of single requests, in pairs."""

    waves: dict[str, list[Run]] = field(default_factory=lambda: {name: [] for name in WAVES})
    new_s: list[float] = field(default_factory=list)
    hit_s: list[float] = field(default_factory=list)
    hit_tokens: list[int] = field(default_factory=list)


def bench_prefix(model: str | PathLike[str], bench: PrefixBench, *, log: Log = lambda line: None) -> Report:
    """Load a model and measure it. Ctrl-C during the runs ends them; the report holds what there is by then.

    Raises ModelError, ConfigError (the model's context or the memory is too small).
    """
    rig = open_rig(model, _needs(bench))
    found = _Results()
    with until_interrupted() as until:
        rig.warm_up()
        for repeat, caching in turns((False, True), bench.repeats):
            _measure(rig, bench, repeat, caching, found, log)
    rows = [_wave_row(name, found, bench) for name in WAVES if found.waves[name]]
    rows += [_hit_row(found, bench)] if found.hit_s else []
    return rig.report(bench, rows, _notes(bench), interrupted=until.interrupted)


def _needs(bench: PrefixBench) -> Needs:
    pages = bench.requests * bench.pages_for(bench.total_tokens)
    # The scheduler keeps some pages spare before it admits a sequence.
    pages += pages // 32 + 2
    return Needs(
        max_model_len=bench.total_tokens,
        kv_tokens=pages * bench.block_size,
        lower="--requests, --shared-tokens or --own-tokens",
        max_num_seqs=bench.requests,
        block_size=bench.block_size,
        threads=bench.threads,
        seed=bench.seed,
    )


def _measure(rig: Rig, bench: PrefixBench, repeat: int, caching: bool, found: _Results, log: Log) -> None:
    """A fresh engine: the wave without a cache, or those with one and then the single requests."""
    waves = bench.waves(rig.vocab, repeat)

    def run(engine: Engine, name: str) -> None:
        done = serve(engine, waves[name], states=True)
        found.waves[name].append(done)
        log(f"{name}, repeat {repeat + 1} of {bench.repeats}: {done.wall_s:.2f} s for {bench.requests} requests")

    with rig.engine(enable_prefix_caching=caching, max_decode_stall_ms=None) as engine:
        if not caching:
            run(engine, "off")
            return
        run(engine, "cold")
        run(engine, "warm")
        cached = replace(waves["warm"][-1], output_tokens=1)
        for number in range(HIT_PAIRS):
            for item, seconds in ((bench.single(rig.vocab, repeat, number), found.new_s), (cached, found.hit_s)):
                alone = serve(engine, [item])
                seconds += alone.ttfts_s
            found.hit_tokens.append(alone.cached_tokens)


def _wave_row(name: str, found: _Results, bench: PrefixBench) -> dict[str, Any]:
    """One wave.

    *_tok_s: prompt and output tokens per second of the whole wave, median. speedup: of the time with the cache off.
    See _peaks for the pages. hit_rate: prompt tokens that came from the cache, of all.
    """
    runs = found.waves[name]
    speedup = ratios([run.wall_s for run in found.waves["off"]], [run.wall_s for run in runs])
    return {
        "wave": name,
        "requests": bench.requests,
        "repeats": len(runs),
        "seconds": median(run.wall_s for run in runs),
        "tok_s": median((run.prompt_tokens + run.output_tokens) / run.wall_s for run in runs),
        "speedup": None if speedup is None else speedup.as_json(),
        "hit_rate": median(run.cached_tokens / run.prompt_tokens for run in runs),
        "ttft_p50_ms": 1e3 * median(percentile(run.ttfts_s, 50) for run in runs),
        "ttft_p99_ms": 1e3 * median(percentile(run.ttfts_s, 99) for run in runs),
        **_peaks(runs[-1].states, bench),
        "runs": [{"seconds": run.wall_s} for run in runs],
    }


def _peaks(states: Sequence[State], bench: PrefixBench) -> dict[str, Any]:
    """The most of a wave, of each kind.

    allocated_tokens: slots of the pages that are held. ideal_tokens: the prefix once, and the own and generated tokens
    of each running request. unshared_tokens: slots of the pages that the running requests would hold without sharing.
    excess_fraction: allocated over ideal, less one. saving_fraction: what was not allocated, of unshared.
    """
    shared, size = bench.shared_tokens, bench.block_size
    pages = max(state.used_pages for state in states)
    allocated = pages * size
    ideal = max(shared + sum(length - shared for length in state.lengths) for state in states)
    unshared = max(sum(map(bench.pages_for, state.lengths)) for state in states) * size
    return {
        "peak_running": max(state.running for state in states),
        "peak_pages": pages,
        "allocated_tokens": allocated,
        "ideal_tokens": ideal,
        "unshared_tokens": unshared,
        "excess_fraction": allocated / ideal - 1,
        "saving_fraction": 1 - allocated / unshared,
    }


def _hit_row(found: _Results, bench: PrefixBench) -> dict[str, Any]:
    """Single requests: milliseconds to the first token of a new prompt and of a cached one, and their ratio."""
    pairs = min(len(found.new_s), len(found.hit_s))
    new, hit = found.new_s[:pairs], found.hit_s[:pairs]
    spreads = {"new_ms": Spread.of([1e3 * s for s in new]), "hit_ms": Spread.of([1e3 * s for s in hit])}
    spreads["ratio"] = ratios(new, hit)
    return {
        "wave": "single",
        "prompt_tokens": bench.shared_tokens + bench.own_tokens,
        "cached_tokens": int(median(found.hit_tokens)) if found.hit_tokens else None,
        **{name: None if spread is None else spread.as_json() for name, spread in spreads.items()},
    }


def _notes(bench: PrefixBench) -> list[str]:
    rest = bench.shared_tokens % bench.block_size
    if not rest:
        return []
    return [
        f"{rest} of the {bench.shared_tokens} shared tokens do not fill a page of {bench.block_size}; each request has "
        "a copy of them, with its own tokens behind"
    ]
