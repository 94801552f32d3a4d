"""What a step costs, learnt from the steps themselves: how long a chunk may be, what computing again would take.

    seconds = base + tokens * per_token + pairs * per_pair

tokens: new tokens of the step; pairs: (query, key) pairs of its attention, for a chunk of n tokens after c about
n * (c + n / 2). A decode step is mostly `base`: the weights are read once whatever is computed. Nothing here can change
a result: rows are computed alike in every chunk.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

__all__ = ["CostModel", "chunk_pairs"]

F64 = NDArray[np.float64]
# Steps with prompt tokens are rarer than decode steps and say more, so each kind has a ring of its own.
_CHUNK_STEPS = 48
_DECODE_STEPS = 16
# Weight of a step among the samples falls by this with each newer one of its kind: other tenants come and go.
_FADE = 0.96


def chunk_pairs(tokens: float, context: float) -> float:
    """(query, key) pairs of `tokens` new tokens after `context` others."""
    return tokens * (context + (tokens + 1) / 2)


class CostModel:
    """Least squares of relative errors over the latest steps, never negative. Fitted when asked, not at every step."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[float, float, float]] = deque(maxlen=_CHUNK_STEPS)  # tokens, pairs, seconds
        self._decodes: deque[tuple[float, float, float]] = deque(maxlen=_DECODE_STEPS)
        self._fit: F64 | None = None

    def observe(self, tokens: int, pairs: float, seconds: float, *, prompt_tokens: bool) -> None:
        """A step has taken so long. prompt_tokens: it held a chunk of a prompt, not decodes alone."""
        (self._chunks if prompt_tokens else self._decodes).append((tokens, pairs, seconds))
        self._fit = None

    @property
    def known(self) -> bool:
        """Whether there is a measured chunk to reason from."""
        return bool(self._chunks)

    def step_s(self, tokens: float, pairs: float) -> float:
        """Predicted seconds; 0 when nothing has been measured."""
        base, per_token, per_pair = self._coefficients()
        return float(base + tokens * per_token + pairs * per_pair)

    def prefill_s(self, tokens: float, context: float = 0) -> float:
        """What computing these tokens adds to steps that run anyway."""
        _, per_token, per_pair = self._coefficients()
        return float(tokens * per_token + chunk_pairs(tokens, context) * per_pair)

    def tokens_within(self, budget_s: float, *, tokens: int, pairs: float, context: float, most: int) -> int:
        """How many prompt tokens after `context` fit into a step of `budget_s` that already holds tokens and pairs.

        Between 0 and `most`.
        """
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.step_s(tokens + middle, pairs + chunk_pairs(middle, context)) <= budget_s:
                low = middle
            else:
                high = middle - 1
        return low

    def pair_growth(self, page_size: int) -> float:
        """How much more a page of tokens costs for each page of context before it, relative to the first page."""
        _, per_token, per_pair = self._coefficients()
        return 0.0 if per_token <= 0 else float(per_pair * page_size / (per_token + per_pair * page_size / 2))

    def _coefficients(self) -> F64:
        if self._fit is None:
            self._fit = _fit([*_weighted(self._chunks), *_weighted(self._decodes)])
        return self._fit


def _weighted(steps: deque[tuple[float, float, float]]) -> list[tuple[float, float, float, float]]:
    return [(*step, _FADE**age) for age, step in enumerate(reversed(steps))]


def _fit(samples: list[tuple[float, float, float, float]]) -> F64:
    """base, per_token, per_pair from (tokens, pairs, seconds, weight)."""
    if not samples:
        return np.zeros(3)
    table = np.array(samples)
    tokens, pairs, seconds, weight = table.T
    columns = np.stack([np.ones_like(tokens), tokens, pairs], axis=1) / seconds[:, None]
    first = _nonnegative(columns, weight)
    # One step that another tenant held up must not shorten the next chunks: misfits count by their size's inverse.
    misfit = np.abs(columns @ first - 1)
    return _nonnegative(columns, weight / (1 + (misfit / 0.1) ** 2))


def _nonnegative(columns: F64, weight: F64) -> F64:
    """The least-squares x >= 0 with columns @ x near 1; a coefficient that would be negative is left out."""
    result, kept = np.zeros(columns.shape[1]), list(range(columns.shape[1]))
    root = np.sqrt(weight)
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    while kept:
        part = columns[:, kept] / scale[kept] * root[:, None]
        solved = np.linalg.lstsq(part, root, rcond=1e-9)[0]
        if (solved >= 0).all():
            result[kept] = solved / scale[kept]
            break
        kept = [k for k, value in zip(kept, solved, strict=True) if value > 0]
    return result
