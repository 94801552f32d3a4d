"""The routes of the Messages API."""

from __future__ import annotations

from octavo.server.anthropic import ANTHROPIC, OVERLOADED
from octavo.server.anthropic.messages import count_tokens, create_message
from octavo.server.anthropic.schema import REFUSED, CountRequest, InputTokens, Message, MessageRequest
from octavo.server.http import EVENTS, Endpoint

__all__ = ["anthropic_routes"]


def anthropic_routes() -> list[Endpoint]:
    return [
        Endpoint(
            "/v1/messages",
            "POST",
            create_message,
            ANTHROPIC,
            "Answer a conversation, as Anthropic's API has it.",
            body=MessageRequest,
            reply=Message,
            refused=REFUSED,
            working=True,
            streams=EVENTS,
            statuses=(OVERLOADED,),
        ),
        Endpoint(
            "/v1/messages/count_tokens",
            "POST",
            count_tokens,
            ANTHROPIC,
            "How many tokens a conversation has.",
            body=CountRequest,
            reply=InputTokens,
            refused=REFUSED,
            working=True,
        ),
    ]
