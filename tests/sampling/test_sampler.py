"""The whole stack: order of the steps, neighbours, seeds, errors, log-probabilities, and sampled frequencies."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plain_sampling import chi_square_z, filtered_distribution, penalized, ranking, softmax
from octavo.core.errors import OctavoError, SamplingError
from octavo.core.params import SamplingParams
from octavo.sampling import Sampled, SamplerState, prompt_logprobs, sample

STOP = frozenset({0})


def state(vocab_size: int, seed: int = 0, prompt: tuple[int, ...] = (), **fields: Any) -> SamplerState:
    return SamplerState(SamplingParams(**fields), prompt, vocab_size, STOP, seed)


def block(rows: int, vocab_size: int, seed: int = 0) -> np.ndarray:
    return (3 * np.random.default_rng(seed).normal(size=(rows, vocab_size))).astype(np.float32)


MIXED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_k": 50},
    {"top_p": 0.95, "logprobs": 5},
    {"min_p": 0.05, "temperature": 1.5},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 0},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5, "top_p": 0.8, "top_k": 200, "min_p": 0.01},
    {"logit_bias": {3: 100.0}, "logprobs": 2},
    {"min_tokens": 100, "top_p": 0.999, "temperature": 3.0},
]


@pytest.mark.parametrize("vocab_size", [151, 5000, 151_936])
def test_a_row_does_not_depend_on_its_neighbours(vocab_size: int) -> None:
    """Alone, in the batch, in the batch backwards and in any part of it: the same tokens and the same bits."""
    logits = block(len(MIXED), vocab_size)
    states = [state(vocab_size, seed, (1, 2, 3), **fields) for seed, fields in enumerate(MIXED)]
    for one in states:
        one.append(7)
    together = sample(logits, states)
    alone = [sample(logits[i : i + 1].copy(), [states[i]])[0] for i in range(len(states))]
    backwards = sample(logits[::-1].copy(), states[::-1])[::-1]
    odd = sample(logits[1::2], states[1::2])
    assert together == alone == backwards
    assert odd == together[1::2]


def test_batches_that_hold_one_row_many_times() -> None:
    logits = np.repeat(block(1, 5000), 16, axis=0)
    assert len({s.token for s in sample(logits, [state(5000, 4, top_p=0.9)] * 16)}) == 1


@given(st.integers(0, 2**64 - 1), st.integers(0, 50))
@settings(max_examples=30)
def test_a_seed_and_a_position_fix_the_token(seed: int, position: int) -> None:
    logits = block(1, 500, 3)
    first, second = state(500, seed), state(500, seed, prompt=(1, 2))
    for token in range(position):
        first.append(token)
        second.append(499 - token)
    assert sample(logits, [first]) == sample(logits, [second])


def test_seeds_positions_and_forks_give_different_tokens() -> None:
    vocab_size = 50_000
    logits = np.zeros((1, vocab_size), np.float32)
    one = state(vocab_size, 8, n=100)
    by_fork = [sample(logits, [one.fork(index)])[0].token for index in range(100)]
    by_seed = [sample(logits, [state(vocab_size, seed)])[0].token for seed in range(100)]
    by_position = []
    for _ in range(100):
        by_position.append(sample(logits, [one])[0].token)
        one.append(by_position[-1])
    for tokens in (by_fork, by_seed, by_position):
        assert len(set(tokens)) > 95
    assert by_fork[0] == by_position[0]


def test_sampling_changes_neither_logits_nor_states() -> None:
    logits = block(len(MIXED), 300)
    logits.flags.writeable = False
    states = [state(300, seed, (1, 2), **fields) for seed, fields in enumerate(MIXED)]
    assert sample(logits, states) == sample(logits, states)


# --- greedy


@given(st.lists(st.lists(st.integers(-3, 3), min_size=9, max_size=9), min_size=1, max_size=6))
def test_greedy_takes_the_best_and_the_lowest_id_of_equals(rows: list[list[int]]) -> None:
    logits = np.array(rows, np.float32)
    expected = [ranking(row)[0] for row in logits]
    assert [s.token for s in sample(logits, [state(9, temperature=0.0)] * len(rows))] == expected
    mixed = [state(9, temperature=0.0, logit_bias={8: 0.0})] * len(rows)
    assert [s.token for s in sample(logits, mixed)] == expected


def test_greedy_after_bias_and_penalties() -> None:
    logits = np.array([[0, 3.0, 2.9, 1, -5]], np.float32)
    assert sample(logits, [state(5, temperature=0.0)])[0].token == 1
    assert sample(logits, [state(5, temperature=0.0, logit_bias={1: -100})])[0].token == 2
    assert sample(logits, [state(5, temperature=0.0, logit_bias={4: 100})])[0].token == 4
    assert sample(logits, [state(5, prompt=(1,), temperature=0.0, repetition_penalty=1.2)])[0].token == 2
    seen = state(5, temperature=0.0, presence_penalty=0.2)
    assert sample(logits, [seen])[0].token == 1
    seen.append(1)
    assert sample(logits, [seen])[0].token == 2


def test_greedy_never_allocates_the_distribution() -> None:
    logits = block(16, 151_936)
    states = [state(151_936, temperature=0.0)] * 16
    sample(logits, states)
    tracemalloc.start()
    sample(logits, states)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 64 * 1024  # one row would be 600 kB


# --- frequencies


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 2.5},
    {"top_k": 5},
    {"top_k": 1},
    {"top_k": 100},
    {"top_p": 0.6},
    {"top_p": 1e-6},
    {"min_p": 0.2},
    {"temperature": 1.4, "top_k": 8, "top_p": 0.9, "min_p": 0.1},
]


@pytest.mark.parametrize(
    ("fields", "axis"),
    [*((fields, "seed") for fields in FILTERS), ({}, "position"), (FILTERS[-1], "position")],
    ids=str,
)
def test_frequencies_follow_the_filtered_distribution(fields: dict[str, Any], axis: str) -> None:
    count, vocab_size = 4000, 12
    row = (1.2 * np.random.default_rng(21).normal(size=vocab_size)).astype(np.float32)
    states = [state(vocab_size, number if axis == "seed" else 77, **fields) for number in range(count)]
    if axis == "position":
        for number, one in enumerate(states):
            one.position = number
    tokens = [s.token for s in sample(np.tile(row, (count, 1)), states)]
    observed = np.bincount(tokens, minlength=vocab_size)
    expected = filtered_distribution(row, SamplingParams(**fields))
    assert observed[expected == 0].sum() == 0
    if (expected > 0).sum() > 1:
        assert abs(chi_square_z(observed[expected > 0], count * expected[expected > 0])) < 4


def test_frequencies_under_bias_and_penalties() -> None:
    count, vocab_size, prompt, output = 4000, 8, [1, 2], [2, 3, 3]
    fields = {
        "logit_bias": {5: 1.5, 6: -100},
        "repetition_penalty": 1.4,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
    }
    row = np.array([0.5, 1, -1, 2, 0, -0.5, 3, 0.2], np.float32)
    states = []
    for seed in range(count):
        states.append(state(vocab_size, seed, tuple(prompt), **fields))
        for token in output:
            states[-1].append(token)
    observed = np.bincount([s.token for s in sample(np.tile(row, (count, 1)), states)], minlength=vocab_size)
    expected = softmax(penalized(row, prompt, output, SamplingParams(**fields)))
    assert observed[6] == 0
    assert abs(chi_square_z(observed, count * expected)) < 4


def test_frequencies_over_many_blocks() -> None:
    """A vocabulary that the search by blocks handles, in 40 groups of equal expected weight."""
    count, vocab_size = 2000, 40_000
    row = np.random.default_rng(2).normal(size=vocab_size).astype(np.float32)
    p = softmax(row)
    group = np.minimum((np.cumsum(p[np.random.default_rng(3).permutation(vocab_size)]) * 40).astype(int), 39)
    groups = np.empty(vocab_size, int)
    groups[np.random.default_rng(3).permutation(vocab_size)] = group
    states = [state(vocab_size, seed) for seed in range(count)]
    tokens: list[int] = []
    for start in range(0, count, 100):
        part = states[start : start + 100]
        tokens += [s.token for s in sample(np.broadcast_to(row, (len(part), vocab_size)), part)]
    expected = np.bincount(groups, weights=p, minlength=40) * count
    assert abs(chi_square_z(np.bincount(groups[tokens], minlength=40), expected)) < 4


def test_consecutive_tokens_are_independent() -> None:
    one, logits = state(4, 5), np.zeros((1, 4), np.float32)
    tokens = []
    for _ in range(1000):
        tokens.append(sample(logits, [one])[0].token)
        one.append(tokens[-1])
    pairs = np.bincount(np.array(tokens[:-1]) * 4 + np.array(tokens[1:]), minlength=16)
    assert abs(chi_square_z(pairs, np.full(16, len(tokens[:-1]) / 16))) < 4


# --- min_tokens and errors


def test_no_stop_before_min_tokens() -> None:
    logits = np.array([[50, 1, 49, 0]], np.float32)
    for temperature in (0.0, 1.0):
        one = state(4, temperature=temperature, min_tokens=2, stop_token_ids=(2,))
        tokens = []
        for _ in range(3):
            tokens.append(sample(logits, [one])[0].token)
            one.append(tokens[-1])
        assert not {0, 2} & set(tokens[:2])
        assert tokens[2] in (0, 2)


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {}, {"top_p": 0.9, "repetition_penalty": 1.1}])
@pytest.mark.parametrize(
    ("bad", "reason"), [(np.nan, "NaN .1 of 30, the first for token id 4"), (np.inf, r"\+infinity")]
)
def test_broken_logits_are_named(fields: dict[str, Any], bad: float, reason: str) -> None:
    logits = block(3, 30)
    logits[1, 4] = bad
    states = [state(30, prompt=(4,), **fields) for _ in range(3)]
    with pytest.raises(SamplingError, match=f"^row 1: the model's logits hold {reason}") as caught:
        sample(logits, states)
    assert isinstance(caught.value, OctavoError)
    assert list(caught.value.rows) == [1]
    assert "generated token 1" in str(caught.value)
    good = sample(logits[[0, 2]], [states[0], states[2]])
    logits[1] = 0
    whole = sample(logits, states)
    assert good == [whole[0], whole[2]]


def test_nan_behind_a_mask_is_still_an_error() -> None:
    logits = np.array([[np.nan, 1, 2]], np.float32)
    with pytest.raises(SamplingError, match="NaN"):
        sample(logits, [state(3, min_tokens=1)])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left(temperature: float) -> None:
    logits = np.array([[1, -np.inf, -np.inf]], np.float32)
    with pytest.raises(SamplingError, match=r"^row 0: no token is left at generated token 1: min_tokens 3 forbids"):
        sample(logits, [state(3, temperature=temperature, min_tokens=3)])
    with pytest.raises(SamplingError, match="all 3 logits are -infinity"):
        sample(np.full((1, 3), -np.inf, np.float32), [state(3, temperature=temperature)])


def test_penalty_past_the_range_of_float32() -> None:
    with pytest.raises(SamplingError, match="repetition_penalty 1e-39 takes logits past"):
        sample(np.full((1, 3), 9.0, np.float32), [state(3, prompt=(1,), repetition_penalty=1e-39)])


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 5\) for 1 states"):
        sample(np.zeros((2, 5), np.float32), [state(5)])
    with pytest.raises(ValueError, match="shape"):
        sample(np.zeros(5, np.float32), [state(5)])
    with pytest.raises(ValueError, match="vocabulary of 6"):
        sample(np.zeros((1, 5), np.float32), [state(6)])
    assert sample(np.zeros((0, 5), np.float32), []) == []


# --- log-probabilities


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    logits = block(1, 40)
    raw = np.log(softmax(logits[0]))
    order = ranking(logits[0])
    for seed in range(20):
        one = state(40, seed, temperature=3.0, top_k=10, logit_bias={order[5]: 9.0}, logprobs=4)
        found = sample(logits, [one])[0]
        assert found.logprob == pytest.approx(raw[found.token], abs=1e-6)
        assert found.rank == order.index(found.token) + 1
        assert [(t, r) for t, _, r in found.top] == [(order[i], i + 1) for i in range(4)]
        assert [p for _, p, _ in found.top] == pytest.approx(raw[order[:4]].tolist(), abs=1e-6)


def test_logprobs_only_when_asked() -> None:
    found = sample(block(2, 40), [state(40), state(40, logprobs=0)])
    assert found[0] == Sampled(found[0].token)
    assert dataclasses.astuple(found[0])[1:] == (None, None, [])
    assert found[1].logprob is not None
    assert found[1].rank is not None
    assert found[1].top == []


def test_asking_for_logprobs_does_not_change_the_token() -> None:
    logits = block(8, 900)
    plain = sample(logits, [state(900, seed) for seed in range(8)])
    asked = sample(logits, [state(900, seed, logprobs=20) for seed in range(8)])
    assert [s.token for s in plain] == [s.token for s in asked]


@given(st.lists(st.lists(st.integers(-4, 4), min_size=6, max_size=6), min_size=1, max_size=5), st.integers(0, 8))
def test_prompt_logprobs(rows: list[list[int]], top_n: int) -> None:
    logits = np.array(rows, np.float32)
    targets = [sum(row) % 6 for row in rows]
    for row, target, found in zip(logits, targets, prompt_logprobs(logits, targets, top_n), strict=True):
        order, raw = ranking(row), np.log(softmax(row))
        assert [t for t, _, _ in found] == [target, *order[:top_n]]
        assert [r for _, _, r in found] == [order.index(target) + 1, *range(1, min(top_n, 6) + 1)]
        assert [p for _, p, _ in found] == pytest.approx([raw[t] for t, _, _ in found], abs=1e-6)


def test_prompt_logprobs_of_far_and_impossible_tokens() -> None:
    logits = np.array([[1000, 0, -np.inf]], np.float32)
    assert prompt_logprobs(logits, [1], 0) == [[(1, -1000.0, 2)]]
    assert prompt_logprobs(logits, [2], 0) == [[(2, -np.inf, 3)]]
    with pytest.raises(SamplingError, match=r"^row 0: .*NaN"):
        prompt_logprobs(np.full((1, 3), np.nan, np.float32), [0], 1)
    with pytest.raises(ValueError, match="1 rows of logits for 2 targets"):
        prompt_logprobs(logits, [0, 1], 0)
