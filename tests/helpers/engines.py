"""Engines on tiny models, without tokenizer or files: token ids in, token ids out."""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.core.config import EngineConfig
from octavo.core.outputs import RequestOutput
from octavo.core.params import SamplingParams
from octavo.engine.plan import StepPlan
from octavo.engine.runner import Runner
from octavo.engine.sequence import Group
from octavo.engine.step import Engine, Vocabulary
from octavo.formats.gguf import GGUFFile
from octavo.models.decoder import Model
from octavo.models.loader import load_model
from octavo.ops import make_ops
from octavo.sampling.sampler import plain_argmax

__all__ = [
    "BACKENDS",
    "NATIVE",
    "Letters",
    "Oracle",
    "check_idle",
    "engine_for",
    "generate",
    "letter",
    "load_tiny",
    "oracle_engine",
    "queue",
    "run",
    "vocabulary",
]

NATIVE = importlib.util.find_spec("octavo.ops._native") is not None
BACKENDS = [
    "reference",
    pytest.param("native", marks=pytest.mark.skipif(not NATIVE, reason="the native extension is not built")),
]
EOG = 301


class Letters:
    """A detokenizer of the simplest kind: token t is one letter."""

    def append(self, token: int) -> str:
        return letter(token)

    def flush(self) -> str:
        return ""


def letter(token: int) -> str:
    return chr(0x100 + token)


def vocabulary(size: int = 320, eog_ids: Sequence[int] = (EOG,)) -> Vocabulary:
    return Vocabulary(size, size, eog_ids, letter, lambda prompt, skip, starts_text: Letters())


def load_tiny(path: Path, backend: str = "reference", threads: int = 2) -> Model:
    with GGUFFile.open(path) as file:
        return load_model(file, make_ops(backend, threads if backend == "native" else None))


class Oracle:
    """An executor without a model: the next token is a function of all tokens before it, and pages hold tokens.

    Each step checks that every sequence finds its own tokens in its pages, so a page that is handed out twice, copied
    from the wrong place, or taken away too early is seen. `plans` keeps the shape of each step.
    """

    def __init__(self, num_pages: int, page_size: int, vocab: int = 50) -> None:
        self.memory = np.full((num_pages, page_size), -1, np.int64)
        self.page_size, self.vocab = page_size, vocab
        self.plans: list[list[tuple[int, int]]] = []
        self.fail: Callable[[StepPlan], None] = lambda plan: None

    def next_token(self, tokens: Sequence[int]) -> int:
        return zlib.crc32(np.asarray(tokens, np.int32).tobytes()) % self.vocab

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """What a greedy request must return."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(self.next_token(tokens))
        return tokens[len(prompt) :]

    def run(self, plan: StepPlan) -> NDArray[np.float32]:
        self.fail(plan)
        for source, target in plan.copies:
            self.memory[target] = self.memory[source]
        rows = []
        self.plans.append([(s.order, count) for s, count in zip(plan.sequences, plan.counts, strict=True)])
        for s, count in zip(plan.sequences, plan.counts, strict=True):
            assert s.table is not None
            for position in range(s.computed, s.computed + count):
                self.memory[s.table.pages[position // self.page_size], position % self.page_size] = s.tokens[position]
        for s, count, wanted in zip(plan.sequences, plan.counts, plan.logit_counts, strict=True):
            assert s.table is not None
            end = s.computed + count
            seen = self.memory[list(s.table.pages)].reshape(-1)[:end]
            assert seen.tolist() == s.tokens[:end].tolist(), "a sequence reads another's tokens"
            for last in range(end - wanted, end):
                row = np.zeros(self.vocab, np.float32)
                row[self.next_token(seen[: last + 1].tolist())] = 9
                rows.append(row)
        return np.array(rows, np.float32).reshape(len(rows), self.vocab)

    def page_parts(self, page: int) -> list[NDArray[Any]]:
        return [self.memory[page]]

    def argmax(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        return plain_argmax(logits)


def oracle_engine(
    *, num_pages: int = 64, max_model_len: int = 256, eog_ids: Sequence[int] = (), vocab: int = 50, **config: Any
) -> tuple[Engine, Oracle]:
    """An engine over an Oracle, with pages of 16 tokens."""
    settings = EngineConfig(
        **{
            "max_model_len": max_model_len,
            "num_pages": num_pages,
            "block_size": 16,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            **config,
        }
    )
    oracle = Oracle(num_pages, settings.block_size, vocab)
    return Engine(oracle, settings, vocabulary(vocab, eog_ids)), oracle


def engine_for(
    model: Model, *, num_pages: int = 64, max_model_len: int = 256, eog_ids: Sequence[int] = (), **config: Any
) -> Engine:
    """An engine with pages of 16 tokens, KV in f32, and no end-of-sequence token unless one is given."""
    settings = EngineConfig(
        **{
            "max_model_len": max_model_len,
            "num_pages": num_pages,
            "block_size": 16,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "kv_cache_dtype": "float32",
            **config,
        }
    )
    kv = model.new_kv(num_pages, settings.block_size, settings.kv_cache_dtype)
    return Engine(Runner(model, kv), settings, vocabulary(model.config.vocab, eog_ids))


def generate(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
) -> list[RequestOutput]:
    """Queue all prompts at once and run until all are done; the engine must be left without a used page."""
    listed = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    groups = [queue(engine, prompt, each) for prompt, each in zip(prompts, listed, strict=True)]
    run(engine, groups)
    check_idle(engine)
    return [group.output() for group in groups]


def queue(engine: Engine, prompt: Sequence[int], params: SamplingParams, **request: Any) -> Group:
    group = engine.prepare(engine.make_request(list(prompt), params, **request))
    engine.add(group)
    return group


def run(engine: Engine, groups: Sequence[Group], most_steps: int = 5000) -> None:
    for _ in range(most_steps):
        if all(group.finished for group in groups):
            return
        engine.step()
    raise AssertionError(f"not finished after {most_steps} steps")


def check_idle(engine: Engine) -> None:
    """No request, no reference, every page free or cached."""
    usage = engine.cache.usage()
    assert not engine.has_work
    assert usage.used_pages == usage.pinned_pages
    assert usage.cached_pages + usage.free_pages == engine.config.num_pages
    pool = engine.cache.pool
    assert sum(pool.refs(page) for page in range(engine.config.num_pages)) == usage.pinned_pages
    engine.cache.check()
