"""Fields that several requests of the OpenAI API have, with their limits, and what several answers hold.

Limits here are for the description of the API alone: SamplingParams checks them, with messages that say more than a
decoder's would.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

__all__ = [
    "Count",
    "Generated",
    "Logprobs",
    "PromptDetails",
    "Sampled",
    "StreamOptions",
    "TokenId",
    "Usage",
    "limited",
]


def limited(low: float | None = None, high: float | None = None, **more: Any) -> Meta:
    """What the description says of a field: minimum, maximum, and other keywords of JSON Schema."""
    limits = {"minimum": low, "maximum": high, **more}
    return Meta(extra_json_schema={name: value for name, value in limits.items() if value is not None})


Temperature = Annotated[float, limited(0, 100)]
Share = Annotated[float, limited(0, 1)]
Penalty = Annotated[float, limited(-2, 2)]
Count = Annotated[int, limited(1, 2**31 - 1)]
TokenId = Annotated[int, limited(0, 2**31 - 1)]
Seed = Annotated[int, limited(-(2**63), 2**64 - 1)]
Logprobs = Annotated[int, limited(0, 20)]
Bias = Annotated[dict[str, Annotated[float, limited(-100, 100)]], limited(maxProperties=1024)]
StopText = Annotated[str, limited(minLength=1)]
Salt = Annotated[str, limited(minLength=1, maxLength=1024)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    """include_usage: a last chunk with the counts. continuous_usage_stats: counts in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Sampled(Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of all requests that generate; null is the same as left out."""

    model: str | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, limited(0, 1, exclusiveMinimum=0)] | None = None
    top_k: Annotated[int, limited(-1, 2**31 - 1)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, limited(None, 100, exclusiveMinimum=0)] | None = None
    seed: Seed | None = None
    stop: StopText | Annotated[list[StopText], limited(maxItems=16)] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, limited(0, 2**31 - 1)] | None = None
    skip_special_tokens: bool | None = None
    logit_bias: Bias | None = None
    stream: bool | None = None
    user: str | None = None
    priority: Annotated[int, limited(-(2**31), 2**31 - 1)] | None = None
    cache_salt: Salt | None = None


class Generated(Sampled, kw_only=True, forbid_unknown_fields=True):
    """What chat and text completions have beyond that."""

    max_tokens: Count | None = None
    n: Annotated[int, limited(1, 128)] | None = None
    prompt_logprobs: Logprobs | None = None
    return_token_ids: bool | None = None
    stream_options: StreamOptions | None = None


class PromptDetails(Struct):
    cached_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
