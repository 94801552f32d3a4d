"""Steps that change logits before temperature, each on one row in place.

They run in this order: `add_bias`, `mask_tokens` (stop ids before min_tokens), `apply_penalties`. Each computes in
float64 and rounds once to float32, and touches only the ids it is about.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.sampling.state import SamplerState

__all__ = ["add_bias", "apply_penalties", "mask_tokens", "process"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def add_bias(row: F32, ids: I64, bias: F64) -> None:
    """row f32 [V]; ids i64 [n] distinct; bias f64 [n] is added to their logits."""
    row[ids] = row[ids] + bias


def mask_tokens(row: F32, ids: I64) -> None:
    """row f32 [V]; the logits of ids i64 [n] become -inf: they cannot be sampled."""
    row[ids] = -np.inf


def apply_penalties(row: F32, ids: I64, counts: I64, repetition: float, presence: float, frequency: float) -> None:
    """The three penalties on the distinct tokens seen so far.

    row f32 [V]; ids i64 [n] distinct; counts i64 [n], times generated (0: in the prompt alone).
    repetition (Keskar et al., "CTRL", 2019; prompt and output): divides positive logits, multiplies the others.
    presence and frequency (as in OpenAI's API; output only): logit - presence * (count > 0) - frequency * count.
    """
    logits = row[ids].astype(np.float64)
    logits = np.where(logits > 0, logits / repetition, logits * repetition)
    logits -= presence * (counts > 0) + frequency * counts
    with np.errstate(over="ignore"):  # past float32's range is -inf or +inf; the sampler refuses the latter
        row[ids] = logits


def process(row: F32, state: SamplerState) -> F32:
    """The row f32 [V] after bias, min_tokens mask and penalties: a changed copy, or `row` itself if none applies."""
    if not state.has_processors:
        return row
    row = row.copy()
    if len(state.bias_ids):
        add_bias(row, state.bias_ids, state.bias)
    if state.masks_stop_ids:
        mask_tokens(row, state.stop_array)
    if state.counts is not None:
        params = state.params
        apply_penalties(
            row,
            state.counts.ids,
            state.counts.counts,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
    return row
