"""Prefill and decode rates of the engine itself: paged cache, scheduler, greedy sampling, detokenizer and all.

A run of one batch has two timed phases, as people quote them:

    prefill   from queueing all prompts until each has its first token (steps near the end also carry a decode row of
              those that are done; they are not counted, so the figure errs downwards)
    decode    the next `output_tokens` steps, in each of which every sequence gets one token

Runs of all batch sizes take turns, with a sample of the machine's limits between any two of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike, fspath

import numpy as np

from octavo.core.config import DEFAULT_BLOCK_SIZE, DEFAULT_MAX_NUM_BATCHED_TOKENS, resolve_kv_dtype
from octavo.core.errors import ConfigError, RequestError
from octavo.core.params import SamplingParams
from octavo.engine.runner import Runner
from octavo.engine.sequence import Group
from octavo.engine.setup import Loaded, Options, load
from octavo.engine.step import Engine
from octavo.formats.gguf import GGUFFile
from octavo.formats.references import resolve
from octavo.measure.engine_rows import EngineRun, engine_row
from octavo.measure.limits import LimitMeter, Meter, Rates, mean_rates
from octavo.measure.model_cost import MatrixMacs, ModelCost
from octavo.measure.overhead import measure_steps
from octavo.measure.report import Report, host_row
from octavo.models.config import ModelConfig

__all__ = ["EngineBench", "bench_engine", "prefill_plan"]

# Steps run once more with a clock around each native call; they follow the timed ones and need no prefill of their own.
SPLIT_STEPS = 16
WARM_UP_TOKENS = 16

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class EngineBench:
    """What to run.

    prompt_tokens, output_tokens: of each sequence. batches: sizes of the batches. repeats: runs of each.
    threads: None: as an engine would choose. seed: of the random prompts. kv_cache_dtype: as LLM takes it.

    Raises ConfigError: a value is below 1, or there is no batch.
    """

    prompt_tokens: int
    output_tokens: int
    batches: tuple[int, ...]
    repeats: int = 3
    threads: int | None = None
    kv_cache_dtype: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.batches or min(self.batches) < 1:
            raise ConfigError(f"batch must be one or more sizes of at least 1, not {list(self.batches)}")
        if self.seed < 0:
            raise ConfigError(f"seed must be at least 0, not {self.seed}")

    @property
    def step_tokens(self) -> int:
        """max_num_batched_tokens of the engine: the default, or what leaves room for prompts beside decoding."""
        return max(DEFAULT_MAX_NUM_BATCHED_TOKENS, 2 * max(self.batches))

    def context(self, split_steps: int) -> int:
        """Longest a sequence gets: the first to have its prompt done decodes while the others are computed."""
        steps, first = prefill_plan(max(self.batches), self.prompt_tokens, self.step_tokens)
        return self.prompt_tokens + steps - first + 1 + self.output_tokens + split_steps


def prefill_plan(batch: int, prompt_tokens: int, step_tokens: int) -> tuple[int, int]:
    """Steps until all prompts are done, and until the first one is, as the scheduler plans them (decoding first)."""
    left = [prompt_tokens] * batch
    steps = first = 0
    while any(left):
        room = step_tokens - left.count(0)
        for index, tokens in enumerate(left):
            taken = min(tokens, room)
            left[index], room = tokens - taken, room - taken
        steps += 1
        first = first or (steps if not left[0] else 0)
    return steps, first


def bench_engine(
    model: str | PathLike[str], bench: EngineBench, *, meter: Meter | None = None, log: Log = lambda line: None
) -> Report:
    """Load a model and measure it. Ctrl-C during the runs ends them; the report holds what there is by then.

    meter: measures the limits; None: the C++ extension does, with the engine's threads. log: is told each run.
    Raises ModelError, ConfigError (the model's context or the memory is too small, or an impossible value).
    """
    path = resolve(fspath(model))
    with GGUFFile.open(path) as file:
        shape = ModelConfig.from_gguf(file)
        matrices = MatrixMacs.of(file.tensors)
    split_steps = _split_steps(bench, shape)
    loaded = load(path, _options(bench, shape, split_steps), lambda line: None)
    with _engine(loaded) as engine:
        cost = ModelCost.of(loaded.model, matrices, loaded.config.kv_cache_dtype)
        limits = LimitMeter(loaded.config.threads) if meter is None else meter
        samples: list[Rates] = []
        runs: dict[int, list[EngineRun]] = {batch: [] for batch in bench.batches}
        interrupted = False
        try:
            _warm_up(engine, bench)
            for run, batch in _take_turns(engine, loaded, bench, split_steps, limits, samples):
                runs[batch].append(run)
                log(_line(run, batch, bench, len(runs[batch])))
        except KeyboardInterrupt:
            interrupted = True
        rows = [engine_row(batch, bench.prompt_tokens, done, cost) for batch, done in runs.items() if done]
        tier = getattr(loaded.model.ops, "tier", None)
        host = host_row(threads=loaded.config.threads, tier=tier, samples=samples)
        host |= {"model": path.name, "stream_bytes": cost.stream_bytes, "kv_cache_dtype": loaded.config.kv_cache_dtype}
    notes = [limits.missing] if isinstance(limits, LimitMeter) and limits.missing else []
    return Report(host, rows, notes, interrupted)


def _split_steps(bench: EngineBench, shape: ModelConfig) -> int:
    """How many more steps the context has room for, so that a benchmark of the whole context can still run."""
    needed, context = bench.context(0), shape.context_length
    if needed > context:
        raise ConfigError(
            f"{bench.prompt_tokens} prompt and {bench.output_tokens} output tokens at batch {max(bench.batches)} need "
            f"a context of {needed} tokens, and this model has {context}; lower --prompt-tokens or --output-tokens"
        )
    return min(SPLIT_STEPS, context - needed)


def _options(bench: EngineBench, shape: ModelConfig, split_steps: int) -> Options:
    length = bench.context(split_steps)
    pages = max(bench.batches) * -(-length // DEFAULT_BLOCK_SIZE)
    # The scheduler keeps a few pages spare before it admits a sequence; with them nothing is ever preempted.
    pages += pages // 32 + 2
    dtype = resolve_kv_dtype(bench.kv_cache_dtype)
    return Options(
        max_model_len=length,
        max_num_seqs=max(bench.batches),
        max_num_batched_tokens=bench.step_tokens,
        max_decode_stall_ms=None,  # so that steps are what prefill_plan says, whatever they take
        enable_prefix_caching=False,
        swap_space_bytes=0,
        kv_cache_dtype=dtype,
        kv_cache_bytes=pages * shape.kv_page_bytes(DEFAULT_BLOCK_SIZE, dtype),
        seed=bench.seed,
        threads=bench.threads,
    )


@contextmanager
def _engine(loaded: Loaded) -> Iterator[Engine]:
    from octavo.engine.text import vocabulary_of  # imported by now, while loading

    vocabulary = vocabulary_of(loaded.text.tokenizer, loaded.model.config.vocab)
    engine = Engine(Runner(loaded.model, loaded.kv), loaded.config, vocabulary)
    try:
        yield engine
    finally:
        engine.close()


def _take_turns(
    engine: Engine, loaded: Loaded, bench: EngineBench, split_steps: int, meter: Meter, samples: list[Rates]
) -> Iterator[tuple[EngineRun, int]]:
    """Every batch once, then every batch again; the split of the time is measured in the last round."""
    rng = np.random.default_rng(bench.seed)
    samples.append(meter.sample())
    for repeat in range(bench.repeats):
        for batch in bench.batches:
            shape = (batch, bench.prompt_tokens)
            prompts: list[list[int]] = rng.integers(0, engine.vocabulary.known, shape).tolist()
            with _queued(engine, prompts) as groups:
                run = _run(engine, groups, bench.output_tokens)
                if repeat == bench.repeats - 1 and split_steps:
                    run = replace(run, split=measure_steps(engine, loaded.model.ops, split_steps))
            samples.append(meter.sample())
            yield replace(run, rates=mean_rates(samples[-2:])), batch


@contextmanager
def _queued(engine: Engine, prompts: Sequence[list[int]]) -> Iterator[list[Group]]:
    """Greedy requests that never stop by themselves, ended with the `with` statement."""
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=None)
    groups = [engine.prepare(engine.make_request(ids, params)) for ids in prompts]
    try:
        yield groups
    finally:
        for group in groups:
            engine.abort(group)


def _run(engine: Engine, groups: list[Group], output_tokens: int) -> EngineRun:
    clock = time.perf_counter
    before = engine.stats()
    start = clock()
    for group in groups:
        engine.add(group)
    while not all(group.prompt_done for group in groups):
        _step(engine)
    prefill_s = clock() - start
    prefill_steps = engine.stats().steps - before.steps
    contexts = tuple(group.sequences[0].computed for group in groups)
    seconds = []
    for _ in range(output_tokens):
        start = clock()
        _step(engine)
        seconds.append(clock() - start)
    after = engine.stats()
    # The last token is known, but not computed.
    ends = tuple(len(group.sequences[0].tokens) - 1 - output_tokens for group in groups)
    assert ends == contexts, "a sequence ended before the benchmark did"
    assert after.preemptions == before.preemptions, "the KV cache was made too small"
    return EngineRun(prefill_s, prefill_steps, contexts, tuple(seconds))


def _step(engine: Engine) -> None:
    for group in engine.step():
        if group.error is not None:
            raise RequestError(f"a step of the benchmark failed: {group.error}")


def _warm_up(engine: Engine, bench: EngineBench) -> None:
    """Touch weights, buffers and code once, so that the first run pays for nothing."""
    prompt = [token % engine.vocabulary.known for token in range(min(WARM_UP_TOKENS, bench.prompt_tokens))]
    with _queued(engine, [prompt]) as groups:
        _run(engine, groups, 1)


def _line(run: EngineRun, batch: int, bench: EngineBench, repeat: int) -> str:
    prefill = batch * bench.prompt_tokens / run.prefill_s
    decode = batch * len(run.step_s) / sum(run.step_s)
    return f"batch {batch}, repeat {repeat} of {bench.repeats}: prefill {prefill:.1f} tok/s, decode {decode:.1f} tok/s"
