"""What requests, answers and events of the Responses API hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct

from octavo.server.openai.fields import Count, Logprobs, Sampled, limited

__all__ = [
    "Deleted",
    "Details",
    "InputMessage",
    "InputTokens",
    "OutputMessage",
    "OutputText",
    "OutputTokens",
    "ReasoningOptions",
    "Response",
    "ResponseError",
    "ResponseRequest",
    "ResponseUsage",
    "Status",
    "TextOptions",
]

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputText(Struct, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    text: str


class GivenOutputText(Struct, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    """A part of an earlier answer, sent back. What belongs to it and is no text is empty here."""

    text: str
    annotations: Annotated[list[Any], limited(maxItems=0)] | None = None
    logprobs: Annotated[list[Any], limited(maxItems=0)] | None = None


class InputMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn. id and status come with answers that are sent back."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputText | GivenOutputText]
    type: Literal["message"] = "message"
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class TextFormat(Struct, forbid_unknown_fields=True):
    type: Literal["text"]


class TextOptions(Struct, forbid_unknown_fields=True):
    format: TextFormat | None = None


class ReasoningOptions(Struct, forbid_unknown_fields=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class ResponseRequest(Sampled, kw_only=True, forbid_unknown_fields=True):
    """previous_response_id: its conversation goes on; its instructions do not."""

    input: Annotated[str, limited(minLength=1)] | Annotated[list[InputMessage], limited(minItems=1)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    top_logprobs: Logprobs | None = None
    metadata: Annotated[dict[str, str], limited(maxProperties=16)] | None = None


class OutputText(Struct, kw_only=True):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class OutputMessage(Struct, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class InputTokens(Struct):
    cached_tokens: int


class OutputTokens(Struct):
    reasoning_tokens: int


class ResponseUsage(Struct):
    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class Details(Struct):
    reason: Literal["max_output_tokens"]


class ResponseError(Struct):
    code: str
    message: str


class Response(Struct, kw_only=True):
    """Fields without a meaning here have the values that OpenAI gives when they are not used."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    error: ResponseError | None = None
    incomplete_details: Details | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputMessage] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None
    reasoning: ReasoningOptions
    store: bool
    temperature: float
    text: TextOptions
    tool_choice: Literal["auto"] = "auto"
    tools: list[Any] = []
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]


class Deleted(Struct):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
