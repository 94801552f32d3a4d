"""Chat messages into token ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.engine.async_llm import AsyncLLM
from octavo.engine.inputs import ChatTokens
from octavo.formats.chat import ChatTemplate
from octavo.server.errors import ApiError
from octavo.server.generation import off_loop
from octavo.server.openai.schema import ChatMessage

__all__ = ["encode_messages", "refuse_request_template"]


async def encode_messages(
    llm: AsyncLLM,
    messages: Sequence[ChatMessage],
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> list[int]:
    """Token ids of a conversation. chat_template: in place of the model's.

    Raises RequestError (see AsyncLLM.encode_chat), ApiError (a message says what the template does not read).
    """
    source = chat_template if chat_template is not None else llm.chat_template.source or ""
    turns = [_turn(message, index, source) for index, message in enumerate(messages)]
    options: dict[str, Any] = {
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
    }
    kwargs = chat_template_kwargs or {}

    def encode() -> list[int]:
        if chat_template is None:
            return llm.encode_chat(turns, chat_template_kwargs=kwargs, **options)
        own = llm.chat_template
        given = ChatTemplate(chat_template, own.bos_token, own.eos_token)
        ids = given.encode(llm.tokenizer, turns, **options, **kwargs)
        return ids if continue_final_message else ChatTokens(ids)

    return await off_loop(sum(_size(message) for message in messages), encode)


def refuse_request_template(allowed: bool, chat_template: str | None) -> None:
    """Raises ApiError 403 where a request brings a template and may not: it is a program that the server would run."""
    if chat_template is not None and not allowed:
        told = "chat_template in a request is not allowed here; the server's --allow-request-chat-template allows it"
        raise ApiError(403, told, param="chat_template", code="chat_template_not_allowed")


def _turn(message: ChatMessage, index: int, source: str) -> dict[str, Any]:
    """A message as templates know it: {"role", "content"} and what else it has."""
    turn: dict[str, Any] = msgspec.to_builtins(message)
    if message.role == "developer":
        turn["role"] = "system"
    for name in ("name", "tool_calls", "tool_call_id"):
        if turn.get(name) is None:
            turn.pop(name, None)
        elif name in ("name", "tool_calls") and not _reads(source, name):
            raise ApiError(
                400,
                f"messages[{index}].{name}: the model's chat template does not read it, so it would be ignored; "
                "leave it out",
                param=f"messages[{index}].{name}",
                code="unsupported_field",
            )
    return turn


def _reads(source: str, name: str) -> bool:
    """Whether a template's text takes such a part of a message."""
    return re.search(rf"""\.{name}\b|\[\s*['"]{name}['"]\s*\]|get\(\s*['"]{name}['"]""", source) is not None


def _size(message: ChatMessage) -> int:
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(len(part.text) for part in content)
