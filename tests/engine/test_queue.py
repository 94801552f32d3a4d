"""The waiting line: order, removal, and who has waited too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from helpers.engines import oracle_engine
from octavo.core.params import SamplingParams
from octavo.engine.queue import WaitingQueue
from octavo.engine.sequence import Sequence


def sequences(priorities: list[int]) -> list[Sequence]:
    engine, _ = oracle_engine()
    made = []
    for priority in priorities:
        request = engine.make_request([1], SamplingParams(max_tokens=1), priority=priority)
        made += engine.prepare(request).sequences
    return made


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), max_size=12))
def test_is_sorted_by_priority_then_arrival_whatever_leaves(plan: list[tuple[int, bool]]) -> None:
    queue, expected = WaitingQueue(), []
    for sequence, (_, leaves) in zip(sequences([priority for priority, _ in plan]), plan, strict=True):
        queue.add(sequence)
        expected.append(sequence)
        if leaves:
            gone = expected.pop(len(expected) // 2)
            assert queue.remove(gone)
            assert not queue.remove(gone)
    assert list(queue) == sorted(expected, key=lambda s: (s.rank[0], s.order))
    assert queue.requests == len(queue) == len(expected)


def test_a_preempted_sequence_comes_back_before_later_ones() -> None:
    first, second, third = sequences([0, 0, 0])
    queue = WaitingQueue([third, second])
    queue.add(first)
    assert list(queue) == [first, second, third]


def test_names_each_group_whose_time_is_up_once_and_none_that_has_run() -> None:
    early, late, ran = sequences([0, 0, 0])
    queue = WaitingQueue([early, late, ran])
    queue.limit(late.group, 20)
    queue.limit(early.group, 10)
    queue.limit(ran.group, 10)
    ran.group.metrics.first_scheduled_s = 1.0
    start = max(s.group.start for s in (early, late, ran))
    assert queue.expired(early.group.start + 9.9) == []
    assert queue.expired(start + 10) == [early.group]
    assert queue.expired(start + 10) == []
    assert queue.expired(start + 21) == [late.group]
