"""POST /v1/completions: text to be continued, as it is."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType

from octavo.core.outputs import CompletionOutput, RequestOutput
from octavo.core.params import MAX_N, SamplingParams
from octavo.engine.async_llm import AsyncLLM
from octavo.server.errors import ApiError
from octavo.server.generation import Generation, State, Work
from octavo.server.http import Call, Refusal, Reply, Stream
from octavo.server.openai import stream_error
from octavo.server.openai.ending import Ending, ending
from octavo.server.openai.fields import StreamOptions, Usage
from octavo.server.openai.logprobs import TextLogprobsBuilder, prompt_logprobs
from octavo.server.openai.prompts import TokenPrompt, encode_prompts
from octavo.server.openai.sampling import REFUSED, check_salt, check_stream_options, sampling_params
from octavo.server.openai.schema import Completion, CompletionRequest, TextChoice
from octavo.server.openai.usage import Tally, usage_of
from octavo.server.sse import DONE, event

__all__ = ["COMPLETION_REFUSED", "completions"]

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""

COMPLETION_REFUSED: dict[str, Refusal] = {
    **REFUSED,
    "suffix": Refusal("models here continue text and fill no gaps; put all of it before the end", ("",)),
    "response_format": Refusal("structured output is not in this version", ({"type": "text"},)),
}


async def completions(call: Call, body: CompletionRequest) -> Reply | Stream:
    call.record.user = body.user
    check_salt(body.cache_salt)
    check_stream_options(body)
    _check(body)
    model = await call.use_model(body.model)
    llm = model.engine
    most = call.service.config.max_prompts // max(body.n or 1, body.best_of or 1)
    prompts = await encode_prompts(llm, body.prompt, most, add_special_tokens=body.add_special_tokens is not False)
    work = Work([each.ids for each in prompts], _params(body), body.priority or 0, body.cache_salt)
    texts = _Texts(call, llm, body, model.name if body.model is None else body.model, prompts)
    generation = Generation.start(call, llm, work, "delta" if body.stream else "final")
    if not body.stream:
        return Reply(texts.completion(await generation.whole()))
    states = generation.states()
    first = await anext(states)
    return Stream(texts.chunks(first, states), stream_error)


def _check(body: CompletionRequest) -> None:
    n, best_of = body.n or 1, body.best_of
    if best_of is not None and not 1 <= best_of <= MAX_N:
        raise ApiError(
            400, f"best_of must be between 1 and {MAX_N}, not {best_of}", param="best_of", code="invalid_value"
        )
    if best_of is not None and best_of < n:
        raise ApiError(
            400, f"best_of is {best_of}, below n, which is {n}; raise it", param="best_of", code="invalid_value"
        )
    if body.stream and best_of is not None and best_of > n:
        raise ApiError(
            400,
            f"best_of is {best_of} and n {n}: which completions are the best is known at the end, so they cannot be "
            "streamed; leave out stream or best_of",
            param="best_of",
            code="invalid_value",
        )
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens 0 is possible with echo: true only", param="max_tokens", code="invalid_value")


def _params(body: CompletionRequest) -> SamplingParams:
    """max_tokens 0 computes one token, which is not shown: logits of the prompt's end are needed in any case."""
    more: dict[str, Any] = {}
    if body.best_of is not None:
        more["n"] = body.best_of
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        more["prompt_logprobs"] = body.logprobs
    logprobs = body.logprobs
    if logprobs is None and body.best_of is not None and body.best_of > (body.n or 1):
        logprobs = 0
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
    return sampling_params(body, max_tokens=max_tokens, logprobs=logprobs, **more)


