"""Bias, masks and penalties against one-token-at-a-time definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.plain_sampling import penalized
from octavo.core.params import SamplingParams
from octavo.sampling.processors import apply_penalties, process
from octavo.sampling.state import SamplerState

V = 12
TOKENS = st.lists(st.integers(0, V - 1), max_size=20)
LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=V, max_size=V)


def state_after(
    params: SamplingParams, prompt: list[int], output: list[int], stop: set[int] | None = None
) -> SamplerState:
    state = SamplerState(params, prompt, V, frozenset(stop or ()), seed=1)
    for token in output:
        state.append(token)
    return state


@given(
    LOGITS,
    TOKENS,
    TOKENS,
    st.floats(0.1, 3),
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.dictionaries(st.integers(0, V - 1), st.floats(-100, 100), max_size=5),
)
def test_bias_and_penalties(
    logits: list[float],
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency, logit_bias=bias
    )
    row = np.array(logits, np.float32)
    before = row.copy()
    found = process(row, state_after(params, prompt, output))
    assert np.array_equal(row, before), "the raw logits are needed for log-probabilities"
    np.testing.assert_allclose(found, penalized(row, prompt, output, params), rtol=2e-7, atol=2e-6)


def test_each_penalty_by_hand() -> None:
    row = np.array([2, -2, 2, -2, 1], np.float32)
    ids, counts = np.array([0, 1, 2]), np.array([0, 0, 3])
    for (repetition, presence, frequency), expected in {
        (2.0, 0.0, 0.0): [1, -4, 1, -2, 1],
        (1.0, 0.5, 0.0): [2, -2, 1.5, -2, 1],
        (1.0, 0.0, 0.5): [2, -2, 0.5, -2, 1],
        (1.0, -1.0, -0.5): [2, -2, 4.5, -2, 1],
        (2.0, 0.5, 0.25): [1, -4, -0.25, -2, 1],
    }.items():
        changed = row.copy()
        apply_penalties(changed, ids, counts, repetition, presence, frequency)
        assert changed.tolist() == expected


def test_presence_and_frequency_ignore_the_prompt() -> None:
    row = np.ones(V, np.float32)
    found = process(row, state_after(SamplingParams(presence_penalty=1, frequency_penalty=1), [3, 3], [4]))
    assert found[3] == 1
    assert found[4] == -1


def test_a_row_without_processors_is_not_copied() -> None:
    row = np.ones(V, np.float32)
    for params in (SamplingParams(), SamplingParams(presence_penalty=1), SamplingParams(min_tokens=5)):
        assert process(row, state_after(params, [1, 2], [])) is row
    assert process(row, state_after(SamplingParams(), [1, 2], [3, 4])) is row


def test_stop_ids_are_masked_until_min_tokens() -> None:
    row = np.ones(V, np.float32)
    params = SamplingParams(min_tokens=2, stop_token_ids=(7,))
    state = state_after(params, [], [], {3})
    for _ in range(2):
        assert np.flatnonzero(np.isneginf(process(row, state))).tolist() == [3, 7]
        state.append(0)
    assert process(row, state) is row


def test_bias_cannot_lift_a_masked_stop_id() -> None:
    state = state_after(SamplingParams(min_tokens=1, logit_bias={3: 100}), [], [], {3})
    assert process(np.zeros(V, np.float32), state)[3] == -np.inf


@pytest.mark.parametrize("bias", [-100, 100])
def test_extreme_bias(bias: float) -> None:
    found = process(np.arange(V, dtype=np.float32), state_after(SamplingParams(logit_bias={5: bias}), [], []))
    assert found[5] == 5 + bias
    assert np.delete(found, 5).tolist() == [t for t in range(V) if t != 5]
