"""Chat messages and prompts into token ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec

from octavo.core.errors import ModelFormatError
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.inputs import ChatTokens
from octavo.formats.chat import ChatTemplate
from octavo.server.errors import ApiError
from octavo.server.generation import off_loop
from octavo.server.openai.schema import ChatMessage

__all__ = ["TokenPrompt", "encode_messages", "encode_prompts", "refuse_request_template"]


class TokenPrompt(NamedTuple):
    """text: None where ids were given."""

    ids: list[int]
    text: str | None


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

    Raises RequestError (see AsyncLLM.encode_chat), ApiError (a message says what the template does not read, or the
    request's template is none).
    """
    if not messages:
        raise ApiError(400, "messages is empty; it needs at least one", param="messages", code="invalid_value")
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
        try:
            ids = given.encode(llm.tokenizer, turns, **options, **kwargs)
        except ModelFormatError as error:
            raise ApiError(400, f"chat_template: {error}", param="chat_template", code="invalid_value") from None
        return ids if continue_final_message else ChatTokens(ids)

    # A template of a request may take all of the time that templates are given.
    return await off_loop(sum(map(_size, messages)) if chat_template is None else inf, encode)


async def encode_prompts(
    llm: AsyncLLM, prompt: Any, most: int, *, name: str = "prompt", add_special_tokens: bool = True
) -> list[TokenPrompt]:
    """One prompt or several, each text or token ids. most: so many are possible. name: of the field.

    Raises ApiError: an empty one, too many, or a mixture; RequestError: a text that cannot be encoded.
    """
    several = isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int))
    given = prompt if several else [prompt]
    if not given or any(not each for each in given if not isinstance(each, int)):
        raise ApiError(400, f"{name} is empty; it needs text or token ids", param=name, code="invalid_value")
    if len(given) > most:
        told = f"{name} holds {len(given)} prompts, and {most} are possible (times n); send fewer at once"
        raise ApiError(400, told, param=name, code="invalid_value")
    if any(isinstance(each, int) for each in given) or not (
        all(isinstance(each, str) for each in given) or all(_are_ids(each) for each in given)
    ):
        told = f"{name} must be text, token ids, or a list of texts or of lists of token ids, not a mixture"
        raise ApiError(400, told, param=name, code="invalid_value")

    def encode() -> list[TokenPrompt]:
        return [
            TokenPrompt(llm.tokenizer.encode(each, add_special_tokens=add_special_tokens), each)
            if isinstance(each, str)
            else TokenPrompt(each, None)
            for each in given
        ]

    return await off_loop(sum(len(each) for each in given if isinstance(each, str)), encode)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, int) for each in value)


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
