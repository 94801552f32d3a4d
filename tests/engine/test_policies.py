"""Who runs first, who waits, who is refused: priorities, fairness, time limits, the static policy, swapping."""

from __future__ import annotations

import itertools
import time

import pytest

from helpers.engines import check_idle, oracle_engine, queue, run
from octavo.core.config import EngineConfig
from octavo.core.errors import ConfigError, InvalidParameterError, QueueFullError
from octavo.core.params import SamplingParams
from octavo.engine.cost import CostModel, chunk_pairs
from octavo.engine.plan import StepPlan
from octavo.engine.step import Engine


def greedy(max_tokens: int = 8) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def prompt(length: int, first: int = 0) -> list[int]:
    return [(first + i) % 50 for i in range(length)]


def first_steps(plans: list[list[tuple[int, int]]]) -> list[int]:
    """The sequences in the order in which they first ran."""
    return list(dict.fromkeys(order for plan in plans for order, _ in plan))


def test_smaller_priorities_run_first_and_equal_ones_in_order_of_arrival() -> None:
    engine, oracle = oracle_engine(max_num_seqs=1)
    priorities = [5, 0, -3, 0, 5, -3]
    groups = [queue(engine, prompt(5, i), greedy(2), priority=p) for i, p in enumerate(priorities)]
    run(engine, groups)
    assert first_steps(oracle.plans) == [2, 5, 1, 3, 0, 4]


@pytest.mark.parametrize("swap_pages", [0, 100])
def test_a_better_priority_takes_the_place_of_a_running_request(swap_pages: int) -> None:
    engine, oracle = oracle_engine(max_num_seqs=2, swap_space_bytes=swap_pages * 16 * 8)
    low = [queue(engine, prompt(20, i), greedy(10), priority=1) for i in range(2)]
    for _ in range(3):
        engine.step()
    high = queue(engine, prompt(9, 7), greedy(3), priority=0)
    run(engine, [high])
    assert not any(group.finished for group in low)
    assert [group.metrics.preemptions for group in low] == [0, 1]
    assert low[1].metrics.swaps == (swap_pages > 0)
    run(engine, low)
    for i, group in enumerate(low):
        assert group.output().outputs[0].token_ids == oracle.answer(prompt(20, i), 10)
    check_idle(engine)


def test_a_better_priority_takes_pages() -> None:
    engine, oracle = oracle_engine(num_pages=8, max_model_len=128, enable_prefix_caching=False)
    low = [queue(engine, prompt(40, i), greedy(20), priority=1) for i in range(2)]
    engine.step()
    high = queue(engine, prompt(60, 9), greedy(4), priority=0)
    run(engine, [high])
    assert sum(group.metrics.preemptions for group in low) >= 1
    assert not low[1].finished
    run(engine, low)
    for i, group in enumerate(low):
        assert group.output().outputs[0].token_ids == oracle.answer(prompt(40, i), 20)


def test_the_same_priority_pushes_nobody_out() -> None:
    engine, _ = oracle_engine(max_num_seqs=1)
    first = queue(engine, prompt(5), greedy(10), priority=3)
    engine.step()
    run(engine, [queue(engine, prompt(5, 9), greedy(2), priority=3)])
    assert first.finished
    assert first.metrics.preemptions == 0


def test_short_prompts_pass_a_long_one_and_do_not_stop_it() -> None:
    engine, oracle = oracle_engine(max_model_len=4000, num_pages=600, max_num_batched_tokens=64)
    long = queue(engine, prompt(3000), greedy(1))
    engine.step()
    for i in range(20):
        run(engine, [queue(engine, prompt(30, i + 1), greedy(1))], most_steps=3)
    own = [count for plan in oracle.plans for order, count in plan if order == 0]
    assert min(own) >= 32
    run(engine, [long])


