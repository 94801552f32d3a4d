"""Random load on a small pool: arrivals, aborts, priorities, shared prefixes, n > 1, preemption by swap and by
recompute. No leak, no wrong token."""

from __future__ import annotations

import random

import pytest

from helpers.engines import check_idle, oracle_engine, queue, run
from octavo.core.params import SamplingParams
from octavo.engine.contracts import EngineStats


def soak(seed: int, requests: int, *, caching: bool) -> EngineStats:
    rng = random.Random(seed)
    engine, oracle = oracle_engine(
        num_pages=rng.choice([8, 12, 20]),
        max_model_len=120,
        max_num_seqs=rng.choice([2, 5, 8]),
        max_num_batched_tokens=rng.choice([8, 33, 100]),
        enable_prefix_caching=caching,
        swap_space_bytes=rng.choice([0, 6, 100]) * 16 * 8,
        scheduling_policy=rng.choice(["continuous", "continuous", "static"]),
        vocab=12,
    )
    prefixes = [[rng.randrange(12) for _ in range(rng.randrange(1, 70))] for _ in range(4)]
    live, done = [], []
    for _ in range(requests):
        base = rng.choice(prefixes)
        prompt = base[: rng.randrange(1, len(base) + 1)] + [rng.randrange(12) for _ in range(rng.randrange(20))]
        params = SamplingParams(
            temperature=0,
            max_tokens=rng.randrange(1, 30),
            n=rng.choice([1, 1, 1, 3]),
            prompt_logprobs=rng.choice([None, None, None, 0]),
        )
        salt, priority = rng.choice([None, None, "salt"]), rng.choice([0, 0, 0, -1, 5])
        live.append((prompt, queue(engine, prompt, params, cache_salt=salt, priority=priority)))
        for _ in range(rng.randrange(6)):
            engine.step()
        if rng.random() < 0.2:
            engine.abort(rng.choice(live)[1])
        done += [each for each in live if each[1].finished]
        live = [each for each in live if not each[1].finished]
        engine.cache.check()
    run(engine, [group for _, group in live])
    check_idle(engine)
    for prompt, group in done + live:
        output = group.output()
        for completion in output.outputs:
            assert completion.finish_reason in ("length", "abort")
            assert completion.token_ids == oracle.answer(prompt, len(completion.token_ids))
            if completion.finish_reason == "length":
                assert len(completion.token_ids) == group.request.max_tokens
        if output.prompt_logprobs is not None and output.outputs[0].finish_reason == "length":
            assert [next(iter(each)) for each in output.prompt_logprobs[1:] if each] == prompt[1:]
    assert engine.scheduler.swap is None or engine.scheduler.swap.used == 0
    return engine.stats()


@pytest.mark.parametrize("caching", [True, False])
def test_random_load(caching: bool) -> None:
    stats = [soak(seed, 60, caching=caching) for seed in range(12)]
    assert sum(each.swaps for each in stats) > 0
    assert sum(each.preemptions - each.swaps for each in stats) > 0


@pytest.mark.slow
@pytest.mark.parametrize("caching", [True, False])
def test_random_load_for_long(caching: bool) -> None:
    for seed in range(100, 130):
        soak(seed, 300, caching=caching)
