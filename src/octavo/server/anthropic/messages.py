"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from octavo.core.outputs import CompletionOutput, RequestOutput
from octavo.core.params import SamplingParams
from octavo.engine.async_llm import AsyncLLM
from octavo.server.anthropic import stream_error
from octavo.server.anthropic.schema import (
    ContentText,
    CountRequest,
    InputTokens,
    Message,
    MessageRequest,
    StopReason,
    TextBlock,
    Usage,
)
from octavo.server.errors import ApiError
from octavo.server.generation import Generation, State, Work, off_loop
from octavo.server.http import Call, Reply, Stream
from octavo.server.params import params_of
from octavo.server.sse import named_event

__all__ = ["count_tokens", "create_message"]


async def create_message(call: Call, body: MessageRequest) -> Reply | Stream:
    call.record.user = body.metadata.user_id if body.metadata is not None else None
    llm = await _model(call, body.model)
    work = Work([await _encode(llm, body)], _params(body))
    answer = _Answer(f"msg_{call.record.id}", body.model, shows=body.max_tokens > 0)
    generation = Generation.start(call, llm, work, "delta" if body.stream else "final")
    if not body.stream:
        (output,) = await generation.whole()
        return Reply(answer.message(output))
    states = generation.states()
    first = await anext(states)
    return Stream(answer.events(first, states), stream_error)


async def count_tokens(call: Call, body: CountRequest) -> Reply:
    llm = await _model(call, body.model)
    return Reply(InputTokens(len(await _encode(llm, body))))


async def _model(call: Call, name: str) -> AsyncLLM:
    call.extra_headers.append((b"request-id", call.record.id.encode()))
    return (await call.use_model(name)).engine


def _params(body: MessageRequest) -> SamplingParams:
    """max_tokens 0 computes one token, which is not shown: the prompt's last token is computed for one."""
    return params_of(
        {"stop": "stop_sequences"},
        max_tokens=body.max_tokens or 1,
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
    )


async def _encode(llm: AsyncLLM, body: CountRequest) -> list[int]:
    """Token ids of the conversation. Raises RequestError, ApiError (it ends with an empty turn of the assistant)."""
    turns = _turns(body)
    continued = bool(turns) and turns[-1]["role"] == "assistant"
    if continued and not any(part["text"].strip() for part in turns[-1]["content"]):
        told = "the last message is an empty one of the assistant, which cannot be continued; leave it out"
        raise ApiError(400, told, param="messages", code="invalid_value")
    size = sum(len(part["text"]) for turn in turns for part in turn["content"])
    return await off_loop(size, lambda: llm.encode_chat(turns, continue_final_message=continued))


def _turns(body: CountRequest) -> list[dict[str, Any]]:
    """The conversation as templates know it; system comes first, and no role twice in a row."""
    turns: list[dict[str, Any]] = []
    given = [(message.role, message.content) for message in body.messages]
    for role, content in [("system", body.system or []), *given] if body.system else given:
        parts = [TextBlock(content)] if isinstance(content, str) else content
        texts = [{"type": "text", "text": part.text} for part in parts]
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += texts
        else:
            turns.append({"role": role, "content": texts})
    return turns


class _Answer:
    """One request's answer, whole or as events. shows: whether there is text in it."""

    def __init__(self, name: str, model: str, *, shows: bool) -> None:
        self._name, self._model, self._shows = name, model, shows
        self._tokens = 0

    def message(self, output: RequestOutput) -> Message:
        (each,) = output.outputs
        self._count(each)
        reason, stop = self._end(each)
        return Message(
            id=self._name,
            content=[ContentText(each.text)] if self._shows else [],
            model=self._model,
            stop_reason=reason,
            stop_sequence=stop,
            usage=self._usage(output),
        )

    async def events(self, first: State, rest: AsyncIterator[State]) -> AsyncIterator[bytes]:
        """Server-sent events; what one step brought is one piece."""
        yield self._opening(first[1]) + self._news(first[1])
        async for _, output in rest:
            piece = self._news(output)
            if piece:
                yield piece

    def _opening(self, output: RequestOutput) -> bytes:
        message = Message(
            id=self._name,
            content=[],
            model=self._model,
            stop_reason=None,
            stop_sequence=None,
            usage=self._usage(output),
        )
        start = _event("message_start", message=message)
        block = _event("content_block_start", index=0, content_block=ContentText("")) if self._shows else b""
        return start + block + _event("ping")

    def _news(self, output: RequestOutput) -> bytes:
        """The events of one state: its text, and what closes the message if it has ended."""
        pieces = []
        for each in output.outputs:
            self._count(each)
            if each.text and self._shows:
                delta = {"type": "text_delta", "text": each.text}
                pieces.append(_event("content_block_delta", index=0, delta=delta))
            if each.finish_reason is not None:
                reason, stop = self._end(each)
                if self._shows:
                    pieces.append(_event("content_block_stop", index=0))
                end = {"stop_reason": reason, "stop_sequence": stop}
                pieces += [_event("message_delta", delta=end, usage=self._usage(output)), _event("message_stop")]
        return b"".join(pieces)

    def _count(self, each: CompletionOutput) -> None:
        self._tokens += len(each.token_ids) if self._shows else 0

    def _end(self, each: CompletionOutput) -> tuple[StopReason, str | None]:
        if each.finish_reason == "length" or not self._shows:
            return "max_tokens", None
        if isinstance(each.stop_reason, str):
            return "stop_sequence", each.stop_reason
        return "end_turn", None

    def _usage(self, output: RequestOutput) -> Usage:
        cached = output.metrics.cached_prompt_tokens
        return Usage(len(output.prompt_token_ids) - cached, 0, cached, self._tokens)


def _event(name: str, **content: Any) -> bytes:
    return named_event(name, {"type": name, **content})
