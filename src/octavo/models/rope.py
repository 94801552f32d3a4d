"""Rotary tables: every scaling becomes data here, so that the ops know none of them.

Angles, cos and sin are f64 until they are stored: at position 100 000 an f32 angle is off by 0.004.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo.models.config import RopeConfig
from octavo.ops.api import RopeTable

__all__ = ["inverse_frequencies", "make_rope_table"]

F64 = NDArray[np.float64]

_STEP = 256  # positions turned at once: few enough to stay in a core's cache, many enough that Python does not count


def make_rope_table(rope: RopeConfig, max_positions: int, factors: NDArray[np.float32] | None = None) -> RopeTable:
    """cos and sin f32 [max_positions, dimensions / 2].

    factors: f32 [dimensions / 2], each divides a frequency (Llama 3's rope_freqs.weight, LongRoPE's tensors).
    """
    frequencies, attention = inverse_frequencies(rope, factors)
    cos, sin = (np.empty((max_positions, len(frequencies)), np.float32) for _ in range(2))
    # cos and sin of f64 take 20 ns, 80 ms for 32k positions of 128 dimensions. So they are taken for the first block,
    # which is turned to where each later one starts; that is off by 1e-16, far below the rounding to f32.
    angles = np.arange(_STEP, dtype=np.float64)[:, None] * frequencies
    first_cos, first_sin = np.cos(angles) * attention, np.sin(angles) * attention
    for start in range(0, max_positions, _STEP):
        rows = min(_STEP, max_positions - start)
        turn = start * frequencies
        turn_cos, turn_sin = np.cos(turn), np.sin(turn)
        cos[start : start + rows] = first_cos[:rows] * turn_cos - first_sin[:rows] * turn_sin
        sin[start : start + rows] = first_sin[:rows] * turn_cos + first_cos[:rows] * turn_sin
    return RopeTable(cos, sin, rope.interleaved)


def inverse_frequencies(rope: RopeConfig, factors: NDArray[np.float32] | None = None) -> tuple[F64, float]:
    """Radians per token, f64 [dimensions / 2], and the factor on cos and sin."""
    frequencies = rope.theta ** (-np.arange(0, rope.dimensions, 2, dtype=np.float64) / rope.dimensions)
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    if rope.scaling == "linear":
        return frequencies / rope.factor, rope.attention_factor
    if rope.scaling == "yarn":
        return _yarn(rope, frequencies)
    return frequencies, rope.attention_factor


def _yarn(rope: RopeConfig, frequencies: F64) -> tuple[F64, float]:
    """YaRN (Peng et al., arXiv:2309.00071): fast dimensions stay, slow ones stretch by `factor`, a ramp in between.

    Bounds are rounded outwards to whole dimensions, as the authors' code and GGUF files mean it. The temperature
    0.1 ln(factor) + 1 goes on cos and sin, so it acts twice on q.k.
    """
    low = max(math.floor(_dimension_of(rope, rope.beta_fast)), 0)
    high = min(math.ceil(_dimension_of(rope, rope.beta_slow)), rope.dimensions - 1)
    ramp = (np.arange(rope.dimensions // 2) - low) / max(0.001, high - low)
    keep = (1 - np.clip(ramp, 0.0, 1.0)) * rope.ext_factor
    blended = frequencies / rope.factor * (1 - keep) + frequencies * keep
    temperature = 0.1 * math.log(rope.factor) + 1 if rope.ext_factor else 1.0
    return blended, rope.attention_factor * temperature


def _dimension_of(rope: RopeConfig, turns: float) -> float:
    """The (fractional) frequency index that makes this many turns over the original context."""
    return rope.dimensions * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
