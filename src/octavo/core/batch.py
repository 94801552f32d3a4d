"""The ragged batch: the one shape in which work reaches a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import InvalidParameterError

__all__ = ["MAX_TREE", "RaggedBatch"]

MAX_TREE = 64
"""New tokens that a sequence with a tree can have: bits of its rows."""


@dataclass(frozen=True)
class RaggedBatch:
    """S sequences with any number of new tokens each, laid end to end; T tokens in all.

    Prefill, a prefill chunk, decode and verification differ only in how many new tokens a sequence has.
    Sequence s owns rows query_starts[s]:query_starts[s+1]; its KV length after this step is kv_lens[s];
    its token at position p lives in page page_tables[s, p // page_size], slot p % page_size.

    Attributes:
        tokens: i32 [T], token ids.
        positions: i32 [T], position of each token in its sequence, from 0.
        query_starts: i32 [S + 1].
        kv_lens: i32 [S], tokens in the KV cache once this step's are written.
        page_tables: i32 [S, P], page numbers, padded with -1.
        logit_rows: i32 [R], the rows of the batch that need logits.
        tree: u64 [T], or None: each token sees all before it in its sequence. Bit j of row t: t sees the j-th new
            token of its own sequence; it always sees the tokens before the new ones, and itself. Then positions are
            depths (several tokens may share one), and new token j lies at slot kv_len - n + j of the n new ones. A
            sequence has at most 64 new tokens.

    Raises:
        InvalidParameterError: the tree is none.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    query_starts: NDArray[np.int32]
    kv_lens: NDArray[np.int32]
    page_tables: NDArray[np.int32]
    logit_rows: NDArray[np.int32]
    tree: NDArray[np.uint64] | None = None

    def __post_init__(self) -> None:
        if self.tree is not None:
            _check_tree(self, self.tree)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.kv_lens)

    @property
    def slots(self) -> NDArray[np.int32]:
        """i32 [T], each token's place among the keys of its sequence; its position, but for a tree."""
        if self.tree is None:
            return self.positions
        return self._past() + self._index()

    def _past(self) -> NDArray[np.int32]:
        """i32 [T], keys of each token's sequence before its new ones."""
        counts = np.diff(self.query_starts)
        return np.repeat(self.kv_lens - counts, counts).astype(np.int32)

    def _index(self) -> NDArray[np.int32]:
        """i32 [T], each token's number among its sequence's new ones."""
        counts = np.diff(self.query_starts)
        return (np.arange(self.num_tokens) - np.repeat(self.query_starts[:-1], counts)).astype(np.int32)


def _check_tree(batch: RaggedBatch, tree: NDArray[np.uint64]) -> None:
    if tree.dtype != np.uint64 or tree.shape != batch.positions.shape:
        raise InvalidParameterError(
            f"a tree is u64 [{batch.num_tokens}], one mask for each token, not {tree.dtype} {list(tree.shape)}"
        )
    counts = np.diff(batch.query_starts)
    if counts.size and counts.max() > MAX_TREE:
        raise InvalidParameterError(f"a tree of {counts.max()} new tokens; possible: up to {MAX_TREE} for a sequence")
    index, past = batch._index(), batch._past()
    own = tree >> index.astype(np.uint64) & np.uint64(1)
    if not own.all():
        raise InvalidParameterError(f"token {int(np.argmin(own))} of the tree does not see itself")
    spare = np.uint64(MAX_TREE) - np.repeat(counts, counts).astype(np.uint64)
    outside = tree > np.uint64(2**64 - 1) >> spare
    if outside.any():
        raise InvalidParameterError(f"token {int(np.argmax(outside))} of the tree sees a token that is not there")
    astray = (batch.positions < past) | (batch.positions >= np.repeat(batch.kv_lens, counts))
    if astray.any():
        t = int(np.argmax(astray))
        raise InvalidParameterError(
            f"token {t} of the tree is at position {batch.positions[t]}; its sequence's new ones start at {past[t]}"
        )
