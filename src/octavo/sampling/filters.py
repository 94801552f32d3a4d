"""Which tokens stay in the draw: top-k, then top-p, then min-p, without sorting the vocabulary.

All filters rank tokens by logit, the larger first, and equal logits by id, the lower first. A survivor set is a pair
(ids i64 [n] ascending, scaled f64 [n]) with scaled = (logit - largest logit) / temperature, so the best has 0.

Every filter is exact: it gives the set that a full sort would give. Probability mass for top-p is the sum in float64 of
weights exp((logit - largest) / temperature) computed in float32 (relative error about 1e-6).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.core.params import SamplingParams
from octavo.sampling.noise import block_maxima

__all__ = ["Survivors", "filter_row", "min_p_ids", "nucleus", "scale", "top_ids", "weights"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_SORT_AT_MOST = 2048
_LOWEST = float(np.finfo(np.float32).min)
_FIRST_CUTS = (-4.0, -8.0, -12.0, -16.0, -24.0)


class Survivors(NamedTuple):
    """ids i64 [n] ascending; scaled f64 [n] = (logit - largest logit) / temperature."""

    ids: I64
    scaled: F64


def filter_row(row: F32, maxima: F32, params: SamplingParams) -> Survivors | None:
    """The tokens of row f32 [V] that pass top-k, top-p and min-p; None when no filter is set (all of them pass).

    maxima: `block_maxima(row)`. The row's largest value must be finite; tokens at -inf may or may not be listed.
    top-p works on the distribution that top-k leaves, renormalized; min-p compares with the most likely token.
    """
    top = maxima.max()
    ids: I64 | None = None
    if 0 < params.top_k < len(row):
        ids = np.sort(top_ids(row, params.top_k, maxima))
    if params.top_p < 1.0:
        kept = nucleus(row if ids is None else row[ids], params.top_p, params.temperature)
        ids = kept if ids is None else ids[kept]
    if params.min_p > 0.0:
        ids = min_p_ids(row, ids, top, params)
    return None if ids is None else Survivors(ids, scale(row[ids], top, params.temperature))


def scale(logits: F32, top: np.float32, temperature: float) -> F64:
    """(logits f32 [n] - top) / temperature in f64; -inf where that leaves the range of doubles."""
    with np.errstate(over="ignore"):
        return np.asarray((logits - np.float64(top)) / temperature)


def weights(logits: F32, top: np.float32, temperature: float) -> F32:
    """exp((logits - top) / temperature), f32 [n]: unnormalized probabilities, 1 for the best."""
    with np.errstate(over="ignore", under="ignore"):
        scaled = logits - top
        if temperature != 1.0:
            scaled /= np.float32(max(temperature, 2.0**-126))
        return np.asarray(np.exp(scaled, out=scaled))


def top_ids(row: F32, k: int, maxima: F32 | None = None) -> I64:
    """The ids of the k largest logits of row f32 [V], best first; k >= V gives all.

    The k-th largest of the block maxima is reached by at least k tokens, so only tokens at or above it are ranked.
    """
    k = min(k, len(row))
    if k == 0:
        return np.empty(0, np.int64)
    maxima = block_maxima(row) if maxima is None else maxima
    least = np.partition(maxima, -k)[-k] if k <= len(maxima) // 4 else np.partition(row, -k)[-k]
    candidates = np.flatnonzero(row >= least)
    return np.asarray(candidates[np.argsort(-row[candidates], kind="stable")[:k]])


def nucleus(logits: F32, top_p: float, temperature: float) -> I64:
    """Indices (ascending) of the fewest best tokens of logits f32 [n] whose mass reaches top_p of the total; top_p < 1.

    Holtzman et al., "The curious case of neural text degeneration" (2020). The largest logit must be finite.
    Masses decide how many tokens stay, logits decide which: distinct logits may share a float32 weight.
    A band of logits that must hold the cut is narrowed until it is cheap to sort; those above it are in for certain.
    """
    top = logits.max()
    w = weights(logits, top, temperature)
    target = top_p * float(w.sum(dtype=np.float64))
    sure, mass, band = _first_band(logits, w, float(top), temperature, target)
    parts = [sure]
    while len(band) > _SORT_AT_MOST:
        values = logits[band]
        upper = values >= values.min() / 2 + values.max() / 2
        above = band[upper]
        if len(above) == len(band):
            break  # all equal, or two neighbours
        inside = float(w[above].sum(dtype=np.float64))
        if mass + inside >= target:
            band = above
        else:
            mass, band = mass + inside, band[~upper]
            parts.append(above)
    order = band[np.argsort(-logits[band], kind="stable")]
    reached = mass + np.cumsum(w[order], dtype=np.float64)
    parts.append(order[: int(np.searchsorted(reached, target)) + 1])
    return np.sort(np.concatenate(parts))


def _first_band(logits: F32, w: F32, top: float, temperature: float, target: float) -> tuple[I64, float, I64]:
    """(indices that are in for certain, their mass, the band that holds the cut), by a few fixed thresholds."""
    sure, mass, ceiling = np.empty(0, np.int64), 0.0, np.float32(np.inf)
    for cut in _FIRST_CUTS:
        floor = np.float32(max(top + cut * temperature, _LOWEST))
        above = np.flatnonzero(logits >= floor)
        total = float(w[above].sum(dtype=np.float64))
        if total >= target:
            return sure, mass, above[logits[above] < ceiling]
        sure, mass, ceiling = above, total, floor
    return sure, mass, np.flatnonzero((logits < ceiling) & (logits >= _LOWEST))


def min_p_ids(row: F32, ids: I64 | None, top: np.float32, params: SamplingParams) -> I64:
    """Those of `ids` (None: of all) with probability >= min_p * the largest: scaled logit >= log(min_p)."""
    floor = float(np.log(params.min_p))
    if ids is None:
        lowest = np.float64(top) + floor * params.temperature
        slack = 1e-6 * (abs(float(top)) + abs(lowest) + 1.0)  # float32 rounding of the threshold; decided below
        ids = np.flatnonzero(row >= np.float32(lowest - slack))
    return np.asarray(ids[scale(row[ids], top, params.temperature) >= floor])
