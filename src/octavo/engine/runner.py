"""A plan into logits: flatten it into one ragged batch and call the model once."""

from __future__ import annotations

from array import array
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.core.batch import RaggedBatch
from octavo.engine.scheduler import StepPlan
from octavo.engine.sequence import Sequence
from octavo.ops.kv import KVStore

__all__ = ["Forward", "Runner", "flatten"]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

_ONE = np.int32(1)


class Forward(Protocol):
    """A model: batch in, logits f32 [R, V] of its logit_rows out; keys and values go to the batch's pages."""

    def forward(self, batch: RaggedBatch, kv: KVStore) -> F32: ...

    def argmax(self, logits: F32) -> tuple[I32, F32]:
        """See Ops.argmax."""


class Runner:
    """Runs plans on a model and its KV store in this process."""

    def __init__(self, model: Forward, kv: KVStore) -> None:
        self.model = model
        self.kv = kv

    def run(self, plan: StepPlan) -> F32:
        """Logits f32 [plan.num_logit_rows, V], rows in the plan's order."""
        for source, target in plan.copies:
            self.kv.copy_page(source, target)
        return self.model.forward(flatten(plan), self.kv)

    def argmax(self, logits: F32) -> tuple[I32, F32]:
        """See Ops.argmax."""
        return self.model.argmax(logits)


def flatten(plan: StepPlan) -> RaggedBatch:
    """The plan as arrays (see RaggedBatch)."""
    if plan.decodes:
        return _flatten_decodes(plan.sequences)
    sequences = plan.sequences
    counts = np.array(plan.counts, np.int32)
    starts = np.zeros(len(sequences) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    computed = np.array([s.computed for s in sequences], np.int32)
    flat = array("i")
    for s, count in zip(sequences, plan.counts, strict=True):
        flat.extend(s.tokens[s.computed : s.computed + count])
    return RaggedBatch(
        tokens=np.array(flat, np.int32),
        positions=np.arange(plan.num_tokens, dtype=np.int32) + np.repeat(computed - starts[:-1], counts),
        query_starts=starts,
        kv_lens=computed + counts,
        page_tables=_page_tables(sequences),
        logit_rows=_logit_rows(plan, starts),
    )


def _flatten_decodes(sequences: list[Sequence]) -> RaggedBatch:
    """The same for one token each, all with logits: what most steps are."""
    rows = np.arange(len(sequences) + 1, dtype=np.int32)
    lens = np.array([len(s.tokens) for s in sequences], np.int32)
    return RaggedBatch(
        tokens=np.array([s.tokens[-1] for s in sequences], np.int32),
        positions=lens - _ONE,
        query_starts=rows,
        kv_lens=lens,
        page_tables=_page_tables(sequences),
        logit_rows=rows[:-1],
    )


def _page_tables(sequences: list[Sequence]) -> I32:
    """i32 [S, P], padded with -1, read-only."""
    pages = [s.table.pages for s in sequences if s.table is not None]
    assert len(pages) == len(sequences), "a planned sequence has no pages"
    width = max(map(len, pages))
    # Joined as bytes, 4 us for 16 sequences; row by row into an array it is 13. Four 0xff bytes are -1.
    rows = b"".join([table.tobytes().ljust(4 * width, b"\xff") for table in pages])
    return np.frombuffer(rows, np.int32).reshape(len(pages), width)


def _logit_rows(plan: StepPlan, starts: I32) -> I32:
    """i32 [R]: the last logit_counts[i] rows of each sequence."""
    if plan.num_logit_rows == plan.num_tokens:
        return np.arange(plan.num_tokens, dtype=np.int32)
    counts = np.array(plan.logit_counts, np.int32)
    shift = starts[1:] - np.cumsum(counts, dtype=np.int32)
    return np.arange(plan.num_logit_rows, dtype=np.int32) + np.repeat(shift, counts)
