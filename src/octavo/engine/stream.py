"""The output of one request while it grows: what a caller of `AsyncLLM` iterates over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Literal, Self, get_args

from octavo.core.errors import RequestError
from octavo.core.outputs import CompletionOutput, RequestMetrics, RequestOutput
from octavo.engine.loop import EngineLoop
from octavo.engine.mailbox import Mailbox
from octavo.engine.sequence import Group, Sequence

__all__ = ["OutputKind", "RequestStream"]

OutputKind = Literal["cumulative", "delta", "final"]
"""What each state of a stream holds: all there is so far, what is new since the state before, or the end alone."""


class RequestStream(AsyncIterator[RequestOutput]):
    """The states of a request, the last one `finished`.

    A state comes whenever there is news; what has come while nobody looked is one state. One task iterates at a time,
    in any event loop. Leaving early ends the request: an exception or a cancellation while waiting, `aclose`, and
    dropping the last reference, as `break` does with `async for ... in llm.generate(...)`. The stream keeps its
    engine alive.
    """

    def __init__(self, loop: EngineLoop, group: Group, kind: OutputKind, *, keep: object = None) -> None:
        """Queues the prepared group. keep: held as long as the stream is.

        Raises RequestError (kind is none, or the id is in use), QueueFullError, EngineClosedError.
        """
        if kind not in get_args(OutputKind):
            raise RequestError(f"output_kind must be one of {', '.join(get_args(OutputKind))}, not {kind!r}")
        self._loop, self._keep = loop, keep
        self._box = Mailbox(group, final=kind == "final")
        self._news = _News(group) if kind == "delta" else None
        self._seen = 0  # version of the group in the last state
        self._done = True  # until it is queued, there is nothing to end
        loop.add(self._box)
        self._done = False

    @property
    def request_id(self) -> str:
        return self._box.group.request.request_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        while not self._done:
            state = self._take()
            if state is not None:
                return state
            try:
                await self._box.wait(self._seen)
            except asyncio.CancelledError:
                self._leave()
                raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the request, if it has not ended; there are no more states."""
        self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def __del__(self) -> None:
        if not getattr(self, "_done", True):
            self._leave()

    def _leave(self) -> None:
        if not self._done:
            self._done = True
            self._loop.abort(self._box.group)

    def _take(self) -> RequestOutput | None:
        """The state that the last step left; None if it has been given already."""
        group, box = self._box.group, self._box
        if group.version == self._seen:
            return None
        with self._loop.results:
            self._seen, finished = group.version, group.finished
            if box.final and not finished:
                return None
            self._done = finished
            return group.output() if self._news is None else self._news.take()


class _News:
    """What has come to a group since the last state. Costs what is new, however much there is already."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._marks = [_Mark(sequence) for sequence in group.sequences]
        self._prompt_told = False

    def take(self) -> RequestOutput:
        """A state whose outputs are those completions to which something has come.

        What belongs to the prompt, and the metrics of all but the last state, are the request's own, not copies;
        prompt_logprobs are in the first state alone.
        """
        group = self._group
        prompt_logprobs = None if self._prompt_told else group.prompt_logprobs
        self._prompt_told = True
        return RequestOutput(
            request_id=group.request.request_id,
            prompt=group.request.prompt,
            prompt_token_ids=group.request.prompt_token_ids,
            outputs=[output for mark in self._marks if (output := mark.take()) is not None],
            finished=group.finished,
            metrics=RequestMetrics(**vars(group.metrics)) if group.finished else group.metrics,
            prompt_logprobs=prompt_logprobs,
            error=group.error,
        )


class _Mark:
    """How far one completion has been told. tokens: prompt included. chars: of its text."""

    __slots__ = ("chars", "ended", "sequence", "tokens")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.tokens, self.chars, self.ended = sequence.prompt_length, 0, False

    def take(self) -> CompletionOutput | None:
        """What has come since; None if nothing has. cumulative_logprob is that of the whole."""
        sequence, start = self.sequence, self.tokens
        end = len(sequence.tokens)
        if self.ended or (end == start and not sequence.finished):
            return None
        text = sequence.text.since(self.chars)
        self.tokens, self.chars, self.ended = end, self.chars + len(text), sequence.finished
        told = start - sequence.prompt_length
        logprobs = sequence.logprobs
        return CompletionOutput(
            index=sequence.index,
            text=text,
            token_ids=sequence.tokens[start:].tolist(),
            logprobs=None if logprobs is None else logprobs[told:],
            cumulative_logprob=None if logprobs is None else sequence.logprob_sum,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
        )