def test_a_request_without_pages_is_overtaken_only_so_often() -> None:
    engine, oracle = oracle_engine(num_pages=16, max_model_len=256, max_num_seqs=8, enable_prefix_caching=False)
    queue(engine, prompt(100), greedy(100))
    engine.step()
    big = queue(engine, prompt(200, 5), greedy(2))
    small = itertools.count(1)
    passed = 0
    while big.metrics.first_scheduled_s is None:
        group = queue(engine, prompt(10, next(small)), greedy(2))
        for _ in range(3):
            engine.step()
        passed += group.finished
        assert passed < 200
    assert 16 <= passed <= 33  # the last one may get its pages in the same step
    run(engine, [big])
    assert big.output().outputs[0].token_ids == oracle.answer(prompt(200, 5), 2)


def test_a_full_queue_refuses_at_once_and_loses_nobody() -> None:
    engine, _ = oracle_engine(max_num_seqs=2, max_waiting=3)
    groups = [queue(engine, prompt(5, i), greedy(3)) for i in range(5)]
    with pytest.raises(QueueFullError, match=r"3 requests wait already.*max_waiting"):
        queue(engine, prompt(5, 9), greedy(3))
    engine.step()
    assert engine.stats().waiting == 3
    with pytest.raises(QueueFullError):
        queue(engine, prompt(5, 9), greedy(3))
    run(engine, groups)
    assert engine.stats().refused == 2
    run(engine, [queue(engine, prompt(5, 9), greedy(3))])


def test_no_waiting_at_all_still_lets_an_idle_engine_work() -> None:
    engine, _ = oracle_engine(max_num_seqs=1, max_waiting=0)
    first = queue(engine, prompt(5), greedy(3))
    with pytest.raises(QueueFullError):
        queue(engine, prompt(5), greedy(3))
    run(engine, [first])


def test_a_request_that_waits_too_long_ends_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = oracle_engine(max_num_seqs=1, queue_timeout_s=60)
    running = queue(engine, prompt(5), greedy(50))
    engine.step()
    late, own = queue(engine, prompt(5, 1), greedy(3)), queue(engine, prompt(5, 2), greedy(3), queue_timeout_s=1000)
    engine.step()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert late in engine.step()
    output = late.output()
    assert output.outputs[0].finish_reason == "timeout"
    assert output.error is not None
    assert "queue_timeout_s" in output.error
    assert output.metrics.first_token_s is None
    assert engine.stats().timed_out == 1
    run(engine, [running, own])
    assert {group.output().outputs[0].finish_reason for group in (running, own)} == {"length"}
    check_idle(engine)


@pytest.mark.parametrize("bad", [True, 1.5, "high"])
def test_a_priority_is_an_integer(bad: object) -> None:
    engine, _ = oracle_engine()
    with pytest.raises(InvalidParameterError, match="priority must be an integer"):
        queue(engine, prompt(5), greedy(), priority=bad)


@pytest.mark.parametrize(
    ("field", "value"),
    [("scheduling_policy", "fifo"), ("max_decode_stall_ms", 0), ("max_waiting", -1), ("queue_timeout_s", -1.0)],
)
def test_impossible_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        EngineConfig(max_model_len=16, num_pages=1, block_size=16, **{field: value})  # type: ignore[arg-type]


def test_the_static_policy_admits_nobody_before_a_batch_has_ended() -> None:
    engine, oracle = oracle_engine(max_num_seqs=3, scheduling_policy="static")
    groups = [queue(engine, prompt(5, i), greedy(n)) for i, n in enumerate([2, 9, 4, 3, 3])]
    run(engine, groups)
    batches = [frozenset(order for order, _ in plan) for plan in oracle.plans]
    longest = max(i for i, batch in enumerate(batches) if 1 in batch)
    assert all(batch <= {0, 1, 2} for batch in batches[: longest + 1])
    assert all(batch <= {3, 4} for batch in batches[longest + 1 :])


def test_the_static_policy_leaves_a_place_empty_while_others_still_read_their_prompts() -> None:
    engine, oracle = oracle_engine(max_num_seqs=2, max_num_batched_tokens=8, scheduling_policy="static")
    short, long = queue(engine, prompt(3), greedy(1)), queue(engine, prompt(60, 5), greedy(1))
    third = queue(engine, prompt(3, 9), greedy(1))
    run(engine, [short])
    engine.step()
    assert not long.finished
    assert third.metrics.first_scheduled_s is None
    run(engine, [long, third])
    assert first_steps(oracle.plans) == [0, 1, 2]


