"""Ragged batches for tests: who feeds how many tokens, and where their pages lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.core.batch import RaggedBatch
from octavo.models.decoder import Model
from octavo.ops.kv import KVStore

__all__ = ["Feeder", "make_batch", "prefill"]


def make_batch(
    tokens: Sequence[Sequence[int]],
    starts: Sequence[int],
    page_tables: Sequence[Sequence[int]],
    logit_rows: Sequence[int] | None = None,
) -> RaggedBatch:
    """tokens: new ones per sequence; starts: position of the first of them; logit_rows: None for all rows."""
    lengths = [len(t) for t in tokens]
    total = sum(lengths)
    tables = np.full((len(tokens), max(len(t) for t in page_tables)), -1, np.int32)
    for row, table in zip(tables, page_tables, strict=True):
        row[: len(table)] = table
    positions = [np.arange(s, s + n, dtype=np.int32) for s, n in zip(starts, lengths, strict=True)]
    return RaggedBatch(
        tokens=np.concatenate([np.asarray(t, np.int32) for t in tokens]),
        positions=np.concatenate(positions),
        query_starts=np.cumsum([0, *lengths]).astype(np.int32),
        kv_lens=np.asarray([s + n for s, n in zip(starts, lengths, strict=True)], np.int32),
        page_tables=tables,
        logit_rows=np.arange(total, dtype=np.int32) if logit_rows is None else np.asarray(logit_rows, np.int32),
    )


@dataclass
class Feeder:
    """Sequences that grow: `feed` runs one ragged batch of new tokens and returns the logits of every row.

    pages: per sequence, the pages that it may use, in order.
    """

    model: Model
    kv: KVStore
    pages: Sequence[Sequence[int]]
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lengths = [0] * len(self.pages)

    def feed(self, new: dict[int, Sequence[int]]) -> dict[int, np.ndarray]:
        """new: sequence -> tokens (in the order of the batch). Returns sequence -> logits f32 [n, V]."""
        order = list(new)
        batch = make_batch([new[s] for s in order], [self.lengths[s] for s in order], [self.pages[s] for s in order])
        logits = self.model.forward(batch, self.kv)
        for s in order:
            self.lengths[s] += len(new[s])
        starts = batch.query_starts
        return {s: logits[starts[i] : starts[i + 1]] for i, s in enumerate(order)}


def prefill(model: Model, tokens: Sequence[int], dtype: str = "float32", page_size: int = 16) -> np.ndarray:
    """Logits f32 [n, V] of one sequence run in one piece."""
    pages = -(-len(tokens) // page_size)
    kv = model.new_kv(pages, page_size, dtype)
    return Feeder(model, kv, [range(pages)]).feed({0: tokens})[0]
