"""What the requests and answers of the Messages API hold. Descriptions and limits here end up in /openapi.json.

Fields of Anthropic's API that are not here are refused by name; `REFUSED` says why. Two are taken for what they mean on
this server:

    cache_control  marks what should be cached. Every prompt is, for as long as there is room, and hits are counted in
                   usage.cache_read_input_tokens, so a mark changes nothing and its ttl promises no more.
    metadata       user_id goes to the server's log of requests.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from octavo.server.http import Refusal
from octavo.server.openai.fields import limited

__all__ = [
    "REFUSED",
    "ContentText",
    "CountRequest",
    "InputMessage",
    "InputTokens",
    "Message",
    "MessageRequest",
    "StopReason",
    "TextBlock",
    "Usage",
]

StopReason = Literal["end_turn", "max_tokens", "stop_sequence"]


class CacheControl(Struct, forbid_unknown_fields=True):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    text: str
    cache_control: CacheControl | None = None


class InputMessage(Struct, forbid_unknown_fields=True):
    """One turn. Turns of one role that follow each other are one turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[TextBlock]


class Metadata(Struct, forbid_unknown_fields=True):
    user_id: str | None = None


class CountRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A last message of the assistant is continued."""

    model: str
    messages: Annotated[list[InputMessage], limited(minItems=1)]
    system: str | list[TextBlock] | None = None
    cache_control: CacheControl | None = None


class MessageRequest(CountRequest, kw_only=True, forbid_unknown_fields=True):
    """max_tokens 0 computes the prompt, so that it is cached, and answers nothing. temperature: 1 if left out."""

    max_tokens: Annotated[int, limited(0, 2**31 - 1)]
    stop_sequences: Annotated[list[Annotated[str, limited(minLength=1)]], limited(maxItems=16)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, limited(0, 100)] | None = None
    top_k: Annotated[int, limited(0, 2**31 - 1)] | None = None
    top_p: Annotated[float, limited(0, 1, exclusiveMinimum=0)] | None = None
    metadata: Metadata | None = None


_TOOLS = "tools are not in this version"
_IMAGES = "models here read text only"
_THINKING = "answers are not divided into thinking and text in this version"

REFUSED: dict[str, Refusal] = {
    "tools": Refusal(_TOOLS, ([],)),
    "tool_choice": Refusal(_TOOLS, ({"type": "none"}, {"type": "auto"})),
    "thinking": Refusal(_THINKING, ({"type": "disabled"},)),
    "output_config": Refusal("structured output and effort are not in this version", ({}, {"format": None})),
    "output_format": Refusal("structured output is not in this version"),
    "service_tier": Refusal("there is one tier", ("auto", "standard_only")),
    "speed": Refusal("there is one speed", ("standard",)),
    "inference_geo": Refusal("everything is computed on this machine"),
    "container": Refusal("the server runs no code"),
    "mcp_servers": Refusal("the server calls no others", ([],)),
    "context_management": Refusal("conversations are taken as they are sent"),
    "diagnostics": Refusal("usage.cache_read_input_tokens says how much was cached"),
    "user_profile_id": Refusal("there are no profiles"),
    "workspace_id": Refusal("there are no workspaces"),
    "system[].citations": Refusal("answers cite nothing", ([],)),
    "messages[].content[].citations": Refusal("answers cite nothing", ([],)),
    **{f"messages[].content[].type={kind}": Refusal(_IMAGES) for kind in ("image", "document", "search_result")},
    **{f"messages[].content[].type={kind}": Refusal(_TOOLS) for kind in ("tool_use", "tool_result")},
    **{f"messages[].content[].type={kind}": Refusal(_THINKING) for kind in ("thinking", "redacted_thinking")},
}
"""Fields and kinds of content that are known and not supported, with the values of each that ask for nothing."""


class ContentText(Struct):
    text: str
    type: Literal["text"] = "text"


class Usage(Struct):
    """input_tokens: of the prompt, without those that came from the cache. cache_creation_input_tokens: always 0, as
    nothing has to be asked for to be cached."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Message(Struct, kw_only=True):
    """stop_sequence: the one that ended it. stop_reason: null in the first event of a stream."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    content: list[ContentText]
    model: str
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage


class InputTokens(Struct):
    input_tokens: int
