"""The cost model: it finds the law that made its samples, and what it says of chunks follows from that."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.engine.cost import CostModel, chunk_pairs

BASE, TOKEN, PAIR = 6e-3, 3e-4, 2e-8


def law(tokens: float, pairs: float) -> float:
    return BASE + tokens * TOKEN + pairs * PAIR


def learnt(noise: float = 0.0, spikes: int = 0) -> CostModel:
    rng, model = np.random.default_rng(3), CostModel()
    for step in range(60):
        chunk = int(rng.integers(1, 400)) if step % 2 else 0
        context = float(rng.integers(0, 4000))
        pairs = chunk_pairs(chunk, context) + 8 * 500
        seconds = law(chunk + 8, pairs) * float(rng.normal(1, noise))
        if step >= 60 - 2 * spikes and step % 2:
            seconds *= 6
        model.observe(chunk + 8, pairs, seconds, prompt_tokens=chunk > 0)
    return model


def test_finds_the_law() -> None:
    model = learnt()
    for tokens, pairs in [(8, 4000), (100, 1e5), (500, 2e6)]:
        assert model.step_s(tokens, pairs) == pytest.approx(law(tokens, pairs), rel=1e-3)
    assert model.prefill_s(100) == pytest.approx(100 * TOKEN + chunk_pairs(100, 0) * PAIR, rel=1e-3)
    assert model.pair_growth(32) == pytest.approx(32 * PAIR / (TOKEN + 16 * PAIR), rel=1e-2)


def test_noise_and_a_few_held_up_steps_do_not_move_it_far() -> None:
    model = learnt(noise=0.05, spikes=3)
    assert model.step_s(200, 4e5) == pytest.approx(law(200, 4e5), rel=0.15)


@pytest.mark.parametrize("budget", [0.0, 1e-3, 0.02, 0.05, 10.0])
@pytest.mark.parametrize("context", [0, 3000])
def test_tokens_within_is_the_most_that_fit(budget: float, context: int) -> None:
    model = learnt()
    n = model.tokens_within(budget, tokens=8, pairs=4000, context=context, most=500)
    assert 0 <= n <= 500

    def seconds(count: int) -> float:
        return model.step_s(8 + count, 4000 + chunk_pairs(count, context))

    assert n == 0 or seconds(n) <= budget
    assert n == 500 or seconds(n + 1) > budget


def test_says_nothing_before_it_has_seen_a_step() -> None:
    model = CostModel()
    assert not model.known
    assert model.step_s(100, 100) == 0
    assert model.prefill_s(100) == 0
    assert model.pair_growth(16) == 0
    assert model.tokens_within(0.05, tokens=1, pairs=1, context=0, most=64) == 64


def test_is_never_negative() -> None:
    model = CostModel()
    for tokens, seconds in [(10, 0.01), (100, 0.01), (400, 0.009)]:  # larger steps were faster: noise, not a law
        model.observe(tokens, tokens, seconds, prompt_tokens=True)
    assert model.prefill_s(1000) >= 0
    assert model.step_s(0, 0) >= 0
