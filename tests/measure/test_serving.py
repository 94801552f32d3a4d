"""The client on an engine without a model, whose every step takes one second of a clock that the test owns."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.engines import Oracle, check_idle, oracle_engine
from octavo.core.errors import RequestError
from octavo.engine.plan import StepPlan
from octavo.engine.step import Engine
from octavo.measure.serving import Client, Run, serve
from octavo.measure.workloads import Fixed, Item, Uniform, Workload


class Clock:
    """Time passes in steps and in sleep alone."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def step(self, plan: StepPlan) -> None:
        self.now += 1


def timed_engine(**config: Any) -> tuple[Engine, Oracle, Clock]:
    engine, oracle = oracle_engine(**{"max_decode_stall_ms": None, **config})
    clock = Clock()
    oracle.fail = clock.step
    return engine, oracle, clock


def timed(engine: Engine, clock: Clock, items: list[Item], **options: Any) -> Run:
    run = serve(engine, items, clock=clock, sleep=clock.sleep, **options)
    check_idle(engine)
    return run


def item(number: int = 0, prompt_tokens: int = 4, output_tokens: int = 3, **values: Any) -> Item:
    return Item(prompt_token_ids=[number % 50] * prompt_tokens, output_tokens=output_tokens, **values)


def test_tokens_come_at_the_ends_of_steps() -> None:
    engine, _, clock = timed_engine()
    run = timed(engine, clock, [item(1), item(2, output_tokens=5)])
    first, second = run.requests
    assert first.token_s == [1, 2, 3]
    assert second.token_s == [1, 2, 3, 4, 5]
    assert (first.reason, first.finished_s, second.finished_s, run.wall_s) == ("length", 3, 5, 5)
    assert (run.prompt_tokens, run.output_tokens, run.preemptions) == (8, 8, 0)
    assert run.latencies_s == [3, 5]
    assert run.ttfts_s == [1, 1]
    assert clock.slept == []


def test_a_request_is_sent_when_it_is_due_and_its_time_counts_from_then() -> None:
    engine, oracle, clock = timed_engine()
    late, later = item(1, arrival_s=1.5), item(2, arrival_s=10.0)
    run = timed(engine, clock, [later, item(0), late])
    # The one due in the second step joins the third, and its waiting counts.
    assert [served.token_s[0] for served in run.requests] == [1, 3, 11]
    assert run.ttfts_s == [1, 1.5, 1]
    assert run.latencies_s == [3, 3.5, 3]
    assert len(oracle.plans) == 5 + 3
    assert clock.slept == [5]  # from the end of the second one on


def test_a_slow_engine_is_not_waited_for() -> None:
    engine, _, clock = timed_engine(max_num_seqs=1)
    run = timed(engine, clock, [item(n, arrival_s=float(n)) for n in range(3)])
    assert [served.finished_s for served in run.requests] == [3, 6, 9]
    assert run.latencies_s == [3, 5, 7]


def test_reservations_hold_requests_back_in_order() -> None:
    engine, oracle, clock = timed_engine()
    items = [item(0), item(1, output_tokens=5), item(2), item(3)]
    run = timed(engine, clock, items, states=True, reserve=lambda each: 10, reservable=20)
    # Two at a time: the third starts when the first has ended, the fourth when the second has.
    assert [served.token_s[0] for served in run.requests] == [1, 1, 4, 6]
    assert max(len(plan) for plan in oracle.plans) == 2
    assert [state.reserved_slots for state in run.states] == [20, 20, 10, 20, 10, 10, 10, 0]
    assert [state.waiting for state in run.states] == [2, 2, 2, 1, 1, 0, 0, 0]


def test_a_reservation_that_never_fits_runs_alone() -> None:
    engine, _, clock = timed_engine()
    run = timed(engine, clock, [item(0), item(1)], reserve=lambda each: 99, reservable=20)
    assert [served.token_s[0] for served in run.requests] == [1, 4]


def test_states_tell_pages_and_slots() -> None:
    engine, _, clock = timed_engine()
    run = timed(engine, clock, [item(0, prompt_tokens=14, output_tokens=4)], states=True)
    # After each step one more token is known; a page has 16 slots, and the 17th token gets its page in its own step.
    assert [(state.lengths, state.running) for state in run.states] == [((15,), 1), ((16,), 1), ((17,), 1), ((), 0)]
    assert [state.step_s for state in run.states] == [1, 1, 1, 1]
    assert [(state.used_pages, state.allocated_slots) for state in run.states] == [(1, 16), (1, 16), (1, 16), (0, 0)]
    assert [state.used_slots for state in run.states][:2] == [15, 16]
    assert timed(engine, clock, [item(1)]).states == []


def test_cached_tokens_are_counted() -> None:
    engine, _, clock = timed_engine()
    prompt = item(0, prompt_tokens=40, output_tokens=1)
    assert timed(engine, clock, [prompt]).cached_tokens == 0
    assert timed(engine, clock, [prompt]).cached_tokens == 32


def test_priorities_reach_the_engine() -> None:
    engine, _, clock = timed_engine(max_num_seqs=1)
    run = timed(engine, clock, [item(0, priority=2), item(1, priority=1), item(2, priority=0)])
    assert [served.finished_s for served in run.requests] == [9, 6, 3]


def test_bookkeeping_is_a_share_of_the_steps() -> None:
    engine, _ = oracle_engine()
    run = serve(engine, Workload(requests=4, prompt=Fixed(20), output=Uniform(2, 9)).items(50))
    assert 0 < run.bookkeeping_fraction < 1
    spent = run.after.schedule_s + run.after.commit_s + run.after.run_s + run.after.sample_s
    assert run.bookkeeping_fraction == pytest.approx((run.after.schedule_s + run.after.commit_s) / spent)


def test_a_failed_step_is_raised_and_nothing_is_left() -> None:
    engine, oracle, clock = timed_engine()

    def fail(plan: StepPlan) -> None:
        clock.step(plan)
        if clock.now == 103:
            raise RuntimeError("no more")

    oracle.fail = fail
    with pytest.raises(RequestError, match="RuntimeError: no more"):
        serve(engine, [item(n) for n in range(12)], clock=clock, sleep=clock.sleep)
    check_idle(engine)


def test_an_interrupt_leaves_nothing() -> None:
    engine, oracle, clock = timed_engine()

    def interrupt(plan: StepPlan) -> None:
        clock.step(plan)
        if clock.now == 102:
            raise KeyboardInterrupt

    oracle.fail = interrupt
    with pytest.raises(KeyboardInterrupt):
        serve(engine, [item(n) for n in range(12)], clock=clock, sleep=clock.sleep)
    check_idle(engine)


def test_a_client_can_stop_what_runs() -> None:
    engine, _, clock = timed_engine()
    client = Client(engine, clock)
    served = client.send(item(0, output_tokens=50))
    assert client.step() == []
    assert (client.under_way, client.now(), served.token_s) == (1, 1, [1])
    client.abort()
    assert client.under_way == 0
    engine.step()
    check_idle(engine)
