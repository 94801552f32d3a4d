"""Options of a request into what the engine takes."""

from __future__ import annotations

import re
from typing import Any

from octavo.core.errors import ContextLengthError
from octavo.core.params import SamplingParams
from octavo.engine.async_llm import AsyncLLM
from octavo.server.errors import ApiError
from octavo.server.ollama.schema import GenerationRequest, Options
from octavo.server.params import params_of

__all__ = ["check_context", "check_threads", "context_of", "sampling_params", "template_kwargs"]

_NAMES = {
    "max_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
    "logprobs": "top_logprobs",
}
_PENALTIES = ("repeat_penalty", "presence_penalty", "frequency_penalty")


def sampling_params(llm: AsyncLLM, body: GenerationRequest, prompt_tokens: int) -> SamplingParams:
    """What a request asks for; what it leaves out has Ollama's defaults. Raises ApiError, ContextLengthError."""
    options = body.options or Options()
    check_threads(llm, options)
    penalties = _penalties(llm, options)
    return params_of(
        _NAMES,
        temperature=0.8 if options.temperature is None else options.temperature,
        top_k=40 if options.top_k is None else options.top_k,
        top_p=0.9 if options.top_p is None else options.top_p,
        min_p=options.min_p,
        seed=None if options.seed == -1 else options.seed,
        repetition_penalty=penalties.get("repeat_penalty"),
        presence_penalty=penalties.get("presence_penalty"),
        frequency_penalty=penalties.get("frequency_penalty"),
        max_tokens=_most_tokens(llm, options, prompt_tokens),
        stop=options.stop,
        logprobs=_logprobs(body),
    )


def context_of(llm: AsyncLLM, options: Options) -> int:
    """Most tokens of prompt and answer. Raises ApiError if the model was loaded with less than is asked for."""
    if options.num_ctx is None:
        return llm.max_model_len
    if not 1 <= options.num_ctx <= llm.max_model_len:
        raise ApiError(
            400,
            f"options.num_ctx is {options.num_ctx}, and the context of the model here is {llm.max_model_len} tokens; "
            "lower it, or start the server with a larger --max-model-len",
            param="options.num_ctx",
            code="invalid_value",
        )
    return options.num_ctx


def check_context(llm: AsyncLLM, options: Options, tokens: int, *, answer: int = 0) -> None:
    """Raises ContextLengthError if so many tokens, and an answer of `answer`, are more than num_ctx."""
    most = context_of(llm, options)
    if options.num_ctx is not None and tokens + answer > most:
        raise ContextLengthError(
            f"the prompt has {tokens} tokens"
            + (f" and the answer needs at least {answer}" if answer else "")
            + f", but options.num_ctx allows {most} tokens; shorten the prompt, or raise it (up to "
            f"{llm.max_model_len} here)"
        )


def check_threads(llm: AsyncLLM, options: Options) -> None:
    """Raises ApiError for other threads than those that the server computes with."""
    threads = llm.config.threads
    if options.num_thread in (None, 0, threads):
        return
    how = "the NumPy backend chooses its own" if threads is None else f"the server computes with {threads}"
    raise ApiError(
        400,
        f"options.num_thread is {options.num_thread}, and {how}; it is set when the server starts (--threads). Leave "
        "it out: it changes no result",
        param="options.num_thread",
        code="invalid_value",
    )


def template_kwargs(llm: AsyncLLM, body: GenerationRequest) -> dict[str, Any]:
    """Variables of the chat template that `think` stands for. Raises ApiError if it asks to think."""
    if body.think not in (None, False):
        told = "think is not supported: answers are not divided into thinking and text in this version"
        raise ApiError(400, told, param="think", code="unsupported_field")
    knows = body.think is False and re.search(r"\benable_thinking\b", llm.chat_template.source or "")
    return {"enable_thinking": False} if knows else {}


def _most_tokens(llm: AsyncLLM, options: Options, prompt_tokens: int) -> int | None:
    """None: what the context has room for."""
    check_context(llm, options, prompt_tokens, answer=1)
    room = None if options.num_ctx is None else options.num_ctx - prompt_tokens
    if options.num_predict in (None, -1, -2):
        return room
    if options.num_predict < 1:
        raise ApiError(
            400,
            f"options.num_predict is {options.num_predict}; it must be at least 1, or -1 for what the context has room "
            "for",
            param="options.num_predict",
            code="invalid_value",
        )
    return options.num_predict if room is None else min(room, options.num_predict)


def _penalties(llm: AsyncLLM, options: Options) -> dict[str, float]:
    """Those that are asked for. Raises ApiError if they are to look at a part of the text only."""
    given = {name: value for name in _PENALTIES if (value := getattr(options, name)) is not None}
    active = [name for name, value in given.items() if value != (1 if name == "repeat_penalty" else 0)]
    last = options.repeat_last_n
    if last == 0:
        return {}
    if active and last is not None and last != -1 and last < context_of(llm, options):
        raise ApiError(
            400,
            f"options.repeat_last_n is {last}: {active[0]} looks at the whole text here; -1 asks for that, and 0 for "
            "no penalties",
            param="options.repeat_last_n",
            code="unsupported_value",
        )
    return given


def _logprobs(body: GenerationRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs", code="invalid_value")
    return None
