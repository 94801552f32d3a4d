"""The prompts of one HTTP request on their engine: all APIs generate through this."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from octavo.core.outputs import RequestOutput
from octavo.core.params import SamplingParams
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.stream import OutputKind, RequestStream
from octavo.server.errors import RETRY_AFTER_S, ApiError
from octavo.server.http import Call
from octavo.server.meters import Progress
from octavo.server.record import Record

__all__ = ["Generation", "State", "Work", "off_loop"]

T = TypeVar("T")
State = tuple[int, RequestOutput]
"""Index of the prompt, and what has come to it."""

logger = logging.getLogger("octavo.server")

# Encoding so many characters takes a millisecond or two; more is done beside the event loop.
_LONG_TEXT = 8192


@dataclass(frozen=True)
class Work:
    """What the engine is asked. prompts: token ids of each (ChatTokens for a chat)."""

    prompts: Sequence[list[int]]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None


class Generation:
    """Prompts that have been queued together. What has not ended when their HTTP request does is ended.

    cancelled: whether `cancel` has been called.
    """

    def __init__(self, llm: AsyncLLM, streams: Sequence[RequestStream], record: Record, progress: Progress) -> None:
        self._llm, self._streams, self._record, self._progress = llm, streams, record, progress
        self.cancelled = False

    @classmethod
    def start(cls, call: Call, llm: AsyncLLM, work: Work, kind: OutputKind) -> Generation:
        """Queue all prompts. Raises what AsyncLLM.generate raises."""
        record = call.record
        streams: list[RequestStream] = []
        for index, ids in enumerate(work.prompts):
            stream = llm.generate(
                ids,
                work.params,
                request_id=record.id if len(work.prompts) == 1 else f"{record.id}-{index}",
                priority=work.priority,
                cache_salt=work.cache_salt,
                output_kind=kind,
            )
            call.stack.push_async_callback(stream.aclose)
            streams.append(stream)
        record.prompt_tokens += sum(map(len, work.prompts))
        meters = call.service.meters.of(record.model or "")
        progress = Progress(record, meters, len(streams), len(streams) * work.params.n)
        call.stack.callback(progress.leave)
        return cls(llm, streams, record, progress)

    async def cancel(self) -> bool:
        """End it from outside: whoever reads it gets ApiError 409. False if all of it had ended already."""
        self.cancelled = True
        ended = [await self._llm.abort(stream.request_id) for stream in self._streams]
        self.cancelled = any(ended)
        return self.cancelled

    async def whole(self) -> list[RequestOutput]:
        """The end of each prompt. Raises ApiError if one fails."""
        results = {index: output async for index, output in self.states()}
        return [results[index] for index in range(len(results))]

    async def states(self) -> AsyncIterator[State]:
        """States of all prompts as they come. Raises ApiError as soon as one fails."""
        states = _single(self._streams[0]) if len(self._streams) == 1 else _merge(self._streams)
        async for state in states:
            self._progress.take(*state)
            if state[1].finished:
                self._note(state[1])
            yield state

    def _note(self, output: RequestOutput) -> None:
        record = self._record
        record.outputs.append(output)
        record.cached_tokens += output.metrics.cached_prompt_tokens
        if output.error is not None or any(each.finish_reason == "abort" for each in output.outputs):
            raise self._failure(output)

    def _failure(self, output: RequestOutput) -> ApiError:
        reasons = {each.finish_reason for each in output.outputs}
        if "timeout" in reasons:
            return ApiError(503, output.error or "", code="queue_timeout", retry_after_s=RETRY_AFTER_S)
        param = _asked_for(output.error or "")
        if "error" in reasons and param is not None:
            return ApiError(400, output.error or "", param=param, code="invalid_value")
        if "error" in reasons:
            logger.error("request %s failed: %s", output.request_id, output.error)
            return ApiError(500, "the engine failed on this request; the server's log says why", code="engine_error")
        if self.cancelled:
            return ApiError(409, "this response has been cancelled", code="cancelled")
        return ApiError(503, "the server has ended this request", code="aborted", retry_after_s=RETRY_AFTER_S)


def _asked_for(error: str) -> str | None:
    """The parameter that leaves no token to sample, which is known only when the logits are (SamplingError)."""
    found = re.search(r"\b(repetition_penalty|min_tokens) \S+ (takes logits past|forbids to end)", error)
    return None if found is None else found[1]


async def _single(stream: RequestStream) -> AsyncIterator[State]:
    async for output in stream:
        yield 0, output


async def _merge(streams: Sequence[RequestStream]) -> AsyncIterator[State]:
    """States of several streams as they come."""
    waiting = {asyncio.ensure_future(anext(stream)): index for index, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = waiting.pop(task)
                output = task.result()
                if not output.finished:
                    waiting[asyncio.ensure_future(anext(streams[index]))] = index
                yield index, output
    finally:
        for task in waiting:
            task.cancel()


async def off_loop(size: float, function: Callable[[], T]) -> T:
    """The function's result; where `size` characters are many, of a thread, so that streams go on meanwhile."""
    return await asyncio.to_thread(function) if size > _LONG_TEXT else function()
