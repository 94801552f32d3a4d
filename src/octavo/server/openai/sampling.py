"""Fields of a request into `SamplingParams`."""

from __future__ import annotations

from typing import Any

from octavo.core.params import SamplingParams
from octavo.server.errors import ApiError
from octavo.server.http import Refusal
from octavo.server.openai.fields import Generated, Sampled

__all__ = ["LATER", "REFUSED", "check_salt", "check_stream_options", "sampling_params"]

LATER = "structured output is not in this version"
_SAME_NAMES = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "prompt_logprobs",
)

REFUSED: dict[str, Refusal] = {
    "structured_outputs": Refusal(LATER),
    "guided_json": Refusal(LATER),
    "guided_regex": Refusal(LATER),
    "guided_choice": Refusal(LATER),
    "guided_grammar": Refusal(LATER),
    "allowed_token_ids": Refusal("logit_bias can forbid tokens"),
    "bad_words": Refusal("logit_bias can forbid tokens", ([],)),
}
"""Fields of both kinds of completions that clients of OpenAI and vLLM know and this version does not have."""


def sampling_params(body: Sampled, *, max_tokens: int | None, logprobs: int | None, **more: Any) -> SamplingParams:
    """What the body asks for; fields that it leaves out have OpenAI's defaults. more: go before the body's fields.

    Raises InvalidParameterError.
    """
    given = {name: value for name in _SAME_NAMES if (value := getattr(body, name, None)) is not None}
    if body.logit_bias:
        given["logit_bias"] = {_token_id(key): value for key, value in body.logit_bias.items()}
    return SamplingParams(**{**given, "max_tokens": max_tokens, "logprobs": logprobs, **more})


def check_salt(salt: str | None) -> None:
    """Raises ApiError 400 for a cache_salt that is empty or too long."""
    if salt is not None and not 1 <= len(salt) <= 1024:
        raise ApiError(
            400, f"cache_salt must have 1 to 1024 characters, not {len(salt)}", param="cache_salt", code="invalid_value"
        )


def check_stream_options(body: Generated) -> None:
    """Raises ApiError 400 where they would have no effect."""
    if body.stream_options is not None and not body.stream:
        told = "stream_options has an effect on streams only; set stream: true or leave it out"
        raise ApiError(400, told, param="stream_options", code="invalid_value")


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        told = f"logit_bias: {key[:40]!r} is no token id; its keys are ids, written as strings of digits"
        raise ApiError(400, told, param="logit_bias", code="invalid_value")
    return int(key)
