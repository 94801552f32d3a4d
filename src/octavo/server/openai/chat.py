"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from octavo.core.outputs import CompletionOutput, RequestOutput
from octavo.engine.async_llm import AsyncLLM
from octavo.server.errors import ApiError
from octavo.server.generation import Generation, State, Work
from octavo.server.http import Call, Refusal, Reply, Stream
from octavo.server.openai import stream_error
from octavo.server.openai.ending import ending
from octavo.server.openai.fields import StreamOptions, Usage
from octavo.server.openai.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.openai.prompts import encode_messages, refuse_request_template
from octavo.server.openai.sampling import LATER, REFUSED, check_salt, check_stream_options, sampling_params
from octavo.server.openai.schema import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatRequest,
    Delta,
    ResponseMessage,
)
from octavo.server.openai.usage import Tally, usage_of
from octavo.server.sse import DONE, event

__all__ = ["CHAT_REFUSED", "chat_completions"]

_TOOLS = "tools are not in this version"
_TEXT_ONLY = "models here read text only; nothing was fetched"

CHAT_REFUSED: dict[str, Refusal] = {
    **REFUSED,
    "tools": Refusal(_TOOLS, ([],)),
    "tool_choice": Refusal(_TOOLS, ("none", "auto")),
    "parallel_tool_calls": Refusal(_TOOLS, (True, False)),
    "functions": Refusal(_TOOLS, ([],)),
    "function_call": Refusal(_TOOLS, ("none", "auto")),
    "modalities": Refusal("models here write text only", (["text"],)),
    "audio": Refusal("models here write text only"),
    "prediction": Refusal("predicted outputs are not in this version"),
    "service_tier": Refusal("there is one tier", ("auto", "default")),
    "store": Refusal("chat completions are not stored; the Responses API stores", (False,)),
    "metadata": Refusal("chat completions are not stored", ({},)),
    "verbosity": Refusal("models here were not trained for it", ("medium",)),
    "web_search_options": Refusal("the server searches nothing"),
    "response_format.type=json_object": Refusal(LATER),
    "response_format.type=json_schema": Refusal(LATER),
    **{f"messages[].content[].type={kind}": Refusal(_TEXT_ONLY) for kind in ("image_url", "input_audio", "file")},
}


async def chat_completions(call: Call, body: ChatRequest) -> Reply | Stream:
    call.record.user = body.user
    refuse_request_template(call.service.config.allow_request_chat_template, body.chat_template)
    check_salt(body.cache_salt)
    check_stream_options(body)
    model = await call.use_model(body.model)
    llm = model.engine
    work = await _work(llm, body)
    chat = _Chat(call, llm, body, model.name if body.model is None else body.model)
    generation = Generation.start(call, llm, work, "delta" if body.stream else "final")
    if not body.stream:
        return Reply(chat.completion(await generation.whole()))
    states = generation.states()
    first = await anext(states)
    return Stream(chat.chunks(first, states), stream_error)


async def _work(llm: AsyncLLM, body: ChatRequest) -> Work:
    kwargs = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        kwargs["reasoning_effort"] = body.reasoning_effort
    params = sampling_params(body, max_tokens=_max_tokens(body), logprobs=_logprobs(body))
    ids = await encode_messages(
        llm,
        body.messages,
        chat_template=body.chat_template,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        chat_template_kwargs=kwargs,
    )
    return Work([ids], params, body.priority or 0, body.cache_salt)


def _max_tokens(body: ChatRequest) -> int | None:
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise ApiError(
            400,
            f"max_tokens is {body.max_tokens} and max_completion_tokens {body.max_completion_tokens}, and they mean "
            "the same; give one of them",
            param="max_completion_tokens",
            code="invalid_value",
        )
    return body.max_completion_tokens if body.max_tokens is None else body.max_tokens


def _logprobs(body: ChatRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs", code="invalid_value")
    return None


@dataclass(frozen=True)
class _Chat:
    """One request's answer, whole or in chunks."""

    call: Call
    llm: AsyncLLM
    body: ChatRequest
    model: str

    def completion(self, outputs: list[RequestOutput]) -> ChatCompletion:
        (output,) = outputs
        body = self.body
        return ChatCompletion(
            id=self.call.new_id("chatcmpl"),
            created=int(time.time()),
            model=self.model,
            choices=[self._choice(each) for each in output.outputs],
            usage=usage_of(outputs),
            prompt_logprobs=UNSET if output.prompt_logprobs is None else prompt_logprobs(output.prompt_logprobs),
            prompt_token_ids=output.prompt_token_ids if body.return_token_ids else UNSET,
        )

    async def chunks(self, first: State, rest: AsyncIterator[State]) -> AsyncIterator[bytes]:
        """Server-sent events; what one step brought is one piece."""
        body, tally = self.body, Tally()
        options = body.stream_options or StreamOptions()
        make = _Maker(self.call.new_id("chatcmpl"), int(time.time()), self.model)
        counted = options.include_usage or options.continuous_usage_stats
        tally.add(*first)
        if counted:
            make.usage = tally.usage() if options.continuous_usage_stats else None
        ids = first[1].prompt_token_ids if body.return_token_ids else UNSET
        roles = [ChatChunkChoice(index=i, delta=Delta(role="assistant", content="")) for i in range(body.n or 1)]
        yield b"".join([*[make(role, ids) for role in roles], *self._events(make, first[1])])
        async for state in rest:
            tally.add(*state)
            if options.continuous_usage_stats:
                make.usage = tally.usage()
            piece = b"".join(self._events(make, state[1]))
            if piece:
                yield piece
        if counted:
            make.usage = tally.usage()
            yield make(None)
        yield DONE

    def _events(self, make: _Maker, output: RequestOutput) -> list[bytes]:
        """The events of one state: what is new of each choice, and its end in an event of its own."""
        events = []
        for each in output.outputs:
            if each.text or each.logprobs or (self.body.return_token_ids and each.token_ids):
                events.append(
                    make(
                        ChatChunkChoice(
                            index=each.index,
                            delta=Delta(content=each.text),
                            logprobs=self._logprobs(each),
                            token_ids=each.token_ids if self.body.return_token_ids else UNSET,
                        )
                    )
                )
            if each.finish_reason is not None:
                events.append(
                    make(
                        ChatChunkChoice(
                            index=each.index,
                            delta=Delta(),
                            finish_reason=ending(each),
                            stop_reason=each.stop_reason,
                        )
                    )
                )
        return events

    def _choice(self, each: CompletionOutput) -> ChatChoice:
        return ChatChoice(
            index=each.index,
            message=ResponseMessage("assistant", each.text),
            logprobs=self._logprobs(each),
            finish_reason=ending(each),
            stop_reason=each.stop_reason,
            token_ids=each.token_ids if self.body.return_token_ids else UNSET,
        )

    def _logprobs(self, each: CompletionOutput) -> ChatLogprobs | None:
        if each.logprobs is None:
            return None
        return chat_logprobs(each.logprobs, self.body.top_logprobs or 0, self.llm.tokenizer)


class _Maker:
    """Makes the events of one stream. usage: what each of them says of it."""

    def __init__(self, name: str, created: int, model: str) -> None:
        self._name, self._created, self._model = name, created, model
        self.usage: Usage | UnsetType | None = UNSET

    def __call__(self, choice: ChatChunkChoice | None, prompt_token_ids: list[int] | UnsetType = UNSET) -> bytes:
        return event(
            ChatChunk(
                id=self._name,
                created=self._created,
                model=self._model,
                choices=[] if choice is None else [choice],
                usage=self.usage,
                prompt_token_ids=prompt_token_ids,
            )
        )
