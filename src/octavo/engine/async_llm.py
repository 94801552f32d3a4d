"""`AsyncLLM`: a model in this process, for programs that serve many callers at once.

import asyncio
from octavo import AsyncLLM, SamplingParams

async def main():
    async with await AsyncLLM.load("smollm2") as llm:
        async for output in llm.generate("The capital of France is", SamplingParams(temperature=0)):
            print(output.outputs[0].text)

asyncio.run(main())
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import EngineClosedError, RequestError
from octavo.core.params import SamplingParams
from octavo.engine.base import BaseLLM
from octavo.engine.embedding import Embedder, Pooling
from octavo.engine.health import DEFAULT_STALL_AFTER_S, Health
from octavo.engine.inputs import Message, Prompt, PromptInput, pair_params, parse
from octavo.engine.loop import EngineLoop
from octavo.engine.stream import OutputKind, RequestStream

__all__ = ["AsyncLLM"]

T = TypeVar("T")


class AsyncLLM(BaseLLM):
    """A loaded model and a thread that runs its engine while there is work.

    The arguments are those of `LLM`; loading takes its time, so a program whose event loop runs already uses `load`.
    Requests may come from any number of event loops and threads; all share the engine's steps. Close it, or use it in
    an `async with` statement, to give back the memory.

    A request that fails on the way, or waits too long, does not raise: its last state has finish_reason "error" or
    "timeout" and says why in `error`, and the engine goes on with the others.
    """

    @classmethod
    async def load(cls, model: Any, **options: Any) -> Self:
        """`AsyncLLM(model, **options)` without holding up the event loop meanwhile."""
        return await asyncio.to_thread(cls, model, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None:
            loop.stop()

    def _start(self) -> None:
        self._loop = EngineLoop(self._engine)
        self._embedder: Embedder | None = None

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        queue_timeout_s: float | None = None,
        cache_salt: str | None = None,
        output_kind: OutputKind = "cumulative",
    ) -> RequestStream:
        """Continue one prompt: an asynchronous iterator over the request's states, the last one `finished`.

        prompt, sampling_params: as in `LLM.generate`. Text is encoded here; a program that is given very long ones
            may encode them in a thread of its own and pass the ids.
        request_id: for `abort`; must differ from those that run. None: the number of the request.
        priority: smaller runs first, and pushes out running ones.
        queue_timeout_s: it ends with "timeout" if it has not been started by then; None: the engine's limit.
        cache_salt: cached prefixes are shared among requests of the same salt; may also stand in the prompt's dict.
        output_kind: "cumulative": each state holds all there is so far. "delta": what is new since the last state,
            for few microseconds a token however long the answer is; its outputs are the completions that have grown.
            "final": one state, at the end.

        The request is queued at once, and ends early when the iterator is left (see RequestStream).
        Raises, before anything is queued: RequestError and its children (it cannot be served as asked, or its id is in
        use), QueueFullError (max_waiting requests wait), EngineClosedError (draining, closed, or failed).
        """
        inputs = parse(prompt)
        if len(inputs) != 1:
            raise RequestError(f"generate takes one prompt, not {len(inputs)}; call it once for each")
        given = inputs[0] if cache_salt is None else _salted(inputs[0], cache_salt)
        (params,) = pair_params(sampling_params, 1)
        group = self._prepare_one(
            given, params, request_id=request_id, priority=priority, queue_timeout_s=queue_timeout_s
        )
        return RequestStream(self._loop, group, output_kind, keep=self)

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        priority: int = 0,
        queue_timeout_s: float | None = None,
        cache_salt: str | None = None,
        output_kind: OutputKind = "cumulative",
    ) -> RequestStream:
        """Answer one conversation, a list of {"role": ..., "content": ...}.

        See `encode_chat` for the arguments of the template and `generate` for the rest.
        """
        ids = self.encode_chat(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
        )
        return self.generate(
            ids,
            sampling_params,
            request_id=request_id,
            priority=priority,
            queue_timeout_s=queue_timeout_s,
            cache_salt=cache_salt,
            output_kind=output_kind,
        )

    async def embed(self, prompts: Sequence[Sequence[int]], *, pooling: Pooling = "mean") -> list[NDArray[np.float32]]:
        """Texts, as token ids, as vectors f32 [H] of length 1: what the last layer makes of them (engine/embedding.py).

        pooling: "mean" of all tokens, or "last". Computed between the steps of requests that run; giving up ends it.
        Raises RequestError, ContextLengthError: before anything is computed; EngineClosedError.
        """
        loaded = self._open()
        if self._embedder is None:
            self._embedder = Embedder(self._engine, loaded.model, loaded.kv)
        job = self._embedder.job(prompts, pooling)
        try:
            while not await _done(self._loop.call(lambda engine: job.advance())):
                pass
        finally:
            with suppress(EngineClosedError):
                self._loop.call(lambda engine: job.close())
        return job.results

    async def abort(self, request_id: str) -> bool:
        """End a request; its stream ends with finish_reason "abort". False if no request of that id runs or waits.

        Its pages are free when this returns, after the step that runs now.
        """
        self._open()
        return self._loop.find(request_id) is not None and await _done(self._loop.abort_id(request_id))

    async def pin(self, prompt: Prompt) -> int:
        """Keep the KV of a prompt's full pages in memory until `unpin`, whatever else needs room; see `LLM.pin`."""
        ids, salt = self._prefix(prompt)
        return await _done(self._loop.call(lambda engine: engine.pin(ids, salt)))

    async def unpin(self, prompt: Prompt) -> bool:
        """Let a pinned prompt's pages be evicted again; False if it is not pinned."""
        ids, salt = self._prefix(prompt)
        return await _done(self._loop.call(lambda engine: engine.unpin(ids, salt)))

    async def reset_prefix_cache(self) -> int:
        """Forget every cached page that no running request uses, after the present step; returns how many."""
        self._open()
        return await _done(self._loop.call(lambda engine: engine.reset_prefix_cache()))

    def health(self, stall_after_s: float = DEFAULT_STALL_AFTER_S) -> Health:
        """Whether it serves, or why not. Never waits, and may be asked when it has been closed or has failed.

        stall_after_s: a step that has run for longer counts as stalled.
        """
        return self._loop.health(stall_after_s)

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Refuse new requests with EngineClosedError, and wait until those that run or wait have ended.

        Returns True if all have. After timeout_s the rest is ended with finish_reason "abort", and it returns False.
        """
        self._open()
        try:
            await asyncio.wait_for(_done(self._loop.drain()), timeout_s)
        except TimeoutError:
            self._loop.abort_all()
            return False
        return True

    async def close(self) -> None:
        """End every request with "abort" after the present step, then the thread, and let go of weights and KV.

        May be called twice; what needs the engine raises EngineClosedError afterwards.
        """
        self._loop.stop()
        await _done(self._loop.ended)
        self._loop.join()
        self._embedder = None
        self._release()


def _salted(prompt: PromptInput, salt: str) -> PromptInput:
    if not isinstance(salt, str):
        raise RequestError(f"cache_salt must be text, not {type(salt).__name__}")
    if prompt.cache_salt not in (None, salt):
        raise RequestError(f"cache_salt is {salt!r}, and {prompt.cache_salt!r} in the prompt's dict; give one of them")
    return replace(prompt, cache_salt=salt)


async def _done(future: Future[T]) -> T:
    """The result of a future of the engine's thread; giving up on it leaves it as it is."""
    return await asyncio.shield(asyncio.wrap_future(future))