@dataclass
class _Texts:
    """One request's answer, whole or in chunks. builders: of log-probabilities, by choice."""

    call: Call
    llm: AsyncLLM
    body: CompletionRequest
    model: str
    prompts: Sequence[TokenPrompt]
    builders: dict[int, TextLogprobsBuilder] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.call.new_id("cmpl")

    def completion(self, outputs: list[RequestOutput]) -> Completion:
        usage, choices = usage_of(outputs, counts_output=self._shows_output), []
        for index, output in enumerate(outputs):
            ranked = self._best(output.outputs)
            choices += [self._choice(index, output, each, place) for place, each in enumerate(ranked)]
        return Completion(id=self.name, created=int(time.time()), model=self.model, choices=choices, usage=usage)

    async def chunks(self, first: State, rest: AsyncIterator[State]) -> AsyncIterator[bytes]:
        """Server-sent events; what one step brought is one piece."""
        options, tally = self.body.stream_options or StreamOptions(), Tally(counts_output=self._shows_output)
        counted = options.include_usage or options.continuous_usage_stats
        usage: Usage | UnsetType | None = None if counted else UNSET
        name, created = self.name, int(time.time())

        def encode(choices: list[TextChoice]) -> bytes:
            return event(Completion(id=name, created=created, model=self.model, choices=choices, usage=usage))

        tally.add(*first)
        told: set[int] = set()
        if options.continuous_usage_stats:
            usage = tally.usage()
        yield b"".join(encode([choice]) for choice in self._news(first, told))
        async for state in rest:
            tally.add(*state)
            if options.continuous_usage_stats:
                usage = tally.usage()
            piece = b"".join([encode([choice]) for choice in self._news(state, told)])
            if piece:
                yield piece
        if counted:
            usage = tally.usage()
            yield encode([])
        yield DONE

    def _news(self, state: State, told: set[int]) -> list[TextChoice]:
        """What a state adds: the prompt first if it is echoed, text, and each end in a choice of its own."""
        index, output = state
        choices = []
        for each in output.outputs:
            number = self._number(index, each.index)
            if number not in told:
                told.add(number)
                choices += self._opening(index, number, output)
            if (each.text or each.logprobs or (self.body.return_token_ids and each.token_ids)) and self._shows_output:
                choices.append(self._piece(number, each))
            if each.finish_reason is not None:
                reason, stop = self._end(each)
                choices.append(TextChoice(index=number, text="", finish_reason=reason, stop_reason=stop))
        return choices

    def _opening(self, index: int, number: int, output: RequestOutput) -> list[TextChoice]:
        body = self.body
        ids = output.prompt_token_ids if body.return_token_ids else UNSET
        listed = UNSET if body.prompt_logprobs is None else prompt_logprobs(output.prompt_logprobs or [])
        if not body.echo and ids is UNSET and listed is UNSET:
            return []
        choice = TextChoice(index=number, text="", prompt_token_ids=ids, prompt_logprobs=listed)
        if body.echo:
            choice.text = self._echoed(index)
            builder = self._builder(number)
            if builder is not None:
                builder.add_prompt(output.prompt_token_ids, output.prompt_logprobs or [])
                choice.logprobs = builder.take()
        return [choice]

    def _piece(self, number: int, each: CompletionOutput) -> TextChoice:
        builder = self._builder(number)
        if builder is not None:
            builder.add(each.token_ids, each.logprobs or [])
        return TextChoice(
            index=number,
            text=each.text,
            logprobs=None if builder is None else builder.take(),
            token_ids=each.token_ids if self.body.return_token_ids else UNSET,
        )

    def _choice(self, index: int, output: RequestOutput, each: CompletionOutput, place: int) -> TextChoice:
        body, number = self.body, self._number(index, place)
        builder = self._builder(number)
        if builder is not None:
            if body.echo:
                builder.add_prompt(output.prompt_token_ids, output.prompt_logprobs or [])
            if self._shows_output:
                builder.add(each.token_ids, each.logprobs or [])
        reason, stop = self._end(each)
        shown = each.text if self._shows_output else ""
        return TextChoice(
            index=number,
            text=self._echoed(index) + shown if body.echo else shown,
            logprobs=None if builder is None else builder.take(),
            finish_reason=reason,
            stop_reason=stop,
            token_ids=(each.token_ids if self._shows_output else []) if body.return_token_ids else UNSET,
            prompt_token_ids=output.prompt_token_ids if body.return_token_ids else UNSET,
            prompt_logprobs=UNSET if body.prompt_logprobs is None else prompt_logprobs(output.prompt_logprobs or []),
        )

    @property
    def _shows_output(self) -> bool:
        return self.body.max_tokens != 0

    def _end(self, each: CompletionOutput) -> tuple[Ending, int | str | None]:
        return (ending(each), each.stop_reason) if self._shows_output else ("length", None)

    def _number(self, index: int, place: int) -> int:
        return index * (self.body.n or 1) + place

    def _best(self, outputs: list[CompletionOutput]) -> list[CompletionOutput]:
        """The n with the highest log-probability per token, in this order, where more were made."""
        n = self.body.n or 1
        if len(outputs) == n:
            return outputs
        return sorted(outputs, key=lambda each: -(each.cumulative_logprob or 0.0) / max(1, len(each.token_ids)))[:n]

    def _builder(self, number: int) -> TextLogprobsBuilder | None:
        if self.body.logprobs is None:
            return None
        if number not in self.builders:
            self.builders[number] = TextLogprobsBuilder(self.body.logprobs, self.llm.tokenizer)
        return self.builders[number]

    def _echoed(self, index: int) -> str:
        prompt = self.prompts[index]
        return self.llm.tokenizer.decode(prompt.ids) if prompt.text is None else prompt.text