@pytest.mark.parametrize(("recompute_s", "swaps"), [(0.0, 0), (1e9, 1)])
def test_swaps_where_that_is_cheaper_than_computing_again(
    recompute_s: float, swaps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, oracle = oracle_engine(max_num_seqs=1, swap_space_bytes=100 * 16 * 8)
    low = queue(engine, prompt(20), greedy(10), priority=1)
    engine.step()
    assert engine.scheduler.cost.known
    monkeypatch.setattr(engine.scheduler.cost, "prefill_s", lambda tokens, context=0: recompute_s)
    run(engine, [queue(engine, prompt(9, 7), greedy(3), priority=0)])
    run(engine, [low])
    assert low.metrics.preemptions == 1
    assert low.metrics.swaps == engine.stats().swaps == swaps
    assert low.output().outputs[0].token_ids == oracle.answer(prompt(20), 10)


def stalled(engine: Engine, per_token: float) -> int:
    """The chunk of a long prompt that joins a decode, on a machine that computes a prompt token in so many seconds."""
    group = queue(engine, prompt(10, 3), greedy(100))
    engine.step()
    engine.scheduler.cost = CostModel()
    for n in (100, 200, 300, 400):
        engine.scheduler.cost.observe(n, chunk_pairs(n, 0), 1e-3 + n * per_token, prompt_tokens=True)
        engine.scheduler.cost.observe(1, 11, 1e-3 + per_token, prompt_tokens=False)
    queue(engine, prompt(900, 5), greedy(1))
    engine._take_arrived()
    plan = engine.scheduler.schedule()
    assert [s.order for s in plan.sequences] == [group.sequences[0].order, 1]
    return plan.counts[1]


@pytest.mark.parametrize(
    ("stall_ms", "least", "most"), [(50.0, 30, 40), (20.0, 16, 17), (1.0, 16, 16), (None, 511, 511), (1e6, 64, 64)]
)
def test_chunks_beside_decodes_keep_to_the_time_limit(stall_ms: float | None, least: int, most: int) -> None:
    engine, _ = oracle_engine(
        num_pages=100, max_model_len=1000, max_num_batched_tokens=512, max_decode_stall_ms=stall_ms
    )
    assert least <= stalled(engine, per_token=1e-3) <= most


def test_chunks_alone_are_not_cut() -> None:
    engine, oracle = oracle_engine(
        num_pages=100, max_model_len=1000, max_num_batched_tokens=512, max_decode_stall_ms=0.001
    )
    run(engine, [queue(engine, prompt(900), greedy(1))])
    assert oracle.plans == [[(0, 512)], [(0, 388)]]


def gone(plan: StepPlan) -> None:
    raise OSError("gone")


def test_a_failed_step_does_not_lose_a_request_that_was_admitted_and_had_no_tokens_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It begins with a copied page, and the copy was to be made in the step that failed."""
    engine, oracle = oracle_engine(num_pages=100, max_num_seqs=2, max_num_batched_tokens=64)
    run(engine, [queue(engine, prompt(20), greedy(14))])
    broken = queue(engine, prompt(60, 30), SamplingParams(max_tokens=1, prompt_logprobs=0))  # takes all rows of logits
    late = queue(engine, prompt(20), greedy(2))
    monkeypatch.setattr(oracle, "fail", gone)
    engine.step()
    monkeypatch.undo()
    plan = engine.scheduler.plan
    assert plan.sequences == broken.sequences
    assert plan.admitted == [*broken.sequences, *late.sequences]
    assert len(plan.copies) == 1
    assert broken.error == "OSError: gone"
    assert late.error is None
    run(engine, [late])
    assert late.output().outputs[0].token_ids == oracle.answer(prompt(20), 2)
    check_idle(engine)


def test_slots_count_tokens_in_the_pages_that_sequences_hold() -> None:
    engine, _ = oracle_engine()
    queue(engine, prompt(20), greedy())
    queue(engine, prompt(33, 5), greedy())
    engine.step()
    stats = engine.stats()
    assert (stats.used_slots, stats.allocated_slots) == (21 + 34, 32 + 48)
    assert stats.utilization == 55 / 80
