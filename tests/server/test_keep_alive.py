"""When served models are unloaded, on engines that only count."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from octavo.core.errors import ModelNotFoundError
from octavo.server.config import ModelSpec
from octavo.server.errors import ApiError
from octavo.server.models import ModelRegistry, ServedModel


class Engine:
    """Loads at once, and knows whether it has been closed."""

    def __init__(self, reference: str, **options: Any) -> None:
        self.closed = asyncio.Event()

    async def close(self) -> None:
        self.closed.set()


def run(test: Callable[[ModelRegistry], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        made: Any = Engine
        registry = ModelRegistry([ModelSpec("a", ("a",)), ModelSpec("b", ("b",))], make=made, **options)
        try:
            await asyncio.wait_for(test(registry), 30)
        finally:
            await registry.close()

    asyncio.run(main())


async def use(registry: ModelRegistry, name: str, keep_alive_s: float | None = None) -> Engine:
    async with registry.use(name, keep_alive_s) as model:
        engine: Any = model.engine
    return engine


def test_a_model_stays_unless_a_time_is_given() -> None:
    async def test(registry: ModelRegistry) -> None:
        await use(registry, "a")
        await use(registry, "b", 0.0)
        assert (registry.find("a").expires, registry.find("a").state) == (None, "loaded")

    run(test)


def test_nothing_is_kept_after_its_time() -> None:
    async def test(registry: ModelRegistry) -> None:
        engine = await use(registry, "a", 0.0)
        await engine.closed.wait()
        assert registry.find("a").state == "unloaded"

    run(test, keep_alive_s=1e6)


def test_a_short_time_does_not_wait_for_a_long_one() -> None:
    """The first model is to be unloaded in days, the second at once."""

    async def test(registry: ModelRegistry) -> None:
        kept = await use(registry, "a", 1e6)
        await asyncio.sleep(0)
        await (await use(registry, "b", 0.0)).closed.wait()
        assert not kept.closed.is_set()

    run(test)


def test_the_last_request_says_how_long() -> None:
    async def test(registry: ModelRegistry) -> None:
        await use(registry, "a", 1e6)
        engine = await use(registry, "a", 0.0)
        await engine.closed.wait()
        again = await use(registry, "a", math.inf)
        assert again is not engine
        assert registry.find("a").expires is None

    run(test)


def test_a_model_in_use_outlives_its_time() -> None:
    async def test(registry: ModelRegistry) -> None:
        async with registry.use("a") as model:
            engine = await use(registry, "a", 0.0)
            for _ in range(3):
                await asyncio.sleep(0)
            assert model.llm is not None
        assert not engine.closed.is_set(), "the last one to go said nothing, so the registry's time holds"

    run(test)


def test_a_retired_model_goes_when_its_last_user_has_gone() -> None:
    async def test(registry: ModelRegistry) -> None:
        async with registry.use("a", math.inf) as model:
            engine: Any = model.engine
            await registry.retire(model)
            assert not engine.closed.is_set()
        await engine.closed.wait()
        idle = await use(registry, "a")
        await registry.retire(registry.find("a"))
        assert idle.closed.is_set()

    run(test)


def test_who_comes_after_it_was_retired_keeps_it() -> None:
    async def test(registry: ModelRegistry) -> None:
        async with registry.use("a") as model:
            await registry.retire(model)
            await use(registry, "a")
        assert registry.find("a").state == "loaded"
        assert registry.find("a").expires is None

    run(test)


def test_a_model_that_nobody_waits_for_any_more_is_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(registry: ModelRegistry) -> None:
        waiting = asyncio.create_task(use(registry, "a", 0.0))
        while registry.find("a").loading is None:
            await asyncio.sleep(0)
        waiting.cancel()
        while (model := registry.find("a")).loading is not None or model.llm is not None:
            await asyncio.sleep(0.001)
        assert model.expires is None

    run(test)


def test_added_models_can_be_removed_and_given_ones_not() -> None:
    async def test(registry: ModelRegistry) -> None:
        added = registry.add(ModelSpec("c", ("c", "d")))
        with pytest.raises(ModelNotFoundError, match="two models are called 'd'"):
            registry.add(ModelSpec("e", ("e", "d")))
        async with registry.use("d"):
            await refused(registry, added, "c is in use")
        engine: Any = added.engine
        await registry.remove(added)
        assert engine.closed.is_set()
        with pytest.raises(ApiError, match="no model 'd'"):
            registry.find("d")
        await refused(registry, registry.find("b"), "the server was started with b")

    async def refused(registry: ModelRegistry, model: ServedModel, words: str) -> None:
        with pytest.raises(ApiError, match=words) as caught:
            await registry.remove(model)
        assert caught.value.problem.status == 409

    run(test)
