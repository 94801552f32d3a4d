"""What the requests and answers of the OpenAI API hold. Descriptions and limits here end up in /openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from octavo.server.openai.ending import Ending
from octavo.server.openai.fields import Count, Generated, Logprobs, Usage, limited

__all__ = [
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatLogprobs",
    "ChatMessage",
    "ChatRequest",
    "Completion",
    "CompletionRequest",
    "Delta",
    "FunctionCall",
    "PromptLogprob",
    "PromptLogprobs",
    "Prompts",
    "ResponseFormat",
    "ResponseMessage",
    "TextChoice",
    "TextLogprobs",
    "TextPart",
    "TokenLogprob",
    "ToolCall",
    "TopLogprob",
]


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


Prompts = str | Annotated[list[str | Annotated[list[int], limited(minItems=1)] | int], limited(minItems=1)]
"""Text, token ids, or a list of texts or of lists of ids; not a mixture."""


class CompletionRequest(Generated, kw_only=True, forbid_unknown_fields=True):
    """best_of: so many are made and the n of the highest log-probability per token returned."""

    prompt: Prompts
    logprobs: Logprobs | None = None
    echo: bool | None = None
    best_of: Annotated[int, limited(1, 128)] | None = None
    add_special_tokens: bool | None = None


class ChatRequest(Generated, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[ChatMessage], limited(minItems=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


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


class TextLogprobs(Struct):
    """Of each token: its text, log-probability, the most likely ones by their text, and where it starts in the text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: Ending | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    """Whole, or a chunk of a stream; then usage is there if it was asked for."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET


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
