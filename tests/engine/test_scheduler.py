"""What runs when: the order of a step, budgets, sharing of what is being computed, preemption."""

from __future__ import annotations

import pytest

from helpers.engines import check_idle, generate, oracle_engine, queue, run
from octavo.core.config import EngineConfig
from octavo.core.errors import ConfigError
from octavo.core.params import SamplingParams
from octavo.engine.plan import SteadyPlan


def greedy(max_tokens: int = 8, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **more)  # type: ignore[arg-type]


def prompt(length: int, first: int = 0) -> list[int]:
    return [(first + i) % 50 for i in range(length)]


def test_decodes_come_first_then_the_prompt_under_way_then_new_ones() -> None:
    engine, oracle = oracle_engine(max_num_batched_tokens=20, max_num_seqs=4)
    queue(engine, prompt(4), greedy())
    engine.step()
    queue(engine, prompt(50, 7), greedy())
    queue(engine, prompt(5, 9), greedy())
    for _ in range(3):
        engine.step()
    # Of the 19 tokens beside the decode half goes by age, the rest to the shorter prompt first.
    assert oracle.plans == [[(0, 4)], [(0, 1), (1, 14), (2, 5)], [(0, 1), (2, 1), (1, 18)], [(0, 1), (2, 1), (1, 18)]]


def test_a_step_never_exceeds_its_limits() -> None:
    engine, oracle = oracle_engine(max_num_batched_tokens=16, max_num_seqs=3)
    generate(engine, [prompt(n, n) for n in (3, 40, 17, 1, 9, 60)], greedy())
    assert max(sum(count for _, count in plan) for plan in oracle.plans) == 16
    assert max(len(plan) for plan in oracle.plans) == 3


def test_first_come_first_served() -> None:
    engine, oracle = oracle_engine(max_num_seqs=2, max_num_batched_tokens=16)
    groups = [queue(engine, prompt(20, i * 3), greedy(4)) for i in range(6)]
    run(engine, groups)
    seen = list(dict.fromkeys(order for plan in oracle.plans for order, _ in plan))
    assert seen == [0, 1, 2, 3, 4, 5]


def test_a_prefix_that_is_being_computed_is_waited_for_and_shared() -> None:
    engine, oracle = oracle_engine(max_num_batched_tokens=64, num_pages=200)
    shared = prompt(48)
    groups = [queue(engine, [*shared, i, i + 1], greedy(2)) for i in range(4)]
    engine.step()
    assert oracle.plans == [[(0, 50)]]
    engine.step()
    assert oracle.plans[1] == [(0, 1), (1, 2), (2, 2), (3, 2)]
    run(engine, groups)
    assert [group.metrics.cached_prompt_tokens for group in groups] == [0, 48, 48, 48]
    check_idle(engine)


def test_requests_of_other_salts_are_not_waited_for_and_share_nothing() -> None:
    engine, oracle = oracle_engine(max_num_batched_tokens=128)
    groups = [queue(engine, prompt(40), greedy(2), cache_salt=salt) for salt in (None, "a", "b")]
    run(engine, groups)
    assert len(oracle.plans[0]) == 3
    assert all(group.metrics.cached_prompt_tokens == 0 for group in groups)


def test_pages_of_a_shared_prefix_are_allocated_once() -> None:
    """32 requests with 2,000 tokens in common and 200 of their own: within 5 % of 2,000 + 32 x 200 tokens."""
    engine, _ = oracle_engine(num_pages=1000, max_model_len=2300, max_num_seqs=32, max_num_batched_tokens=512)
    groups = [queue(engine, prompt(2000) + prompt(200, i + 1), greedy(20)) for i in range(32)]
    most = 0
    while not all(group.finished for group in groups):
        engine.step()
        most = max(most, engine.cache.usage().used_pages)
    assert most * 16 <= 1.05 * (2000 + 32 * (200 + 20))
    check_idle(engine)


def test_the_newest_gives_way_and_comes_back() -> None:
    engine, oracle = oracle_engine(num_pages=6, max_model_len=90, enable_prefix_caching=False)
    groups = [queue(engine, prompt(20, i), greedy(50)) for i in range(3)]
    run(engine, groups)
    check_idle(engine)
    assert groups[0].metrics.preemptions == 0
    assert groups[1].metrics.preemptions > 0
    for i, group in enumerate(groups):
        assert group.output().outputs[0].token_ids == oracle.answer(prompt(20, i), 50)


def test_a_request_as_long_as_the_whole_pool_runs() -> None:
    engine, _ = oracle_engine(num_pages=4, max_model_len=64)
    outputs = generate(engine, [prompt(50), prompt(5, 3), prompt(63, 1)], greedy(100))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [14, 59, 1]
    assert all(output.outputs[0].finish_reason == "length" for output in outputs)


