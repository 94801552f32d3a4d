"""The models that are served: loaded when they are needed, unloaded when they are not."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from octavo.core.errors import MemoryPlanError, ModelNotFoundError
from octavo.core.memory import format_bytes
from octavo.engine.async_llm import AsyncLLM
from octavo.server.config import ModelSpec
from octavo.server.errors import ApiError
from octavo.server.memory import share_for

__all__ = ["NO_NAMES", "ModelRegistry", "ServedModel", "in_thread", "public_name"]

T = TypeVar("T")
logger = logging.getLogger("octavo.server")

NO_NAMES = ("dummy", "tgi")
"""What Hugging Face's clients send, and are told to send, where they know an address and no model."""

_MAX_NAME = 256
_UNTRUE_NAME = re.compile(r"[\x00-\x1f\x7f\\]|(^|/)\.\.?(/|$)|^/|^~")


class ServedModel:
    """One model and its state.

    llm: None while it is not loaded. users: requests that hold it now. expires: when it is unloaded if nobody uses it,
    by time.monotonic(); None: never. created: when it was put up, seconds since the epoch. error: why it could not be
    loaded the last time. retiring: to be unloaded when its last user has gone.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.created = int(time.time())
        self.llm: AsyncLLM | None = None
        self.loading: asyncio.Task[AsyncLLM] | None = None
        self.users = 0
        self.last_used = time.monotonic()
        self.expires: float | None = None
        self.error: str | None = None
        self.retiring = False

    @property
    def name(self) -> str:
        return self.spec.names[0]

    @property
    def engine(self) -> AsyncLLM:
        """The loaded model, for those who hold it."""
        assert self.llm is not None, "a model is used without `use`"
        return self.llm

    @property
    def state(self) -> str:
        """loaded, loading, failed or unloaded."""
        if self.llm is not None:
            return "loaded"
        if self.loading is not None:
            return "loading"
        return "failed" if self.error else "unloaded"


class ModelRegistry:
    """Models by name. Lives in one event loop.

    keep_alive_s: a model that nobody has used for so long is unloaded, unless a request says otherwise; None: never.
    memory_bytes: for all that are loaded at one time. Where one more does not fit, those that nobody uses are unloaded,
    the one that was used longest ago first. None: what the machine has, checked when one is loaded.
    given: the models that it was made with; others may come and go.
    """

    def __init__(
        self,
        specs: Iterable[ModelSpec],
        *,
        keep_alive_s: float | None = None,
        memory_bytes: int | None = None,
        make: Callable[..., AsyncLLM] = AsyncLLM,
    ) -> None:
        """make: what loads one; called in a thread with the reference and the options of a spec."""
        self.keep_alive_s = keep_alive_s
        self.memory_bytes = memory_bytes
        self._make = make
        self.models: list[ServedModel] = []
        self._by_name: dict[str, ServedModel] = {}
        self._reaper: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()  # something expires before the reaper would look
        self._closed = False
        self._turn = asyncio.Lock()  # of loading: what one takes must be known before the next looks for room
        for spec in specs:
            self.add(spec)
        self.given = tuple(self.models)

    def add(self, spec: ModelSpec) -> ServedModel:
        """Put up one more model; it is loaded when it is first used. Raises ModelNotFoundError: a name is taken."""
        taken = [name for name in spec.names if name in self._by_name]
        if taken:
            raise ModelNotFoundError(f"two models are called {taken[0]!r}; give one another name (NAME=MODEL)")
        model = ServedModel(spec)
        self.models.append(model)
        self._by_name |= dict.fromkeys(spec.names, model)
        return model

    async def remove(self, model: ServedModel) -> None:
        """Take down a model that was added: unload it and forget its names. Raises ApiError 409: it is in use, or one
        of those that the server was started with."""
        if model in self.given:
            told = f"the server was started with {model.name}; start it without to delete it"
            raise ApiError(409, told, param="model", code="model_in_use")
        if model.users:
            told = f"{model.name} is in use; try again when its requests have ended"
            raise ApiError(409, told, param="model", code="model_in_use", retry_after_s=1)
        self.models.remove(model)
        for name in model.spec.names:
            del self._by_name[name]
        await self.unload(model)

    def find(self, name: str | None) -> ServedModel:
        """The model of a name; the first one for None and NO_NAMES. Raises ApiError 400 (it can be no name), 404 (not
        served)."""
        if name is None:
            return self.models[0]
        model = self._by_name.get(name, self.models[0] if name in NO_NAMES else None)
        if model is not None:
            return model
        if not name or len(name) > _MAX_NAME or _UNTRUE_NAME.search(name):
            raise ApiError(400, f"{name[:80]!r} cannot be the name of a model", param="model", code="invalid_model")
        known = ", ".join(self._by_name)
        raise ApiError(
            404, f"no model {name!r} is served here; there is: {known}", param="model", code="model_not_found"
        )

    @asynccontextmanager
    async def use(self, name: str | None, keep_alive_s: float | None = None) -> AsyncIterator[ServedModel]:
        """A loaded model, which stays loaded inside this context. keep_alive_s: how long it stays afterwards, at the
        least; infinity: for ever; None: the registry's.

        Raises ApiError (see `find`; 503: it cannot be loaded).
        """
        model = self.find(name)
        model.users += 1
        model.retiring = False
        try:
            if model.llm is None:
                await self._load_for_request(model)
            yield model
        finally:
            model.users -= 1
            self._touch(model, keep_alive_s)

    async def load(self, model: ServedModel) -> AsyncLLM:
        """Load a model, once for all who wait for it. Raises what AsyncLLM raises."""
        if model.llm is not None:
            return model.llm
        if model.loading is None:
            model.loading = asyncio.create_task(self._load(model))
        return await asyncio.shield(model.loading)

    async def unload(self, model: ServedModel) -> None:
        """End what still runs on it, and give back its memory."""
        llm, model.llm, model.expires = model.llm, None, None
        if llm is not None:
            await llm.close()

    async def retire(self, model: ServedModel) -> None:
        """Unload it now, or as soon as the requests that hold it have ended."""
        if model.users:
            model.retiring = True
        else:
            await self.unload(model)

    async def drain(self, timeout_s: float) -> bool:
        """Let what runs on any model end; whether all did in time."""
        loaded = [model.llm for model in self.models if model.llm is not None]
        return all(await asyncio.gather(*[llm.drain(timeout_s) for llm in loaded]))

    async def close(self) -> None:
        """Unload all."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        await asyncio.gather(*[self.unload(model) for model in self.models])

    async def _load_for_request(self, model: ServedModel) -> None:
        """Raises ApiError 503, which tells no path."""
        try:
            await self.load(model)
        except ApiError:
            raise
        except MemoryPlanError as error:
            raise ApiError(503, f"{model.name} does not fit: {error}", code="out_of_memory", retry_after_s=5) from None
        except Exception as error:
            logger.error("%s cannot be loaded: %s", model.name, error)
            told = f"{model.name} cannot be loaded; the server's log says why"
            raise ApiError(503, told, code="model_not_loaded", retry_after_s=5) from None

    async def _load(self, model: ServedModel) -> AsyncLLM:
        try:
            async with self._turn:
                options = {**model.spec.options, **await self._make_room(model)}
                llm = model.llm = await self._make_llm(model, options)
        except Exception as error:
            model.error = str(error)
            raise
        finally:
            model.loading = None
        model.error = None
        if self._closed:
            await self.unload(model)
            raise ApiError(503, "the server is shutting down", code="draining", retry_after_s=1)
        self._watch()  # whoever wanted it may have gone
        return llm

    async def _make_llm(self, model: ServedModel, options: dict[str, Any]) -> AsyncLLM:
        """Load it; while the machine has no room, unload what nobody uses. Raises what AsyncLLM raises."""
        while True:
            try:
                return await in_thread(lambda: self._make(model.spec.reference, **options))
            except MemoryPlanError:
                idle = self._least_used()
                if idle is None:
                    raise
                await self.unload(idle)

    async def _make_room(self, model: ServedModel) -> dict[str, Any]:
        """See to it that a model fits the budget; returns the options that this needs. Raises MemoryPlanError."""
        if self.memory_bytes is None:
            return {}
        most = self.memory_bytes
        others = [each.spec for each in self.models if each is not model and each.llm is None]
        while True:
            free = most - sum(each.llm.memory_plan.total_bytes for each in self.models if each.llm is not None)
            share = await in_thread(partial(share_for, model.spec, others, free))
            if share.total_bytes <= free and share.kv_cache_bytes:
                return {"kv_cache_bytes": share.kv_cache_bytes}
            idle = self._least_used()
            if idle is None:
                raise MemoryPlanError(
                    f"it needs {format_bytes(share.total_bytes)} and {format_bytes(max(0, free))} of "
                    f"{format_bytes(most)} are free, while other models are in use; raise --memory, or lower "
                    "--kv-cache-memory or --max-model-len"
                )
            await self.unload(idle)

    def _least_used(self) -> ServedModel | None:
        """The loaded model without users that has been idle for longest."""
        idle = [model for model in self.models if model.llm is not None and not model.users]
        return min(idle, key=lambda model: model.last_used, default=None)

    def _touch(self, model: ServedModel, keep_alive_s: float | None) -> None:
        model.last_used = time.monotonic()
        keep = self.keep_alive_s if keep_alive_s is None else keep_alive_s
        if model.retiring:
            keep = 0.0
        model.expires = None if keep is None or keep == math.inf else model.last_used + keep
        self._watch()

    def _watch(self) -> None:
        """See to it that what expires is unloaded in time."""
        self._sooner.set()
        if self._expiring() and (self._reaper is None or self._reaper.done()):
            self._reaper = asyncio.create_task(self._reap())

    async def _reap(self) -> None:
        """Unload models as their time comes; ends when none has one."""
        while expiring := self._expiring():
            self._sooner.clear()
            for expires, model in expiring:
                if expires <= time.monotonic() and not model.users:  # it may have come into use meanwhile
                    await self.unload(model)
            next_time = min((expires for expires, _ in self._expiring()), default=0.0)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._sooner.wait(), max(0.0, next_time - time.monotonic()))

    def _expiring(self) -> list[tuple[float, ServedModel]]:
        """Loaded models that have a time and that nobody uses; whoever uses one sets it anew in the end."""
        loaded = [model for model in self.models if model.llm is not None and not model.users]
        return [(model.expires, model) for model in loaded if model.expires is not None]


def public_name(reference: str) -> str:
    """What a model is called if nothing else is said: its reference, or the file's name without folder and ending."""
    if reference.lower().endswith(".gguf") or reference.startswith(("/", "./", "../", "~")):
        return Path(reference).name.removesuffix(".gguf").removesuffix(".GGUF")
    return reference


async def in_thread(function: Callable[[], T]) -> T:
    """Run it in a daemon thread, which a program that ends need not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(call: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            call(value)

    def run() -> None:
        with suppress(RuntimeError):  # the event loop is closed: the program ends, and nobody waits any more
            try:
                result = function()
            except BaseException as error:
                loop.call_soon_threadsafe(settle, future.set_exception, error)
            else:
                loop.call_soon_threadsafe(settle, future.set_result, result)

    threading.Thread(target=run, name="octavo-load", daemon=True).start()
    return await future
