"""Same request, same tokens, as a property: whatever the engine's settings, neighbours, arrivals, aborts, priorities,
caches (memory and disk), swapping and threads, token ids and log-probabilities are those of the request alone, bit for
bit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from helpers.engines import NATIVE, check_idle, engine_for, generate, load_tiny, queue, run
from octavo.cache.disk import DiskStore
from octavo.cache.disk_format import PageIdentity
from octavo.cache.tier import Tier
from octavo.core.config import EngineConfig
from octavo.core.outputs import CompletionOutput
from octavo.core.params import SamplingParams
from octavo.engine.contracts import EngineStats
from octavo.engine.runner import Runner
from octavo.engine.sequence import Group
from octavo.engine.step import Engine
from octavo.models.decoder import Model

pytestmark = pytest.mark.skipif(not NATIVE, reason="log-probabilities are bit-exact on the native backend only")

RNG = np.random.default_rng(5)
TRUNK = RNG.integers(0, 256, 70).tolist()
PROMPTS = [
    *[
        TRUNK[:n] + RNG.integers(0, 256, k).tolist()
        for n, k in [(70, 3), (70, 20), (40, 9), (33, 1), (32, 0), (16, 30)]
    ],
    *[RNG.integers(0, 256, n).tolist() for n in (1, 17, 64, 90)],
]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=14, logprobs=2),
    SamplingParams(temperature=0.9, top_p=0.95, seed=11, max_tokens=14, logprobs=2, repetition_penalty=1.1),
]


class Alone(dict[tuple[int, int], CompletionOutput]):
    """By prompt and parameters."""

    def __repr__(self) -> str:
        return "..."  # a failing example is long enough


@dataclass(frozen=True)
class Arrival:
    """A request, the steps that the engine makes before it comes, and after how many it is aborted (0: never)."""

    prompt: int
    params: int
    gap: int
    priority: int
    abort_after: int


@dataclass(frozen=True)
class Setting:
    """Of an engine; pages: as many more than one sequence needs. swap: pages of swap space."""

    threads: int
    pages: int
    chunk: int
    places: int
    caching: bool
    swap: int
    stall_ms: float | None
    policy: str
    disk: bool


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        prompt=st.integers(0, len(PROMPTS) - 1),
        params=st.integers(0, 1),
        gap=st.integers(0, 6),
        priority=st.sampled_from([0, 0, 0, -1, 1]),
        abort_after=st.sampled_from([0, 0, 0, 0, 2, 9]),
    ),
    min_size=3,
    max_size=12,
)
SETTINGS = st.builds(
    Setting,
    threads=st.sampled_from([1, 2, 3]),
    pages=st.sampled_from([0, 2, 6, 40]),
    chunk=st.sampled_from([6, 16, 31, 64, 200]),
    places=st.integers(1, 6),
    caching=st.booleans(),
    swap=st.sampled_from([0, 4, 40]),
    stall_ms=st.sampled_from([None, 0.01, 50.0]),
    policy=st.sampled_from(["continuous", "continuous", "static"]),
    disk=st.booleans(),
)


@pytest.fixture(scope="module")
def models(tiny_gguf: Callable[..., Path]) -> dict[int, Model]:
    path = tiny_gguf("gemma3", layers=3)
    return {threads: load_tiny(path, "native", threads) for threads in (1, 2, 3)}


@pytest.fixture(scope="module")
def alone(models: dict[int, Model]) -> Alone:
    """Each request on its own, the whole prompt in one step, nothing cached, one thread."""
    outputs = Alone()
    for p, prompt in enumerate(PROMPTS):
        for q, params in enumerate(PARAMS):
            engine = engine_for(models[1], enable_prefix_caching=False, max_num_batched_tokens=256)
            outputs[p, q] = generate(engine, [prompt], params)[0].outputs[0]
    return outputs


@contextmanager
def engine_with(model: Model, setting: Setting, directory: str | None) -> Iterator[Engine]:
    config = EngineConfig(
        max_model_len=112,
        num_pages=7 + setting.pages,
        block_size=16,
        max_num_seqs=min(setting.places, setting.chunk),
        max_num_batched_tokens=setting.chunk,
        enable_prefix_caching=setting.caching,
        kv_cache_dtype="float32",
        max_decode_stall_ms=setting.stall_ms,
        scheduling_policy=setting.policy,  # type: ignore[arg-type]
        swap_space_bytes=setting.swap * model.config.kv_page_bytes(16, "float32"),
    )
    kv = model.new_kv(config.num_pages, 16, "float32")
    tier = None
    if directory is not None and setting.caching:
        store = DiskStore(directory, 1 << 24)
        tier = Tier(store, identity, kv.page_parts, 16)
    plain = engine_for(model)
    engine = Engine(Runner(model, kv), config, plain.vocabulary, tier=tier)
    # So small a model computes anything sooner than it is copied or read; here that is to happen nevertheless.
    engine.scheduler.cost.prefill_s = lambda tokens, context=0: float("inf")  # type: ignore[method-assign]
    yield engine
    engine.close()


def identity(namespace: object) -> PageIdentity:
    return PageIdentity(
        model="tiny",
        producer="test",
        dtype="float32",
        page_size=16,
        layers=3,
        kv_heads=2,
        head_dim=16,
        salt=str(namespace),
    )


def play(engine: Engine, arrivals: list[Arrival], alone: Alone) -> EngineStats:
    groups: list[tuple[Arrival, Group]] = []
    for arrival in arrivals:
        for _ in range(arrival.gap):
            engine.step()
            engine.cache.check()
            for other, group in groups:
                if other.abort_after and group.version >= other.abort_after:
                    engine.abort(group)
        prompt, params = PROMPTS[arrival.prompt], PARAMS[arrival.params]
        groups.append((arrival, queue(engine, prompt, params, priority=arrival.priority)))
    run(engine, [group for _, group in groups])
    engine.cache.check()
    for arrival, group in groups:
        got, expected = group.output().outputs[0], alone[arrival.prompt, arrival.params]
        assert got.finish_reason in ("length", "abort")
        count = len(got.token_ids)
        assert got.finish_reason == "abort" or count == len(expected.token_ids)
        assert got.token_ids == expected.token_ids[:count]
        assert got.logprobs is not None
        assert expected.logprobs is not None
        assert got.logprobs == expected.logprobs[:count]
    check_idle(engine)
    return engine.stats()


def check_anyhow(
    models: dict[int, Model],
    alone: Alone,
    setting: Setting,
    arrivals: list[Arrival],
) -> list[EngineStats]:
    """One engine; with a disk, a second one after it, which finds what the first has left there."""
    with tempfile.TemporaryDirectory() as directory:
        stats = []
        for _ in range(2 if setting.disk else 1):
            with engine_with(models[setting.threads], setting, directory if setting.disk else None) as engine:
                stats.append(play(engine, arrivals, alone))
        return stats


ANYHOW = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])


@settings(ANYHOW, max_examples=40)
@given(setting=SETTINGS, arrivals=ARRIVALS)
def test_same_tokens_anyhow(models: dict[int, Model], alone: Alone, setting: Setting, arrivals: list[Arrival]) -> None:
    check_anyhow(models, alone, setting, arrivals)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(ANYHOW, max_examples=500)
@given(setting=SETTINGS, arrivals=ARRIVALS)
def test_same_tokens_anyhow_for_long(
    models: dict[int, Model], alone: Alone, setting: Setting, arrivals: list[Arrival]
) -> None:
    check_anyhow(models, alone, setting, arrivals)


def test_the_property_meets_what_it_is_about(models: dict[int, Model], alone: Alone) -> None:
    """Swaps, recomputation, hits in memory and on disk do happen under settings that the property draws."""
    arrivals = [Arrival(p % len(PROMPTS), p % 2, p % 3, 0, 0) for p in range(12)]
    tight = Setting(
        threads=2, pages=2, chunk=64, places=6, caching=True, swap=40, stall_ms=None, policy="continuous", disk=True
    )
    first, second = check_anyhow(models, alone, tight, arrivals)
    assert first.swaps > 0
    assert first.cache.hit_tokens > 0
    assert second.cache.disk_tokens > 0
    (plain,) = check_anyhow(models, alone, Setting(**vars(tight) | {"swap": 0, "disk": False}), arrivals)
    assert plain.preemptions > plain.swaps == 0
