"""What callers pass as prompts, brought into one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, TypeGuard

import numpy as np

from octavo.core.errors import RequestError
from octavo.core.params import SamplingParams

__all__ = [
    "ChatTokens",
    "Conversation",
    "Message",
    "Prompt",
    "PromptInput",
    "TextPrompt",
    "TokensPrompt",
    "conversations",
    "pair_params",
    "pair_priorities",
    "parse",
]


class TextPrompt(TypedDict):
    """A prompt as text; cache_salt: share cached prefixes only with requests of the same salt."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids; prompt: the text they came from, reported and otherwise unused."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt
Message = Mapping[str, Any]
Conversation = Sequence[Message]


class ChatTokens(list[int]):
    """Token ids of a conversation: what follows them is a text of its own, not the end of a word."""


@dataclass(frozen=True)
class PromptInput:
    """token_ids None: the text is still to be encoded."""

    text: str | None
    token_ids: list[int] | None
    cache_salt: str | None = None
    starts_text: bool = False


def parse(prompts: Prompt | Iterable[Prompt]) -> list[PromptInput]:
    """One prompt or several, each text, token ids or a dict, as a list. A list that starts with an int is one prompt.

    Raises RequestError naming the prompt that is none of these.
    """
    if isinstance(prompts, str | Mapping) or _is_tokens(prompts):
        return [_parse_one(prompts, "the prompt")]
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | bytearray | memoryview):
        raise RequestError(f"prompts must be text, token ids, a dict, or a list of these, not {_kind(prompts)}")
    return [_parse_one(prompt, f"prompt {i}") for i, prompt in enumerate(prompts)]


def pair_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """One SamplingParams for each of `count` prompts. Raises RequestError where their numbers differ."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    listed = params if _is_list(params) else [params]
    for item in listed:
        if not isinstance(item, SamplingParams):
            raise RequestError(f"sampling_params must be SamplingParams, not {_kind(item)}")
    if len(listed) != count:
        raise RequestError(f"{len(listed)} sampling_params for {count} prompts; pass one for all or one for each")
    return list(listed)


def pair_priorities(priority: int | Sequence[int], count: int) -> list[int]:
    """One priority for each of `count` prompts. Raises RequestError where their numbers differ."""
    if isinstance(priority, int):
        return [priority] * count
    if not _is_list(priority) or len(priority) != count:
        raise RequestError(f"priority must be an integer or one for each of {count} prompts, not {_kind(priority)}")
    return list(priority)


def conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """One conversation or several, as a list. Raises RequestError for anything else."""
    given: Any = messages
    if not _is_list(given) or not given:
        raise RequestError("messages must be a list of {'role': ..., 'content': ...} dicts, or a list of such lists")
    several: list[Any] = [given] if isinstance(given[0], Mapping) else list(given)
    for conversation in several:
        whole = _is_list(conversation) and all(isinstance(message, Mapping) for message in conversation)
        if not whole or not conversation:
            raise RequestError("a conversation must be a non-empty list of {'role': ..., 'content': ...} dicts")
    return several


def _is_tokens(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iu"
    return _is_list(value) and len(value) > 0 and _is_int(value[0])


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _parse_one(prompt: Any, name: str) -> PromptInput:
    if isinstance(prompt, str):
        return PromptInput(prompt, None)
    if isinstance(prompt, Mapping):
        return _parse_dict(prompt, name)
    return PromptInput(None, _tokens(prompt, name), starts_text=isinstance(prompt, ChatTokens))


def _parse_dict(prompt: Mapping[str, Any], name: str) -> PromptInput:
    unknown = sorted(map(str, prompt.keys() - {"prompt", "prompt_token_ids", "cache_salt"}))
    if unknown:
        raise RequestError(
            f"{name} has the key {unknown[0]!r}; possible keys are prompt, prompt_token_ids and cache_salt"
        )
    text, salt = prompt.get("prompt"), prompt.get("cache_salt")
    for key, value in (("prompt", text), ("cache_salt", salt)):
        if value is not None and not isinstance(value, str):
            raise RequestError(f"{name}: {key} must be text, not {_kind(value)}")
    ids = prompt.get("prompt_token_ids")
    if ids is None and text is None:
        raise RequestError(f"{name} has neither prompt nor prompt_token_ids")
    return PromptInput(text, None if ids is None else _tokens(ids, name), salt, isinstance(ids, ChatTokens))


def _tokens(value: Any, name: str) -> list[int]:
    if isinstance(value, np.ndarray) and _is_tokens(value):
        return [int(token) for token in value]
    if not _is_list(value) or not all(map(_is_int, value)):
        raise RequestError(f"{name} must be text, a list of token ids, or a dict, not {_kind(value)}")
    return [int(token) for token in value]


def _kind(value: object) -> str:
    return f"{type(value).__name__} ({value!r:.60})"
