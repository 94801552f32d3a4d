"""Real models against golden answers: transformers in float32 on the weights dequantized from the same files.

Besides the prompts' per-token negative log likelihoods, the golden greedy continuation is fed in one piece and the
argmax is checked at each of its positions: the same as generating it, wherever the generated tokens agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.batches import prefill
from octavo.core.errors import ConfigError
from octavo.formats.gguf import GGUFFile
from octavo.models.decoder import Model
from octavo.models.loader import load_model
from octavo.ops import make_ops

GOLDEN = Path(__file__).parents[1] / "golden"
MARGIN = 0.3
"""Nats between the two best golden tokens above which every backend must choose the same one."""


@dataclass(frozen=True)
class Tolerance:
    """Largest allowed differences in nats: mean |delta nll| past the first position, and |delta nll| at it."""

    mean: float
    first: float = 0.3


# The native tolerances are what 8-bit activations cost llama.cpp on the same prompts.
TOLERANCES: dict[str, dict[str, Tolerance]] = {
    "reference": dict.fromkeys(
        ("smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"), Tolerance(0.002)
    ),
    "native": {
        "smollm2-135m": Tolerance(0.058),
        "gemma3-270m": Tolerance(0.069),
        "qwen2.5-coder-0.5b": Tolerance(0.024),
        "qwen2.5-coder-1.5b": Tolerance(0.033),
    },
}
FAST = {("reference", "smollm2-135m"), ("native", "smollm2-135m"), ("native", "gemma3-270m")}
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]
CASES = [
    pytest.param(backend, model, id=f"{backend}-{model}", marks=[] if (backend, model) in FAST else SLOW)
    for backend, models in TOLERANCES.items()
    for model in models
]


@dataclass(frozen=True)
class Answer:
    """One golden prompt as this backend sees it.

    deltas: nll - golden nll per prompt token after the first, f64 [n - 1].
    top10: |delta log probability| of the ten best golden tokens after the prompt. missed: greedy tokens that differ
    though the golden margin is above MARGIN. judged: greedy tokens with such a margin.
    """

    prompt: str
    deltas: np.ndarray
    top10: np.ndarray
    missed: list[int]
    judged: int


def judge(model: Model, case: dict[str, Any]) -> Answer:
    """Run prompt and golden continuation in one piece and compare."""
    ids, greedy = case["ids"], case["greedy32"]
    logits = prefill(model, [*ids, *greedy[:-1]]).astype(np.float64)
    logprobs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    prompt = np.arange(len(ids) - 1)
    last = logprobs[len(ids) - 1]
    chosen = logits[len(ids) - 1 :].argmax(axis=1)
    sure = [i for i, margin in enumerate(case["greedy_margin"]) if margin > MARGIN]
    return Answer(
        prompt=case["prompt"],
        deltas=-logprobs[prompt, ids[1:]] - np.asarray(case["nll_per_token"]),
        top10=np.abs([last[token] - golden for token, golden in case["last_top10"]]),
        missed=[i for i in sure if chosen[i] != greedy[i]],
        judged=len(sure),
    )


@lru_cache(maxsize=1)
def answers(backend: str, name: str, path: Path) -> list[Answer]:
    """All prompts of a model; kept for the tests of the same model, and no longer (a model can take 6 GB)."""
    with GGUFFile.open(path) as file:
        model = load_model(file, make_ops(backend), max_positions=256)
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    return [judge(model, case) for case in golden["cases"]]


@pytest.fixture
def judged(backend: str, name: str, real_model: Callable[[str], Path]) -> list[Answer]:
    try:
        make_ops(backend)
    except ConfigError as error:
        pytest.skip(str(error))
    return answers(backend, name, real_model(json.loads((GOLDEN / f"{name}.json").read_text())["file"]))


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_likelihoods(backend: str, name: str, judged: list[Answer]) -> None:
    tolerance = TOLERANCES[backend][name]
    first = max(abs(a.deltas[0]) for a in judged)
    mean = np.abs(np.concatenate([a.deltas[1:] for a in judged])).mean()
    top10 = np.concatenate([a.top10 for a in judged]).mean()
    print(f"\n{backend} {name}: mean |delta nll| {mean:.6f}, first position {first:.6f}, top-10 {top10:.6f}")
    assert mean <= tolerance.mean
    assert first <= tolerance.first


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_top_ten(backend: str, name: str, judged: list[Answer]) -> None:
    # Tokens after the first few of the ten are unlikely, so quantized activations move them more than the answer.
    assert np.concatenate([a.top10 for a in judged]).mean() <= 4 * TOLERANCES[backend][name].mean


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_greedy_continuation(backend: str, name: str, judged: list[Answer]) -> None:
    assert sum(a.judged for a in judged) > 20
    assert {a.prompt: a.missed for a in judged if a.missed} == {}