@pytest.mark.parametrize("caching", [True, False])
def test_siblings_take_the_prompt_of_the_first(caching: bool) -> None:
    engine, oracle = oracle_engine(enable_prefix_caching=caching)
    group = queue(engine, prompt(40), greedy(20, n=4))
    engine.step()
    assert oracle.plans == [[(0, 40)]]
    engine.step()
    assert oracle.plans[1] == [(0, 1), (1, 1), (2, 1), (3, 1)]
    # Two full pages in common, and for each the page where the prompt ends.
    assert engine.cache.usage().used_pages == 2 + 4
    run(engine, [group])
    check_idle(engine)
    for completion in group.output().outputs:
        assert completion.token_ids == oracle.answer(prompt(40), 20)


def test_siblings_beyond_the_running_places_still_share() -> None:
    engine, oracle = oracle_engine(enable_prefix_caching=False, max_num_seqs=2)
    group = queue(engine, prompt(40), greedy(3, n=7))
    run(engine, [group])
    check_idle(engine)
    assert sum(count for plan in oracle.plans for _, count in plan) == 40 + 2 + 6 * 3


def test_prompt_logprobs_take_few_rows_of_logits_at_a_time() -> None:
    engine, oracle = oracle_engine(max_num_batched_tokens=128, max_num_seqs=2)
    output = generate(engine, [prompt(100)], greedy(2, prompt_logprobs=0))[0]
    assert max(count for plan in oracle.plans for _, count in plan) <= engine.config.max_logit_rows == 34
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == 100


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_batched_tokens": 4, "max_num_seqs": 8}, "max_num_batched_tokens 4 is below max_num_seqs 8"),
        ({"block_size": 24}, "block_size must be a multiple of 16"),
        ({"num_pages": 2}, "raise kv_cache_bytes or lower max_model_len"),
        ({"max_model_len": 0}, "max_model_len must be at least 1"),
        ({"max_num_seqs": True}, "max_num_seqs must be an integer"),
    ],
)
def test_impossible_configurations_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**{"max_model_len": 256, "num_pages": 64, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("caching", [True, False])
def test_plain_steps_end_and_share_as_all_others(caching: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way through a step gives the same outputs, pages and plans as the long way, whatever ends when."""
    prompts = [prompt(n, n) for n in (3, 40, 17, 1, 9, 60, 31)]
    params = [greedy(10 + 7 * i, stop_token_ids=[i]) for i in range(7)]

    def outcome(short: bool) -> object:
        engine, oracle = oracle_engine(num_pages=24, max_num_seqs=6, enable_prefix_caching=caching)
        taken = []
        advance = engine.scheduler.advance
        monkeypatch.setattr(
            engine.scheduler, "advance", lambda plan, tokens: taken.append(plan) or advance(plan, tokens)
        )
        if not short:
            monkeypatch.setattr(engine.scheduler, "_plan_steady", lambda: None)
        outputs = generate(engine, prompts, params)
        assert bool(taken) is short
        assert not short or len(taken) > len(oracle.plans) / 2
        stats = engine.stats()
        texts = [(o.outputs[0].token_ids, o.outputs[0].text, o.outputs[0].finish_reason, o.metrics) for o in outputs]
        named = [(*text[:3], text[3].cached_prompt_tokens, text[3].preemptions) for text in texts]
        return named, oracle.plans, stats.generated_tokens, stats.prompt_tokens, stats.preemptions, stats.cache

    assert outcome(short=True) == outcome(short=False)


def test_a_step_is_plain_only_if_all_of_it_is() -> None:
    engine, _ = oracle_engine()
    groups = [queue(engine, prompt(4), greedy()) for _ in range(2)]
    engine.step()
    assert not isinstance(engine.scheduler.plan, SteadyPlan)  # prompts
    for step in range(3):
        engine.step()
        plan = engine.scheduler.plan
        assert isinstance(plan, SteadyPlan)
        assert (plan.plain, plan.step) == (True, step)
    cases = ({"logprobs": 1}, {"stop": ["x"]}, {"presence_penalty": 1}, {"temperature": 1}, {"logit_bias": {1: 2.0}})
    for case in ({"min_tokens": 9}, *cases):
        params = SamplingParams(**{"temperature": 0, "max_tokens": 20, **case})  # type: ignore[arg-type]
        other = queue(engine, prompt(5), params)
        engine.step()
        engine.step()
        plan = engine.scheduler.plan
        assert isinstance(plan, SteadyPlan)
        assert plan.plain is (case == {"min_tokens": 9}), case  # without end-of-sequence ids it forbids nothing
        engine.abort(other)
    run(engine, groups)
    check_idle(engine)
