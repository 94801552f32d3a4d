"""Embeddings: what a model's last layer makes of a text, as one vector.

The hidden states after the final norm, pooled over the text's tokens and scaled to length 1:

    mean  their average (Reimers and Gurevych, Sentence-BERT, EMNLP 2019, arXiv:1908.10084)
    last  that of the last token, which has seen all others (Neelakantan et al., 2022, arXiv:2201.10005)

Texts are computed between the steps of an engine, in chunks of its token budget and in pages of its cache, so requests
that run go on. As with tokens, a vector depends on its text alone: not on what else runs, nor on how it was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from octavo.cache.manager import PageTable
from octavo.core.batch import RaggedBatch
from octavo.core.errors import ContextLengthError, RequestError
from octavo.engine.step import Engine
from octavo.models.decoder import Model
from octavo.ops.kv import KVStore

__all__ = ["POOLINGS", "Embedder", "EmbeddingJob", "Pooling"]

Pooling = Literal["mean", "last"]
POOLINGS: tuple[Pooling, ...] = ("mean", "last")
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]

# Part of the time between two tokens of running answers that a chunk may take, and the fewest tokens of one.
_STALL_AIM = 0.85
_LEAST_CHUNK = 16


@dataclass
class _Text:
    """tokens: i32. computed: of them. total: f64 [H], the sum of the states so far, for the mean."""

    tokens: I32
    table: PageTable | None = None
    computed: int = 0
    total: F64 | None = None
    result: F32 | None = None


@dataclass(frozen=True)
class _Chunk:
    text: _Text
    count: int


@dataclass
class Embedder:
    """What embeds on an engine, between its steps. held: pages that texts have now."""

    engine: Engine
    model: Model
    kv: KVStore
    held: int = field(default=0, init=False)

    def job(self, prompts: Sequence[Sequence[int]], pooling: Pooling) -> EmbeddingJob:
        """Several texts, as token ids. Computes nothing yet.

        Raises RequestError (no such pooling, no tokens, a token outside the vocabulary), ContextLengthError.
        """
        if pooling not in POOLINGS:
            raise RequestError(f"pooling must be one of {', '.join(POOLINGS)}, not {pooling!r}")
        for index, prompt in enumerate(prompts):
            self._check(prompt, f"input {index}")
        return EmbeddingJob(self, [_Text(np.array(prompt, np.int32)) for prompt in prompts], pooling)

    def place(self, text: _Text) -> bool:
        """Pages for a text that may be kept from one step to the next; False if it has to wait.

        Whatever texts hold, the longest sequence still finds pages: the scheduler relies on that.
        """
        cache, config = self.engine.cache, self.engine.config
        pages = cache.pages_for(len(text.tokens))
        spare = config.num_pages - cache.pages_for(config.max_model_len) - len(cache.pins) - self.held
        headroom = len(self.engine.scheduler.running)
        return pages <= spare and cache.available >= pages + headroom and self._take(text)

    def squeeze(self, text: _Text) -> bool:
        """Pages for a text that gives them back before the next step: for caches that `place` never finds room in."""
        cache, config = self.engine.cache, self.engine.config
        pages = cache.pages_for(len(text.tokens))
        never = pages > config.num_pages - cache.pages_for(config.max_model_len) - len(cache.pins)
        return never and cache.available >= pages and self._take(text)

    def give_back(self, text: _Text) -> None:
        if text.table is not None:
            self.held -= len(text.table.pages)
            self.engine.cache.free(text.table)
            text.table = None

    def budget(self, context: int) -> int:
        """Tokens of the next chunk; `context` come before them."""
        config, scheduler = self.engine.config, self.engine.scheduler
        most, stall_ms = config.max_num_batched_tokens, config.max_decode_stall_ms
        if stall_ms is None or not scheduler.running or not scheduler.cost.known:
            return most
        limit_s = stall_ms / 1000 * _STALL_AIM
        fits = scheduler.cost.tokens_within(limit_s, tokens=0, pairs=0, context=context, most=most)
        return max(min(_LEAST_CHUNK, most), fits)

    def states(self, chunks: Sequence[_Chunk]) -> F32:
        """f32 [T, H], the hidden states after the final norm, of the chunks' tokens one after the other."""
        residual = self.model.hidden(_batch(chunks), self.kv)
        return self.model.ops.rms_norm(residual, self.model.decoder.weights.output_norm)

    def _take(self, text: _Text) -> bool:
        table, cache = PageTable(), self.engine.cache
        if not cache.extend(table, len(text.tokens)):
            return False
        text.table = table
        self.held += len(table.pages)
        return True

    def _check(self, prompt: Sequence[int], name: str) -> None:
        known, length = self.engine.vocabulary.known, self.engine.config.max_model_len
        if not len(prompt):
            raise RequestError(f"{name} is empty: it has no tokens to embed")
        low, high = min(prompt), max(prompt)
        if low < 0 or high >= known:
            bad = low if low < 0 else high
            raise RequestError(f"{name} holds token id {bad}; this model's vocabulary has ids 0 to {known - 1}")
        if len(prompt) > length:
            raise ContextLengthError(
                f"{name} has {len(prompt)} tokens, but the context window holds {length}; shorten it, or load the "
                "model with a larger max_model_len"
            )


