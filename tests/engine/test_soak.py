"""Random load on a small pool: arrivals, aborts, priorities, shared prefixes, n > 1, preemption by swap and by
recompute. No leak, no wrong token."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.engines import NATIVE, check_idle, engine_for, load_tiny, oracle_engine, queue, run
from octavo.core.params import SamplingParams
from octavo.engine.contracts import EngineStats
from octavo.engine.sequence import Group


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


@pytest.mark.slow
@pytest.mark.skipif(not NATIVE, reason="the native extension is not built")
@pytest.mark.timeout(1500)
def test_ten_thousand_requests_on_a_real_model(real_model: Callable[[str], Path]) -> None:
    """Random aborts, priorities, salts and shared prefixes, a pool so small that sequences are preempted; requests that
    are repeated get the same tokens and log-probabilities every time."""
    rng = random.Random(0)
    model = load_tiny(real_model("SmolLM2-135M-Instruct.Q4_1.gguf"), "native")
    engine = engine_for(
        model,
        num_pages=30,
        max_model_len=160,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        kv_cache_dtype="float16",
        swap_space_bytes=10 * model.config.kv_page_bytes(16, "float16"),
    )
    trunks = [[rng.randrange(100, 40000) for _ in range(rng.choice([20, 33, 64, 90]))] for _ in range(8)]
    kinds = []
    for _ in range(250):
        trunk = rng.choice(trunks)
        prompt = trunk[: rng.choice([len(trunk), len(trunk) // 2])] + [rng.randrange(100, 40000) for _ in range(3)]
        sampled = (
            {"temperature": 0.8, "top_p": 0.9, "seed": rng.randrange(9)} if rng.random() < 0.3 else {"temperature": 0}
        )
        kinds.append((prompt, SamplingParams(max_tokens=rng.choice([1, 2, 3, 6, 20]), logprobs=0, **sampled)))
    expected: dict[int, object] = {}
    live: list[tuple[int, Group]] = []
    reasons: Counter[str] = Counter()

    def settle() -> None:
        for kind, group in [each for each in live if each[1].finished]:
            (output,) = group.output().outputs
            reasons[str(output.finish_reason)] += 1
            if output.finish_reason == "length":
                assert expected.setdefault(kind, (output.token_ids, output.logprobs)) == (
                    output.token_ids,
                    output.logprobs,
                )
        live[:] = [each for each in live if not each[1].finished]

    for _ in range(10_000):
        kind = rng.randrange(len(kinds))
        salt, priority = rng.choice([None, None, None, "salt"]), rng.choice([0, 0, 0, 0, -1, 1])
        live.append((kind, queue(engine, *kinds[kind], cache_salt=salt, priority=priority)))
        if rng.random() < 0.05:
            engine.abort(rng.choice(live)[1])
        while len(live) > rng.randrange(4, 40):
            engine.step()
            settle()
    run(engine, [group for _, group in live])
    settle()
    check_idle(engine)
    stats = engine.stats()
    assert stats.preemptions > stats.swaps > 0
    assert stats.cache.evicted_pages > 0
    assert stats.cache.hit_tokens > 0
    assert sum(reasons.values()) == 10_000
    assert set(reasons) == {"length", "abort"}
    assert engine.scheduler.swap is not None
    assert engine.scheduler.swap.used == 0
