"""A plan into logits: flatten it into one ragged batch and call the model once."""

from __future__ import annotations

from array import array
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.core.batch import RaggedBatch
from octavo.engine.plan import SteadyPlan, StepPlan
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
        self._last: tuple[SteadyPlan, int, RaggedBatch] | None = None  # plan and step of the batch

    def run(self, plan: StepPlan) -> F32:
        """Logits f32 [plan.num_logit_rows, V], rows in the plan's order."""
        for source, target in plan.copies:
            self.kv.copy_page(source, target)
        return self.model.forward(self._batch(plan), self.kv)

    def argmax(self, logits: F32) -> tuple[I32, F32]:
        """See Ops.argmax."""
        return self.model.argmax(logits)

    def page_parts(self, page: int) -> list[NDArray[Any]]:
        """See Executor."""
        return self.kv.page_parts(page)

    def _batch(self, plan: StepPlan) -> RaggedBatch:
        """`flatten`, but a step that follows on the last one of a steady plan starts from that one's arrays."""
        if not isinstance(plan, SteadyPlan):
            self._last = None
            return flatten(plan)
        if self._last is not None and self._last[0] is plan and self._last[1] == plan.step - 1:
            batch = _next_batch(plan, self._last[2])
        else:
            batch = flatten(plan)
        self._last = plan, plan.step, batch
        return batch


def flatten(plan: StepPlan) -> RaggedBatch:
    """The plan as arrays (see RaggedBatch)."""
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


def _next_batch(plan: SteadyPlan, last: RaggedBatch) -> RaggedBatch:
    """The batch of a step from that of the one before it: every sequence is one token longer."""
    tables = last.page_tables
    if plan.turned:
        tables = _turned(plan, tables)
    return RaggedBatch(
        plan.tokens,
        last.kv_lens,
        last.query_starts,
        last.kv_lens + _ONE,
        tables,
        last.logit_rows,
    )


def _turned(plan: SteadyPlan, tables: I32) -> I32:
    """The page tables i32 [S, P] with the rows of plan.turned made anew."""
    pages = {index: table.pages for index in plan.turned if (table := plan.sequences[index].table) is not None}
    if max(map(len, pages.values())) > tables.shape[1]:
        return _page_tables(plan.sequences)
    tables = tables.copy()
    for index, row in pages.items():
        tables[index, : len(row)] = row
    return tables


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
