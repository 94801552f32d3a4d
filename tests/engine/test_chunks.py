"""How prompts share a step's tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from helpers.engines import oracle_engine
from octavo.core.params import SamplingParams
from octavo.engine.chunks import may_join, share
from octavo.engine.sequence import Sequence


def prompts(lengths: list[int]) -> list[Sequence]:
    engine, _ = oracle_engine(num_pages=1000, max_model_len=16000)
    params = SamplingParams(max_tokens=1)
    return [engine.prepare(engine.make_request([1] * n, params)).sequences[0] for n in lengths]


@given(st.integers(0, 300), st.lists(st.integers(1, 200), max_size=6))
def test_gives_all_that_is_needed_or_all_there_is(budget: int, lengths: list[int]) -> None:
    made = prompts(lengths)
    grants = share(budget, made)
    assert sum(grants.values()) == min(budget, sum(lengths))
    assert all(0 < count <= sequence.remaining for sequence, count in grants.items())
    assert list(grants) == [sequence for sequence in made if sequence in grants]


def test_a_long_prompt_and_short_ones_hold_up_neither() -> None:
    long, short, other = prompts([8000, 60, 90])
    assert share(512, [long, short, other]) == {long: 512 - 150, short: 60, other: 90}
    assert share(128, [long, short, other]) == {long: 64, short: 60, other: 4}
    assert share(128, [short, long]) == {short: 60, long: 68}


def test_two_long_ones_leave_room_for_a_short_one() -> None:
    first, second, short = prompts([8000, 9000, 40])
    assert share(512, [first, second, short]) == {first: 472, short: 40}
    assert may_join(512, 40, [first, second])
    assert not may_join(512, 10000, [first, second])


def test_equal_prompts_are_served_in_order_of_arrival() -> None:
    first, second, third = prompts([100, 100, 100])
    assert share(150, [first, second, third]) == {first: 100, second: 50}


def test_joins_while_there_are_tokens_left_over() -> None:
    first, second = prompts([100, 100])
    assert may_join(512, 5000, [first, second])
    assert not may_join(200, 5000, [first, second])
    assert may_join(1, 10, [])
