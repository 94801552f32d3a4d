"""Plain definitions that the sampling tests hold the real ones against: full sorts, loops, whole distributions."""

from __future__ import annotations

import math

import numpy as np

from octavo.core.params import SamplingParams


def chi_square_z(observed: np.ndarray, expected: np.ndarray) -> float:
    """The chi-square statistic as a normal deviate (Wilson and Hilferty); cells that expect less than 5 are pooled."""
    observed, expected = np.asarray(observed, float).ravel(), np.asarray(expected, float).ravel()
    assert math.isclose(observed.sum(), expected.sum(), rel_tol=1e-9)
    small = expected < 5
    if small.any():
        observed = np.append(observed[~small], observed[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
        if expected[-1] < 5:
            assert expected[-1] > 0 or observed[-1] == 0, "something happened that cannot"
            observed[-2] += observed[-1]
            expected[-2] += expected[-1]
            observed, expected = observed[:-1], expected[:-1]
    freedom = len(observed) - 1
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def ranking(logits: np.ndarray) -> list[int]:
    """Token ids, best first; equal logits by id."""
    return sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    scaled = np.asarray(logits, np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    return p / p.sum()


def kept_top_k(logits: np.ndarray, k: int) -> set[int]:
    return set(ranking(logits)[: k if k > 0 else len(logits)])


def kept_top_p(logits: np.ndarray, top_p: float, temperature: float) -> tuple[set[int], float]:
    """(the fewest best tokens that hold top_p of the mass, how near the decision was)."""
    p = softmax(logits, temperature)
    kept: list[int] = []
    mass, margin = 0.0, math.inf
    for token in ranking(logits):
        if mass >= top_p:
            break
        kept.append(token)
        mass += p[token]
        margin = min(margin, abs(mass - top_p))
    return set(kept), margin


def kept_min_p(logits: np.ndarray, min_p: float, temperature: float) -> tuple[set[int], float]:
    p = softmax(logits, temperature)
    ratio = p / p.max()
    return {t for t in range(len(p)) if ratio[t] >= min_p}, float(np.abs(ratio / max(min_p, 1e-300) - 1).min())


def kept(logits: np.ndarray, params: SamplingParams) -> tuple[set[int], float]:
    """Tokens left by top-k, then top-p, then min-p; and how near the nearest decision was."""
    left = kept_top_k(logits, params.top_k)
    masked = np.array([v if t in left else -math.inf for t, v in enumerate(logits)])
    margin = math.inf
    if params.top_p < 1:
        left, margin = kept_top_p(masked, params.top_p, params.temperature)
    if params.min_p > 0:
        likely, near = kept_min_p(logits, params.min_p, params.temperature)
        left, margin = left & likely, min(margin, near)
    return left, margin


def filtered_distribution(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The exact distribution that a sampled token follows under temperature and filters."""
    left, _ = kept(logits, params)
    p = softmax(logits, params.temperature)
    p = np.where([t in left for t in range(len(p))], p, 0.0)
    return p / p.sum()


def penalized(logits: np.ndarray, prompt: list[int], output: list[int], params: SamplingParams) -> np.ndarray:
    """logit_bias, then repetition, presence and frequency penalties, one token at a time."""
    result = []
    for token, logit in enumerate(np.asarray(logits, np.float64)):
        value = np.float32(logit + params.logit_bias[token]) if token in params.logit_bias else np.float32(logit)
        value = float(value)
        if token in prompt or token in output:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        if token in output:
            value -= params.presence_penalty + params.frequency_penalty * output.count(token)
        result.append(np.float32(value))
    return np.array(result, np.float32)
