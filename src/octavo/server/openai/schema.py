"""What the requests and answers of the OpenAI API hold. Descriptions and limits here end up in /openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from octavo.server.openai.ending import Ending

__all__ = [
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatMessage",
    "ChatRequest",
    "Delta",
    "Generated",
    "PromptDetails",
    "StreamOptions",
    "TextPart",
    "Usage",
]


def _range(low: float | None = None, high: float | None = None, **more: Any) -> Meta:
    """Limits that SamplingParams checks, for the description alone: its messages say more than a decoder's would."""
    limits = {"minimum": low, "maximum": high, **more}
    return Meta(extra_json_schema={name: value for name, value in limits.items() if value is not None})


Temperature = Annotated[float, _range(0, 100)]
Share = Annotated[float, _range(0, 1)]
Penalty = Annotated[float, _range(-2, 2)]
Count = Annotated[int, _range(1, 2**31 - 1)]
Seed = Annotated[int, _range(-(2**63), 2**64 - 1)]
Logprobs = Annotated[int, _range(0, 20)]
Bias = Annotated[dict[str, Annotated[float, _range(-100, 100)]], _range(maxProperties=1024)]
StopText = Annotated[str, _range(minLength=1)]
Salt = Annotated[str, _range(minLength=1, maxLength=1024)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    """include_usage: a last chunk with the counts. continuous_usage_stats: counts in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Generated(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that chat and text completions share; null is the same as left out."""

    model: str | None = None
    max_tokens: Count | None = None
    n: Annotated[int, _range(1, 128)] | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, _range(0, 1, exclusiveMinimum=0)] | None = None
    top_k: Annotated[int, _range(-1, 2**31 - 1)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, _range(None, 100, exclusiveMinimum=0)] | None = None
    seed: Seed | None = None
    stop: StopText | Annotated[list[StopText], _range(maxItems=16)] | None = None
    stop_token_ids: list[Annotated[int, _range(0, 2**31 - 1)]] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, _range(0, 2**31 - 1)] | None = None
    skip_special_tokens: bool | None = None
    logit_bias: Bias | None = None
    prompt_logprobs: Logprobs | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    priority: Annotated[int, _range(-(2**31), 2**31 - 1)] | None = None
    cache_salt: Salt | None = None


class TextPart(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    text: str


class FunctionCall(Struct, forbid_unknown_fields=True):
    """arguments: JSON text."""

    name: str
    arguments: str


class ToolCall(Struct, forbid_unknown_fields=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One turn. developer is the same as system."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None


class ResponseFormat(Struct, forbid_unknown_fields=True):
    type: Literal["text"]


class ChatRequest(Generated, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[ChatMessage], _range(minItems=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class PromptDetails(Struct):
    cached_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TopLogprob(Struct):
    """bytes: of the token's UTF-8, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[TokenLogprob]


class ResponseMessage(Struct):
    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(Struct, kw_only=True):
    """stop_reason: the stop string or token id that ended it."""

    index: int
    message: ResponseMessage
    logprobs: ChatLogprobs | None
    finish_reason: Ending
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class PromptLogprob(Struct):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of the prompt: id -> log-probability; null for the first."""


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Delta(Struct, omit_defaults=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: Ending | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
