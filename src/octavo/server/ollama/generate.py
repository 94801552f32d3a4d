"""POST /api/generate and /api/chat."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET, UnsetType

from octavo.core.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from octavo.engine.async_llm import AsyncLLM
from octavo.server.errors import ApiError
from octavo.server.generation import Generation, State, Work, off_loop
from octavo.server.http import NDJSON, Call, Reply, Stream
from octavo.server.ollama import line, stream_error
from octavo.server.ollama.durations import keep_alive_s
from octavo.server.ollama.names import find_model
from octavo.server.ollama.options import sampling_params, template_kwargs
from octavo.server.ollama.schema import (
    ChatLine,
    ChatRequest,
    DoneReason,
    Generated,
    GenerateLine,
    GenerateRequest,
    GenerationRequest,
    OutputMessage,
)
from octavo.server.openai.logprobs import chat_logprobs
from octavo.server.openai.schema import TokenLogprob

__all__ = ["chat", "generate", "now"]


async def generate(call: Call, body: GenerateRequest) -> Reply | Stream:
    answer = _Answer(call, body, lambda text, common: GenerateLine(response=text, **common))
    if not body.prompt:
        return await answer.none()
    llm = await answer.use_model()
    return await answer.to(await _prompt(llm, body, body.prompt))


async def chat(call: Call, body: ChatRequest) -> Reply | Stream:
    answer = _Answer(call, body, lambda text, common: ChatLine(message=OutputMessage("assistant", text), **common))
    if not body.messages:
        return await answer.none()
    llm = await answer.use_model()
    turns = [{"role": message.role, "content": message.content or ""} for message in body.messages]
    return await answer.to(await _conversation(llm, body, turns))


def now() -> str:
    """The time as Go's programs write it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


async def _prompt(llm: AsyncLLM, body: GenerateRequest, prompt: str) -> list[int]:
    """Token ids of a prompt: as it is, or as a message. Models without a chat template continue it."""
    if body.raw:
        for name in ("system", "think"):
            if getattr(body, name):
                told = f"{name} has no meaning with raw: true, which uses no chat template"
                raise ApiError(400, told, param=name, code="invalid_value")
        return await off_loop(len(prompt), lambda: llm.tokenizer.encode(prompt, parse_special=True))
    turns = [{"role": "user", "content": prompt}]
    if body.system:
        turns.insert(0, {"role": "system", "content": body.system})
    elif not llm.chat_template.available:
        template_kwargs(llm, body)  # refuses what needs one
        return await off_loop(len(prompt), lambda: llm.tokenizer.encode(prompt))
    return await _conversation(llm, body, turns)


async def _conversation(llm: AsyncLLM, body: GenerationRequest, turns: Sequence[Mapping[str, str]]) -> list[int]:
    kwargs, size = template_kwargs(llm, body), sum(len(turn["content"]) for turn in turns)
    return await off_loop(size, lambda: llm.encode_chat(turns, chat_template_kwargs=kwargs))


class _Answer:
    """The answer to one request, whole or in lines."""

    def __init__(self, call: Call, body: GenerationRequest, spell: Callable[[str, dict[str, Any]], Generated]) -> None:
        """spell: makes a line of its text and what all lines have."""
        self._call, self._body, self._spell = call, body, spell
        self._keep_alive_s = keep_alive_s(body.keep_alive)
        self._load_s = 0.0
        self._tokens = 0
        self._llm: AsyncLLM

    async def use_model(self) -> AsyncLLM:
        """The model, loaded until the request has ended."""
        started = time.monotonic()
        model = await find_model(self._call, self._body.model)
        self._llm = (await self._call.use_model(model.name, self._keep_alive_s)).engine
        self._load_s = time.monotonic() - started
        return self._llm

    async def none(self) -> Reply:
        """Nothing was asked: the model is loaded, or unloaded."""
        reason: DoneReason = "load"
        if self._keep_alive_s == 0:
            reason = "unload"
            await self._call.service.registry.retire(await find_model(self._call, self._body.model))
        else:
            await self.use_model()
        return Reply(self._line("", done=True, done_reason=reason))

    async def to(self, ids: list[int]) -> Reply | Stream:
        """What the model makes of a prompt."""
        work = Work([ids], sampling_params(self._llm, self._body, len(ids)))
        streams = self._body.stream is not False
        generation = Generation.start(self._call, self._llm, work, "delta" if streams else "final")
        if streams:
            states = generation.states()
            first = await anext(states)
            return Stream(self._lines(first, states), stream_error, NDJSON)
        (output,) = await generation.whole()
        (each,) = output.outputs
        self._tokens = len(each.token_ids)
        return Reply(self._end(output, each, each.text, logprobs=self._listed(each.logprobs)))

    async def _lines(self, first: State, rest: AsyncIterator[State]) -> AsyncIterator[bytes]:
        """What one step brought is one piece; the end is a line of its own, without text."""
        yield self._news(first[1])
        async for _, output in rest:
            piece = self._news(output)
            if piece:
                yield piece

    def _news(self, output: RequestOutput) -> bytes:
        pieces = []
        for each in output.outputs:
            self._tokens += len(each.token_ids)
            if each.text or each.logprobs:
                pieces.append(line(self._line(each.text, done=False, logprobs=self._listed(each.logprobs))))
            if each.finish_reason is not None:
                pieces.append(line(self._end(output, each, "")))
        return b"".join(pieces)

    def _end(self, output: RequestOutput, each: CompletionOutput, text: str, **more: Any) -> Generated:
        metrics = output.metrics
        return self._line(
            text,
            done=True,
            done_reason="length" if each.finish_reason == "length" else "stop",
            total_duration=_ns(self._call.record.elapsed()),
            load_duration=_ns(self._load_s),
            prompt_eval_count=len(output.prompt_token_ids),
            prompt_eval_duration=_ns(metrics.prefill_s),
            eval_count=self._tokens,
            eval_duration=_ns(metrics.decode_s),
            **more,
        )

    def _line(self, text: str, **fields: Any) -> Generated:
        return self._spell(text, {"model": self._body.model, "created_at": now(), **fields})

    def _listed(self, entries: list[TokenLogprobs] | None) -> list[TokenLogprob] | UnsetType:
        if entries is None:
            return UNSET
        return chat_logprobs(entries, self._body.top_logprobs or 0, self._llm.tokenizer).content


def _ns(seconds: float | None) -> int:
    return round((seconds or 0.0) * 1e9)
