"""A loaded model on which benchmarks make engines: one after another, each fresh, all with the same weights and pages.

Variants that are compared differ in fields of EngineConfig alone, so they run in turns without loading anything again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from os import PathLike, fspath
from typing import Any, TypeVar

from octavo.core.config import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    resolve_kv_dtype,
)
from octavo.core.errors import ConfigError
from octavo.engine.runner import Runner
from octavo.engine.setup import Loaded, Options, load
from octavo.engine.step import Engine
from octavo.formats.gguf import GGUFFile
from octavo.formats.references import resolve
from octavo.measure.neighbours import Neighbours
from octavo.measure.report import Report, host_row
from octavo.measure.serving import serve
from octavo.measure.workloads import Fixed, Workload
from octavo.models.config import ModelConfig

__all__ = ["Needs", "Rig", "Until", "open_rig", "turns", "until_interrupted"]

T = TypeVar("T")

WARM_UP = Workload(requests=2, prompt=Fixed(16), output=Fixed(4))


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a benchmark needs of an engine, the largest of its variants.

    max_model_len: tokens of the longest sequence. kv_tokens: of the pool, rounded up to pages. lower: the options that
    make it less, for whoever has too little context or memory. The others: as EngineConfig has them.
    """

    max_model_len: int
    kv_tokens: int
    lower: str
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    block_size: int = DEFAULT_BLOCK_SIZE
    threads: int | None = None
    seed: int = 0

    @property
    def num_pages(self) -> int:
        return -(-max(self.kv_tokens, self.max_model_len) // self.block_size)


class Rig:
    """Makes engines on a loaded model; see `open_rig`."""

    def __init__(self, loaded: Loaded) -> None:
        from octavo.engine.text import vocabulary_of  # imported by now, while loading

        self.loaded = loaded
        self.config = loaded.config
        self._neighbours = Neighbours()
        self.vocabulary = vocabulary_of(loaded.text.tokenizer, loaded.model.config.vocab)

    @property
    def vocab(self) -> int:
        """Prompts may hold ids below it."""
        return self.vocabulary.known

    @property
    def page_bytes(self) -> int:
        """Keys and values of one page."""
        config = self.config
        return self.loaded.model.config.kv_page_bytes(config.block_size, config.kv_cache_dtype)

    @contextmanager
    def engine(self, **changes: Any) -> Iterator[Engine]:
        """A fresh engine with some fields of its EngineConfig changed; the last one must have been closed."""
        loaded = self.loaded
        engine = Engine(Runner(loaded.model, loaded.kv), replace(self.config, **changes), self.vocabulary)
        try:
            yield engine
        finally:
            engine.close()

    def warm_up(self) -> None:
        """Touch weights, buffers and code once, so that the first run pays for nothing."""
        with self.engine() as engine:
            serve(engine, WARM_UP.items(self.vocab))

    def report(
        self, bench: Any, rows: list[dict[str, Any]], notes: Sequence[str] = (), *, interrupted: bool = False
    ) -> Report:
        """A report of these rows, and of what others took of the CPUs since the model was loaded.

        bench: a dataclass, what was asked for.
        """
        tier = getattr(self.loaded.model.ops, "tier", None)
        host = host_row(threads=self.config.threads, tier=tier, samples=[])
        host |= {"model": self.loaded.path.name, "kv_cache_dtype": self.config.kv_cache_dtype}
        host |= {"bench": asdict(bench), "engine": asdict(self.config)}
        report = Report(host, rows, list(notes), interrupted)
        self._neighbours.tell(report)
        return report


def open_rig(model: str | PathLike[str], needs: Needs) -> Rig:
    """Load a model with a KV cache of the size that is needed.

    Raises ModelError, ConfigError (the model's context or the memory is too small; it names what to lower).
    """
    path = resolve(fspath(model))
    with GGUFFile.open(path) as file:
        shape = ModelConfig.from_gguf(file)
    if needs.max_model_len > shape.context_length:
        raise ConfigError(
            f"this benchmark needs a context of {needs.max_model_len} tokens, and the model has "
            f"{shape.context_length}; lower {needs.lower}"
        )
    dtype = resolve_kv_dtype("auto")
    options = Options(
        max_model_len=needs.max_model_len,
        max_num_seqs=needs.max_num_seqs,
        max_num_batched_tokens=max(needs.max_num_batched_tokens, needs.max_num_seqs),
        block_size=needs.block_size,
        kv_cache_dtype=dtype,
        kv_cache_bytes=needs.num_pages * shape.kv_page_bytes(needs.block_size, dtype),
        seed=needs.seed,
        threads=needs.threads,
        swap_space_bytes=0,  # what is compared has the same memory
    )
    return Rig(load(path, options, lambda line: None))


def turns(variants: Sequence[T], repeats: int) -> Iterator[tuple[int, T]]:
    """(repeat, variant): all of them once, then all again in the other order, so that a drift favours none of them."""
    for repeat in range(repeats):
        for variant in variants if repeat % 2 == 0 else reversed(variants):
            yield repeat, variant


@dataclass
class Until:
    """interrupted: Ctrl-C has ended what was measured."""

    interrupted: bool = False


@contextmanager
def until_interrupted() -> Iterator[Until]:
    """Ctrl-C ends the block and nothing else, so that what was measured by then is reported."""
    state = Until()
    try:
        yield state
    except KeyboardInterrupt:
        state.interrupted = True
