"""The ragged batch: the one shape in which work reaches a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["RaggedBatch"]


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
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    query_starts: NDArray[np.int32]
    kv_lens: NDArray[np.int32]
    page_tables: NDArray[np.int32]
    logit_rows: NDArray[np.int32]

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.kv_lens)
