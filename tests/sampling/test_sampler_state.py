"""What a completion remembers: counts, positions, forks, and ids checked at the door."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.errors import InvalidParameterError
from octavo.core.params import SamplingParams
from octavo.sampling.state import SamplerState, TokenCounts

NONE: frozenset[int] = frozenset()
TOKENS = st.lists(st.integers(0, 60), max_size=150)


@given(TOKENS, TOKENS)
def test_counts(prompt: list[int], output: list[int]) -> None:
    counts = TokenCounts(prompt)
    for token in output:
        counts.add(token)
    expected = dict.fromkeys(prompt, 0) | Counter(output)
    assert dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)) == expected


def test_counts_are_kept_only_for_penalties() -> None:
    assert SamplerState(SamplingParams(), [1], 10, NONE, 0).counts is None
    presence = SamplerState(SamplingParams(presence_penalty=0.1), [1], 10, NONE, 0)
    assert presence.counts is not None
    assert len(presence.counts.ids) == 0
    repetition = SamplerState(SamplingParams(repetition_penalty=1.1), [4, 1, 4], 10, NONE, 0)
    assert repetition.counts is not None
    assert repetition.counts.ids.tolist() == [1, 4]


def test_position_counts_generated_tokens() -> None:
    state = SamplerState(SamplingParams(), range(5), 10, NONE, 0)
    assert state.position == 0
    state.append(3)
    state.append(3)
    assert state.position == 2


def test_forks_have_their_own_seed_and_counts() -> None:
    root = SamplerState(SamplingParams(n=4, repetition_penalty=1.5), [2], 10, frozenset({9}), 123)
    root.append(5)
    children = [root.fork(index) for index in range(4)]
    assert children[0].seed == root.seed == 123
    assert len({child.seed for child in children}) == 4
    assert [root.fork(index).seed for index in range(2)] == [child.seed for child in children[:2]]
    children[1].append(6)
    for state in (root, children[0], children[2]):
        assert state.counts is not None
        assert state.counts.ids.tolist() == [2, 5]
        assert state.position == 1
    assert children[1].counts is not None
    assert children[1].counts.ids.tolist() == [2, 5, 6]
    assert children[1].position == 2
    assert children[1].stop_ids == root.stop_ids


def test_seeds_of_any_sign_and_size() -> None:
    assert SamplerState(SamplingParams(), [], 10, NONE, -1).seed == 2**64 - 1
    assert SamplerState(SamplingParams(), [], 10, NONE, 2**64 + 5).seed == 5


@pytest.mark.parametrize(
    ("params", "prompt", "stop", "name"),
    [
        (SamplingParams(logit_bias={10: 1.0}), [], NONE, "logit_bias"),
        (SamplingParams(stop_token_ids=(3, 11)), [], NONE, "stop_token_ids"),
        (SamplingParams(), [], frozenset({-1}), "stop_ids"),
        (SamplingParams(repetition_penalty=2), [1, 10], NONE, "the prompt"),
        (SamplingParams(repetition_penalty=2), [-1, 1], NONE, "the prompt"),
    ],
)
def test_ids_outside_the_vocabulary(params: SamplingParams, prompt: list[int], stop: frozenset[int], name: str) -> None:
    with pytest.raises(InvalidParameterError, match=rf"^{name} holds token id -?\d+; .* 0 to 9$"):
        SamplerState(params, prompt, 10, stop, 0)


def test_prompts_as_arrays() -> None:
    params = SamplingParams(repetition_penalty=1.1)
    state = SamplerState(params, np.array([3, 1], np.int32), 10, NONE, 0)  # type: ignore[arg-type]
    assert state.counts is not None
    assert state.counts.ids.tolist() == [1, 3]


def test_plain_states_need_the_largest_logit_alone() -> None:
    def plain(stop: frozenset[int] = NONE, **params: object) -> bool:
        return SamplerState(SamplingParams(**{"temperature": 0, **params}), [1], 10, stop, 0).plain  # type: ignore[arg-type]

    assert plain()
    assert plain(frozenset({3}), stop_token_ids=(4,))
    assert plain(min_tokens=2)
    assert not plain(frozenset({3}), min_tokens=2)
    for params in ({"temperature": 0.5}, {"logprobs": 0}, {"logit_bias": {1: 1.0}}, {"repetition_penalty": 1.1}):
        assert not plain(**params), params
