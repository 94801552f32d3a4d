"""POST /generate, /generate_stream and /, which does either."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from octavo.core.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from octavo.core.params import SamplingParams
from octavo.engine.async_llm import AsyncLLM
from octavo.server.errors import ApiError
from octavo.server.generation import Generation, State, Work, off_loop
from octavo.server.http import Call, Reply, Stream
from octavo.server.params import params_of
from octavo.server.sse import event
from octavo.server.tgi import stream_error
from octavo.server.tgi.schema import (
    BestOfSequence,
    CompatRequest,
    Details,
    FinishReason,
    Generated,
    GenerateRequest,
    Parameters,
    PrefillToken,
    StreamDetails,
    StreamEvent,
)
from octavo.server.tgi.tokens import TokenTexts, prefill_tokens

__all__ = ["generate", "generate_either", "generate_stream"]

DEFAULT_MAX_NEW_TOKENS = 100
"""TGI's."""

_NAMES = {"max_tokens": "max_new_tokens", "logprobs": "top_n_tokens", "n": "best_of"}


async def generate(call: Call, body: GenerateRequest) -> Reply:
    return Reply(await _whole(call, body))


async def generate_either(call: Call, body: CompatRequest) -> Reply | Stream:
    """What is not streamed is a list of one here, as TGI has it."""
    return await generate_stream(call, body) if body.stream else Reply([await _whole(call, body)])


async def generate_stream(call: Call, body: GenerateRequest) -> Stream:
    parameters = body.parameters or Parameters()
    if (parameters.best_of or 1) > 1:
        raise _invalid("best_of", "which answer is the best is known at the end, so it cannot be above 1 in a stream")
    if parameters.decoder_input_details:
        raise _invalid("decoder_input_details", "the tokens of inputs are not listed in a stream; use /generate")
    llm, ids = await _prepare(call, body, parameters)
    work = Work([ids], _params(parameters, listed=True))
    states = Generation.start(call, llm, work, "delta").states()
    first = await anext(states)
    answer = _Answer(llm, parameters, body.inputs, len(ids))
    return Stream(_events(answer, first, states), stream_error)


async def _whole(call: Call, body: GenerateRequest) -> Generated:
    parameters = body.parameters or Parameters()
    several = (parameters.best_of or 1) > 1
    if several and not parameters.samples:
        raise _invalid("best_of", "greedy answers are all the same; set do_sample: true, or leave out best_of")
    for name in ("top_n_tokens", "decoder_input_details"):
        if getattr(parameters, name) and not parameters.details:
            raise _invalid(name, "tokens are listed in the details; set details: true")
    llm, ids = await _prepare(call, body, parameters)
    work = Work([ids], _params(parameters, listed=bool(parameters.details) or several))
    (output,) = await Generation.start(call, llm, work, "final").whole()
    return _Answer(llm, parameters, body.inputs, len(ids)).whole(output)


async def _prepare(call: Call, body: GenerateRequest, parameters: Parameters) -> tuple[AsyncLLM, list[int]]:
    """The model, and the token ids of inputs, of which `truncate` keeps the end. Raises ApiError, RequestError."""
    _check(body, parameters)
    llm = (await call.use_model(None)).engine
    ids = await off_loop(len(body.inputs), lambda: llm.tokenizer.encode(body.inputs))
    return llm, ids if parameters.truncate is None else ids[-parameters.truncate :]


def _check(body: GenerateRequest, parameters: Parameters) -> None:
    """What SamplingParams does not check. Raises ApiError."""
    if not body.inputs:
        raise ApiError(400, "inputs is empty; it needs text", param="inputs", code="invalid_value")
    if parameters.truncate is not None and parameters.truncate < 1:
        raise _invalid("truncate", f"it must be at least 1, not {parameters.truncate}")
    if parameters.temperature == 0:
        raise _invalid("temperature", "it must be above 0; leave it out for greedy answers")


def _params(parameters: Parameters, *, listed: bool) -> SamplingParams:
    """listed: tokens of the answer are listed, with their log-probabilities. Raises ApiError."""
    return params_of(
        _NAMES,
        n=parameters.best_of,
        temperature=parameters.temperature if parameters.samples else 0.0,
        top_k=parameters.top_k,
        top_p=parameters.top_p,
        frequency_penalty=parameters.frequency_penalty,
        repetition_penalty=parameters.repetition_penalty,
        seed=parameters.seed,
        max_tokens=DEFAULT_MAX_NEW_TOKENS if parameters.max_new_tokens is None else parameters.max_new_tokens,
        stop=parameters.stop,
        include_stop_str_in_output=True,
        logprobs=(parameters.top_n_tokens or 0) if listed else None,
        prompt_logprobs=0 if parameters.decoder_input_details else None,
    )


