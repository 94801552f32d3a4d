"""The life of requests: every way to end, failures that stay with their requests, aborts, interrupts."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from helpers.engines import check_idle, generate, letter, oracle_engine, queue, run
from octavo.core.errors import ContextLengthError, InvalidParameterError, RequestError
from octavo.core.params import SamplingParams
from octavo.engine.plan import SteadyPlan, StepPlan

PROMPT = [3, 1, 4, 1, 5]


def greedy(max_tokens: int | None = 8, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **more)  # type: ignore[arg-type]


def test_length() -> None:
    engine, oracle = oracle_engine(max_model_len=40)
    short, open_ended, beyond = generate(engine, [PROMPT] * 3, [greedy(3), greedy(None), greedy(1000)])
    assert short.outputs[0].token_ids == oracle.answer(PROMPT, 3)
    assert [output.outputs[0].finish_reason for output in (short, open_ended, beyond)] == ["length"] * 3
    assert len(open_ended.outputs[0].token_ids) == len(beyond.outputs[0].token_ids) == 35


def test_end_of_sequence_stop_ids_ignore_eos_and_min_tokens() -> None:
    plain = oracle_engine()[1].answer(PROMPT, 30)
    third = plain[2]
    assert third not in plain[:2]
    engine, _ = oracle_engine(eog_ids=[third])
    ended, ignored, listed, late = generate(
        engine,
        [PROMPT] * 4,
        [
            greedy(30),
            greedy(30, ignore_eos=True),
            greedy(30, ignore_eos=True, stop_token_ids=[third]),
            greedy(30, min_tokens=6),
        ],
    )
    assert ended.outputs[0].token_ids == plain[:3]
    assert (ended.outputs[0].finish_reason, ended.outputs[0].stop_reason) == ("stop", None)
    assert ended.outputs[0].text == "".join(map(letter, plain[:2]))
    assert ignored.outputs[0].token_ids == plain
    assert listed.outputs[0].token_ids == plain[:3]
    assert listed.outputs[0].stop_reason == third
    assert third not in late.outputs[0].token_ids[:6]
    assert len(late.outputs[0].token_ids) > 6


def test_stop_strings_across_tokens() -> None:
    engine, oracle = oracle_engine()
    plain = oracle.answer(PROMPT, 20)
    text = "".join(map(letter, plain))
    cut, kept, late = generate(
        engine,
        [PROMPT] * 3,
        [
            greedy(20, stop=[text[4:7], "never"]),
            greedy(20, stop=[text[4:7]], include_stop_str_in_output=True),
            greedy(20, stop=[text[4:7]], min_tokens=8),
        ],
    )
    assert cut.outputs[0].text == text[:4]
    assert cut.outputs[0].token_ids == plain[:7]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", text[4:7])
    assert kept.outputs[0].text == text[:7]
    assert late.outputs[0].text == text


def test_logprobs_are_shaped_as_callers_know_them() -> None:
    engine, oracle = oracle_engine()
    output = generate(engine, [PROMPT], greedy(4, logprobs=3, prompt_logprobs=2))[0]
    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert [next(iter(each)) for each in completion.logprobs] == completion.token_ids
    assert all(len(each) == 3 for each in completion.logprobs)
    first = next(iter(completion.logprobs[0].values()))
    assert (first.rank, first.decoded_token) == (1, letter(completion.token_ids[0]))
    assert completion.cumulative_logprob == pytest.approx(
        sum(next(iter(each.values())).logprob for each in completion.logprobs)
    )
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    for position, each in enumerate(output.prompt_logprobs[1:], start=1):
        assert each is not None
        assert next(iter(each)) == PROMPT[position]
        best = oracle.next_token(PROMPT[:position])
        assert each[best].rank == 1


def test_an_abort_frees_the_pages_at_once_and_leaves_neighbours_alone() -> None:
    engine, oracle = oracle_engine()
    doomed, other = queue(engine, PROMPT, greedy(50, n=3)), queue(engine, [7, 7], greedy(20))
    waiting = queue(engine, [9] * 60, greedy(5))
    for _ in range(4):
        engine.step()
    used = engine.cache.usage().used_pages
    engine.abort(doomed)
    engine.abort(waiting)
    engine.abort(waiting)
    assert engine.cache.usage().used_pages < used
    run(engine, [other])
    assert doomed.output().outputs[0].finish_reason == "abort"
    assert doomed.output().finished
    assert doomed.error is None
    assert waiting.output().outputs[0].finish_reason == "abort"
    assert other.output().outputs[0].token_ids == oracle.answer([7, 7], 20)
    check_idle(engine)


def test_an_exception_in_a_step_fails_its_requests_and_no_others() -> None:
    engine, oracle = oracle_engine(max_num_seqs=2)
    steps = itertools.count()

    def fail(plan: StepPlan) -> None:
        if next(steps) == 3:
            raise ValueError("a kernel gave up")

    oracle.fail = fail
    groups = [queue(engine, [i, *PROMPT], greedy(10)) for i in range(3)]
    run(engine, groups)
    check_idle(engine)
    assert [group.error for group in groups] == ["ValueError: a kernel gave up"] * 2 + [None]
    assert [group.output().outputs[0].finish_reason for group in groups] == ["error", "error", "length"]
    assert groups[2].output().outputs[0].token_ids == oracle.answer([2, *PROMPT], 10)


def test_logits_without_a_token_fail_one_request_alone() -> None:
    engine, oracle = oracle_engine()
    sound = oracle.run

    def poisoned(plan: StepPlan) -> np.ndarray:
        logits = sound(plan)
        if len(oracle.plans) == 3:
            logits[1] = np.nan
        return logits

    oracle.run = poisoned  # type: ignore[method-assign]
    groups = [queue(engine, [i, *PROMPT], greedy(10)) for i in range(3)]
    run(engine, groups)
    check_idle(engine)
    assert groups[1].error is not None
    assert "NaN" in groups[1].error
    for i in (0, 2):
        assert groups[i].output().outputs[0].token_ids == oracle.answer([i, *PROMPT], 10)


@pytest.mark.parametrize("when", range(6))
def test_an_interrupt_in_a_step_loses_nothing(when: int) -> None:
    engine, oracle = oracle_engine(max_num_batched_tokens=16, max_num_seqs=4)
    steps = itertools.count()

    def interrupt(plan: StepPlan) -> None:
        if next(steps) == when:
            raise KeyboardInterrupt

    oracle.fail = interrupt
    prompts = [[i, *PROMPT, *range(20)] for i in range(3)]
    groups = [queue(engine, each, greedy(10, n=2)) for each in prompts]
    with pytest.raises(KeyboardInterrupt):
        run(engine, groups)
    run(engine, groups)
    check_idle(engine)
    for group, each in zip(groups, prompts, strict=True):
        for completion in group.output().outputs:
            assert completion.token_ids == oracle.answer(each, 10)


def test_an_interrupt_inside_the_bookkeeping_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, oracle = oracle_engine()
    groups = [queue(engine, [i, *PROMPT], greedy(10)) for i in range(3)]
    engine.step()
    pool = engine.cache.pool
    with monkeypatch.context() as patch:
        patch.setattr(pool, "alloc", lambda: (pool._free.pop(), (_ for _ in ()).throw(KeyboardInterrupt))[1].send(None))
        groups.append(queue(engine, [8, *PROMPT], greedy(10)))
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    run(engine, groups)
    check_idle(engine)
    for i, group in zip((0, 1, 2, 8), groups, strict=True):
        assert group.output().outputs[0].token_ids == oracle.answer([i, *PROMPT], 10)


def test_bad_prompts_are_refused_before_anything_is_queued() -> None:
    engine, _ = oracle_engine(max_model_len=20)
    with pytest.raises(RequestError, match="the prompt is empty"):
        engine.make_request([], greedy())
    for token in (-1, 50):
        with pytest.raises(RequestError, match=rf"token id {token}; this model's vocabulary has ids 0 to 49"):
            engine.make_request([1, token], greedy())
    with pytest.raises(ContextLengthError, match=r"has 20 tokens .* holds 20 tokens; .* max_model_len"):
        engine.make_request([1] * 20, greedy())
    with pytest.raises(ContextLengthError, match=r"at least 8 \(min_tokens\)"):
        engine.make_request([1] * 15, greedy(10, min_tokens=8))
    with pytest.raises(InvalidParameterError, match="stop_token_ids holds token id 99"):
        engine.prepare(engine.make_request([1], greedy(stop_token_ids=[99])))
    assert not engine.has_work


def test_seeds_come_from_the_engine_and_the_order_of_arrival() -> None:
    first, again, other = (oracle_engine(seed=seed)[0] for seed in (1, 1, 2))
    seeds = [[engine.make_request([1], greedy()).seed for _ in range(3)] for engine in (first, again, other)]
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 6
    assert first.make_request([1], greedy(seed=5)).seed == 5


def test_several_threads_share_the_steps() -> None:
    engine, oracle = oracle_engine(num_pages=20, max_model_len=100)
    failures: list[object] = []

    def client(number: int) -> None:
        for turn in range(5):
            prompt = [number, turn, *range(20)]
            group = queue(engine, prompt, greedy(12))
            while not group.finished:
                engine.step()
            if group.output().outputs[0].token_ids != oracle.answer(prompt, 12):
                failures.append((number, turn))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    check_idle(engine)


def test_stats_count_what_was_done() -> None:
    engine, _ = oracle_engine()
    generate(engine, [PROMPT, [9] * 40], greedy(5))
    stats = engine.stats()
    assert (stats.generated_tokens, stats.prompt_tokens) == (10, 45)
    assert stats.steps == 5
    assert stats.running == stats.waiting == 0
    assert min(stats.schedule_s, stats.run_s, stats.sample_s, stats.commit_s) > 0


def test_nan_in_a_plain_step_fails_its_row_alone() -> None:
    engine, oracle = oracle_engine()
    groups = [queue(engine, [i, *PROMPT], greedy(20)) for i in range(3)]
    for _ in range(3):
        engine.step()
    plain = oracle.run

    def broken(plan: StepPlan) -> np.ndarray:
        logits = plain(plan)
        logits[1] = np.nan
        return logits

    oracle.run = broken  # type: ignore[method-assign]
    engine.step()
    assert isinstance(engine.scheduler.plan, SteadyPlan)
    oracle.run = plain  # type: ignore[method-assign]
    run(engine, groups)
    check_idle(engine)
    assert groups[1].error is not None
    assert "NaN" in groups[1].error
    for i in (0, 2):
        assert groups[i].output().outputs[0].token_ids == oracle.answer([i, *PROMPT], 20)
