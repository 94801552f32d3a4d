"""Log-probabilities of the raw model distribution: softmax of the logits before any processor, temperature or filter.

Natural logarithms; the sum over the vocabulary adds float32 exponentials in float64 (error about 1e-7).
Rank 1 is the most likely token; equal logits rank by id, the lower first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import SamplingError
from octavo.sampling.filters import top_ids, weights

__all__ = ["Ranked", "fault", "log_sum", "prompt_logprobs", "rank_of", "row_logprobs"]

F32 = NDArray[np.float32]

Ranked = tuple[int, float, int]
"""(token id, log-probability, rank)."""


def log_sum(row: F32) -> float:
    """log(sum(exp(row))) of row f32 [V]."""
    top = row.max()
    return float(top) + math.log(weights(row, top, 1.0).sum(dtype=np.float64))


def rank_of(row: F32, token: int) -> int:
    """1 + the number of tokens ahead of `token` in row f32 [V]."""
    logit = row[token]
    return 1 + int(np.count_nonzero(row > logit)) + int(np.count_nonzero(row[:token] == logit))


def row_logprobs(row: F32, token: int, top_n: int) -> tuple[Ranked, list[Ranked]]:
    """(the token's entry, the entries of the top_n most likely tokens, best first) under softmax(row f32 [V])."""
    total = log_sum(row)
    best = top_ids(row, top_n)
    top = [(int(t), float(row[t]) - total, rank) for rank, t in enumerate(best.tolist(), start=1)]
    return (token, float(row[token]) - total, rank_of(row, token)), top


def prompt_logprobs(logits: F32, targets: Sequence[int], top_n: int) -> list[list[Ranked]]:
    """For each row of logits f32 [R, V]: the entry of targets[r] first, then those of the top_n most likely tokens.

    Row r holds the logits from which the prompt's token targets[r] would have been sampled. The target appears a second
    time where it is among the top_n, so a dict keyed by id keeps the order.

    Raises:
        SamplingError: a row holds NaN or +inf, or nothing but -inf.
    """
    if len(logits) != len(targets):
        raise ValueError(f"{len(logits)} rows of logits for {len(targets)} targets")
    result = []
    for number, (row, target) in enumerate(zip(logits, targets, strict=True)):
        if not np.isfinite(row.max()):
            raise SamplingError({number: fault(row)})
        own, top = row_logprobs(row, target, top_n)
        result.append([own, *top])
    return result


def fault(row: F32) -> str:
    """What is wrong with row f32 [V], of which the largest value is not finite."""
    bad = np.flatnonzero(np.isnan(row))
    if len(bad):
        return f"the model's logits hold NaN ({len(bad)} of {len(row)}, the first for token id {bad[0]})"
    bad = np.flatnonzero(row == np.inf)
    if len(bad):
        return f"the model's logits hold +infinity ({len(bad)} of {len(row)}, the first for token id {bad[0]})"
    return f"no token is left: all {len(row)} logits are -infinity"