def _invalid(name: str, why: str) -> ApiError:
    return ApiError(400, f"{name}: {why}", param=name, code="invalid_value")


@dataclass(frozen=True)
class _Answer:
    """What one request is told. input_length: tokens."""

    llm: AsyncLLM
    parameters: Parameters
    inputs: str
    input_length: int

    def whole(self, output: RequestOutput) -> Generated:
        ranked = sorted(output.outputs, key=lambda each: -(each.cumulative_logprob or 0.0) / len(each.token_ids))
        best, others = ranked[0], ranked[1:]
        text = self.text(best.text)
        if not self.parameters.details:
            return Generated(text)
        prefill: list[PrefillToken] = []
        if output.prompt_logprobs is not None:
            prefill = prefill_tokens(self.llm.tokenizer, output.prompt_token_ids, output.prompt_logprobs)
        sequences = [self._sequence(each, prefill) for each in others]
        chosen = self._sequence(best, prefill)
        return Generated(
            text,
            Details(
                finish_reason=chosen.finish_reason,
                generated_tokens=chosen.generated_tokens,
                seed=chosen.seed,
                prefill=prefill,
                tokens=chosen.tokens,
                top_tokens=chosen.top_tokens,
                best_of_sequences=sequences or UNSET,
            ),
        )

    def text(self, generated: str) -> str:
        return self.inputs + generated if self.parameters.return_full_text else generated

    def end(self, reason: FinishReason, tokens: int) -> StreamDetails | None:
        """What the last event of a stream says."""
        if not self.parameters.details:
            return None
        return StreamDetails(
            finish_reason=reason,
            generated_tokens=tokens,
            seed=self.parameters.seed,
            input_length=self.input_length,
        )

    def _sequence(self, each: CompletionOutput, prefill: list[PrefillToken]) -> BestOfSequence:
        texts, entries, top = TokenTexts(self.llm.tokenizer), each.logprobs or [], self.parameters.top_n_tokens
        return BestOfSequence(
            generated_text=self.text(each.text),
            finish_reason=_finish_reason(each),
            generated_tokens=len(each.token_ids),
            seed=self.parameters.seed,
            prefill=prefill,
            tokens=[texts.token(token, entry) for token, entry in zip(each.token_ids, entries, strict=True)],
            top_tokens=[texts.top(entry, top) for entry in entries] if top else UNSET,
        )


def _finish_reason(each: CompletionOutput) -> FinishReason:
    if each.finish_reason == "length":
        return "length"
    return "eos_token" if each.stop_reason is None else "stop_sequence"


async def _events(answer: _Answer, first: State, rest: AsyncIterator[State]) -> AsyncIterator[bytes]:
    """One server-sent event for each token; those of one step are one piece."""
    stream = _TokenStream(answer)
    yield stream.take(first[1].outputs)
    async for _, output in rest:
        piece = stream.take(output.outputs)
        if piece:
            yield piece


class _TokenStream:
    """The events of one stream."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._texts = TokenTexts(answer.llm.tokenizer)
        self._parts: list[str] = []
        self._index = 0

    def take(self, outputs: Sequence[CompletionOutput]) -> bytes:
        """The events of what is new."""
        events: list[StreamEvent] = []
        for each in outputs:
            self._parts.append(each.text)
            for token, entry in zip(each.token_ids, each.logprobs or [], strict=True):
                events.append(self._event(token, entry))
            if each.finish_reason is not None:
                events[-1].generated_text = self._answer.text("".join(self._parts))
                events[-1].details = self._answer.end(_finish_reason(each), self._index)
        return b"".join(map(event, events))

    def _event(self, token: int, entry: TokenLogprobs) -> StreamEvent:
        self._index += 1
        top = self._answer.parameters.top_n_tokens
        return StreamEvent(
            index=self._index,
            token=self._texts.token(token, entry),
            top_tokens=self._texts.top(entry, top) if top else UNSET,
        )