class EmbeddingJob:
    """The texts of one request. Its methods are called between two steps of the engine, in the engine's thread."""

    def __init__(self, embedder: Embedder, texts: list[_Text], pooling: Pooling) -> None:
        self._embedder, self._texts, self._pooling = embedder, texts, pooling

    @property
    def results(self) -> list[F32]:
        """f32 [H] of each text, of length 1, once all are done."""
        return [text.result for text in self._texts if text.result is not None]

    def advance(self) -> bool:
        """Compute one chunk, of as many texts as fit; whether all are done. Does nothing while there are no pages."""
        chunks = self._chunks()
        if chunks:
            self._run(chunks)
        else:
            self._run_squeezed()
        return all(text.result is not None for text in self._texts)

    def close(self) -> None:
        """Give up what has not been computed."""
        for text in self._texts:
            self._embedder.give_back(text)

    def _chunks(self) -> list[_Chunk]:
        embedder, most = self._embedder, self._embedder.engine.config.max_num_seqs
        left = [text for text in self._texts if text.result is None]
        budget = embedder.budget(left[0].computed) if left else 0
        chunks: list[_Chunk] = []
        for text in left[:most]:
            if budget <= 0 or (text.table is None and not embedder.place(text)):
                break
            count = min(budget, len(text.tokens) - text.computed)
            chunks.append(_Chunk(text, count))
            budget -= count
        return chunks

    def _run_squeezed(self) -> None:
        """The first text from its start to its end, before anything else runs."""
        text = next((text for text in self._texts if text.result is None), None)
        if text is None or not self._embedder.squeeze(text):
            return
        try:
            while text.result is None:
                most = self._embedder.engine.config.max_num_batched_tokens
                self._run([_Chunk(text, min(most, len(text.tokens) - text.computed))])
        finally:
            self._embedder.give_back(text)

    def _run(self, chunks: Sequence[_Chunk]) -> None:
        states = self._embedder.states(chunks)
        start = 0
        for chunk in chunks:
            self._pool(chunk.text, states[start : start + chunk.count])
            start += chunk.count

    def _pool(self, text: _Text, states: F32) -> None:
        text.computed += len(states)
        done = text.computed == len(text.tokens)
        if self._pooling == "mean":
            if text.total is None:
                text.total = np.zeros(states.shape[1])
            for row in states:  # one after the other: the sum must not depend on the chunks
                text.total += row
        if done:
            pooled = states[-1].astype(np.float64) if text.total is None else text.total / len(text.tokens)
            length = float(np.linalg.norm(pooled))
            text.result = (pooled / (length or 1.0)).astype(np.float32)
            self._embedder.give_back(text)


def _batch(chunks: Sequence[_Chunk]) -> RaggedBatch:
    """The next tokens of the chunks' texts as one batch that needs no logits."""
    counts = np.array([chunk.count for chunk in chunks], np.int32)
    computed = np.array([chunk.text.computed for chunk in chunks], np.int32)
    starts = np.zeros(len(chunks) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    tables = [chunk.text.table.pages for chunk in chunks if chunk.text.table is not None]
    pages = np.full((len(chunks), max(map(len, tables))), -1, np.int32)
    for row, table in zip(pages, tables, strict=True):
        row[: len(table)] = table
    parts = [chunk.text.tokens[chunk.text.computed : chunk.text.computed + chunk.count] for chunk in chunks]
    return RaggedBatch(
        tokens=np.concatenate(parts),
        positions=np.arange(starts[-1], dtype=np.int32) + np.repeat(computed - starts[:-1], counts),
        query_starts=starts,
        kv_lens=computed + counts,
        page_tables=pages,
        logit_rows=np.empty(0, np.int32),
    )
