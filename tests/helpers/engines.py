"""Engines on tiny models, without tokenizer or files: token ids in, token ids out."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.core.config import EngineConfig
from octavo.core.outputs import RequestOutput
from octavo.core.params import SamplingParams
from octavo.engine.runner import Runner
from octavo.engine.sequence import Group
from octavo.engine.step import Engine, Vocabulary
from octavo.formats.gguf import GGUFFile
from octavo.models.decoder import Model
from octavo.models.loader import load_model
from octavo.ops import make_ops

__all__ = ["BACKENDS", "Letters", "check_idle", "engine_for", "generate", "load_tiny", "vocabulary"]

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
    groups = [
        engine.prepare(engine.make_request(list(prompt), each)) for prompt, each in zip(prompts, listed, strict=True)
    ]
    for group in groups:
        engine.add(group)
    run(engine, groups)
    check_idle(engine)
    return [group.output() for group in groups]


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
    assert usage.used_pages == 0
    assert usage.cached_pages + usage.free_pages == engine.config.num_pages
    assert all(engine.cache.pool.refs(page) == 0 for page in range(engine.config.num_pages))
    engine.cache.check()
