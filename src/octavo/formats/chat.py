"""Chat messages to the text that a model was trained on, by the Jinja template that its file carries.

    template = ChatTemplate.from_metadata(gguf.metadata, tokenizer)
    text = template.render([{"role": "user", "content": "Hello"}])          # to read
    ids = template.encode(tokenizer, [{"role": "user", "content": "Hello"}])  # for the model

`encode` keeps special tokens that the messages spell as text; encoding the rendered text could not tell them from the
template's own. Rendering follows `apply_chat_template` of Hugging Face transformers: same variables, filters and
whitespace rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.core.errors import InvalidParameterError, ModelFormatError, RequestError
from octavo.formats.shield import Shield, map_strings
from octavo.formats.tokenizer import Tokenizer

if TYPE_CHECKING:
    from octavo.formats.chat_program import ChatProgram

__all__ = ["ChatTemplate", "Message"]

Message = Mapping[str, Any]
"""One turn: `role`, `content` (text, or a list of {"type": "text", "text": ...} parts, joined by newlines), and what
else the template knows, such as `tool_calls`."""

_KEY = "tokenizer.chat_template"
_OWN = frozenset(("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"))
_TOOL_TEMPLATE = "tool_use"  # the name that files give to a second template for requests with tools


class ChatTemplate:
    """The chat template of a model, or its absence, which `render` reports. Safe to share between threads."""

    def __init__(
        self,
        source: str | None,
        bos_token: str = "",
        eos_token: str = "",
        *,
        named: Mapping[str, str] | None = None,
    ):
        """source: the template; None if the model has none.
        bos_token, eos_token: the spellings that templates refer to by these names.
        named: further templates by name; "tool_use" is used for requests with tools.
        """
        self.source = source
        self.bos_token, self.eos_token = bos_token, eos_token
        self.named = dict(named or {})
        self._programs: dict[str, ChatProgram] = {}

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], tokenizer: Tokenizer, *, name: str | None = None
    ) -> ChatTemplate:
        """The template in a GGUF file: `tokenizer.chat_template`, or `tokenizer.chat_template.<name>`.

        A file without any gives an object whose `render` says so. Raises ModelFormatError if a template is not text,
        InvalidParameterError if there is none of the name asked for.
        """
        named = {key[len(_KEY) + 1 :]: value for key, value in metadata.items() if key.startswith(_KEY + ".")}
        source = metadata.get(_KEY, named.get("default"))
        for key, value in {_KEY: source, **{f"{_KEY}.{key}": value for key, value in named.items()}}.items():
            if value is not None and not isinstance(value, str):
                raise ModelFormatError(f"{key} must be a string, not {type(value).__name__}")
        if name is not None:
            if name not in named:
                known = ", ".join(sorted(named)) or "none"
                raise InvalidParameterError(f"the model has no chat template named {name!r}; named templates: {known}")
            source, named = named[name], {}
        spell = _speller(tokenizer)
        return cls(source, spell(tokenizer.bos_id), spell(tokenizer.eos_id), named=named)

    @property
    def available(self) -> bool:
        """Whether there is a template to render with."""
        return self.source is not None

    def compile(self) -> None:
        """Compile the template now and not when it is first used. Raises ModelFormatError if it is malformed."""
        if self.source is not None:
            self._program(self.source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt text of a chat; special tokens are spelled out in it.

        tools: JSON schemas of functions that the model may call.
        add_generation_prompt: end with the opening of the assistant's turn; None: yes, unless the final message is
            continued.
        continue_final_message: end inside the last message, so that the model goes on with it.
        kwargs: further variables that the template reads, such as enable_thinking.
        Raises RequestError for bad messages, for what the template itself refuses (with its own words) and for
        arguments that the template does not read; ModelFormatError if the template is malformed.
        """
        return self._prepare(messages, tools, add_generation_prompt, continue_final_message, kwargs).render()

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        """The prompt's token ids. Arguments and errors are those of `render`.

        Special tokens come from the template alone: those spelled in messages, tools or kwargs are plain text. (So the
        template does not recognize them either, should it look for them.)
        """
        chat = self._prepare(messages, tools, add_generation_prompt, continue_final_message, kwargs)
        shield = Shield(tokenizer.control_matcher, chat.words, chat.source)
        if not shield.needed:
            return tokenizer.encode(chat.render(), parse_special=True, stand_ins=shield.stand_ins)
        text, safe = (shield.unescape(chat.render(veil)) for veil in (shield.light, shield.heavy))
        find = tokenizer.control_matcher.ids
        return tokenizer.encode(
            text if find(text) == find(safe) else safe, parse_special=True, stand_ins=shield.stand_ins
        )

    def _prepare(
        self, messages: Any, tools: Any, add_generation_prompt: bool | None, continued: bool, kwargs: Mapping[str, Any]
    ) -> _Chat:
        """Everything checked, the template chosen and compiled."""
        if continued and add_generation_prompt:
            raise InvalidParameterError(
                "add_generation_prompt and continue_final_message exclude each other; set one of them"
            )
        turns = [_checked_message(message, index) for index, message in enumerate(_checked_list(messages))]
        source = self._choose(tools)
        program = self._program(source)
        _refuse_unread({**kwargs, **({"tools": tools} if tools else {})}, program.reads)
        words = {**kwargs, "messages": turns, "tools": _checked_tools(tools)}
        own = {
            "add_generation_prompt": not continued if add_generation_prompt is None else add_generation_prompt,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
        }
        return _Chat(source, program, words, own, continued)

    def _choose(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        if tools and _TOOL_TEMPLATE in self.named:
            return self.named[_TOOL_TEMPLATE]
        if self.source is not None:
            return self.source
        if self.named:
            raise RequestError(
                f"the model has no default chat template, only ones named {', '.join(sorted(self.named))}; "
                "choose one of these, or give a template with chat_template"
            )
        raise RequestError(
            "the model has no chat template (it may be a base model, not trained on chats); send plain text to be "
            "continued instead of messages, or give a template with chat_template"
        )

    def _program(self, source: str) -> ChatProgram:
        if source not in self._programs:
            from octavo.formats.chat_program import ChatProgram  # slow to import

            self._programs[source] = ChatProgram(source)
        return self._programs[source]


@dataclass(frozen=True)
class _Chat:
    """A chat ready to be rendered. words: variables that come from the caller; own: the template's."""

    source: str
    program: ChatProgram
    words: dict[str, Any]
    own: dict[str, Any]
    continued: bool

    def render(self, veil: Callable[[str], str] | None = None) -> str:
        """veil: changes each string of the words before."""
        words = self.words if veil is None else {name: map_strings(item, veil) for name, item in self.words.items()}
        text = self.program.render({**words, **self.own})
        return _cut_after(text, words["messages"][-1]) if self.continued else text


def _speller(tokenizer: Tokenizer) -> Callable[[int | None], str]:
    return lambda token_id: "" if token_id is None else tokenizer.token_text(token_id)


def _checked_list(messages: Any) -> Sequence[Any]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(f"messages must be a list of {{role, content}} objects, not {type(messages).__name__}")
    if not messages:
        raise RequestError("messages is empty; a chat needs at least one message with role and content")
    return messages


def _checked_message(message: Any, index: int) -> dict[str, Any]:
    """A copy that templates can rely on: role is text, content is text, arguments of tool calls are objects."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object with role and content, not {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}.role must be a non-empty string such as 'user', not {role!r}")
    turn = dict(message)
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise RequestError(f"{where} has no content; give text, or tool_calls for an assistant that only calls tools")
    turn["content"] = "" if content is None else _joined(content, where)
    if message.get("tool_calls"):
        turn["tool_calls"] = [_parsed_call(call) for call in message["tool_calls"]]
    return turn


def _joined(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise RequestError(f"{where}.content must be text or a list of text parts, not {type(content).__name__}")
    texts = []
    for number, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise RequestError(
                f"{where}.content[{number}] is of type {kind!r}; only text parts "
                '({"type": "text", "text": "..."}) are supported'
            )
        texts.append(text)
    return "\n".join(texts)


def _parsed_call(call: Any) -> Any:
    """Templates expect the arguments of a past call as an object; the HTTP protocol carries them as JSON text."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except ValueError:
            raise RequestError(f"tool_calls: the arguments of {function.get('name')!r} are not valid JSON") from None
    return {**call, "function": function}


def _checked_tools(tools: Any) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestError("tools must be a list of JSON schema objects")
    return [dict(tool) for tool in tools] or None


def _refuse_unread(given: Mapping[str, Any], reads: frozenset[str]) -> None:
    unread = sorted(given.keys() - reads)
    if unread:
        others = ", ".join(sorted(name for name in reads - _OWN if not name.startswith("__"))) or "none"
        raise InvalidParameterError(
            f"the model's chat template does not read {', '.join(unread)}, so it would be ignored; leave it out "
            f"(further variables that the template reads: {others})"
        )


def _cut_after(text: str, final: Mapping[str, Any]) -> str:
    """The text up to the end of the last message's content."""
    content = final["content"]
    bare = content.strip()
    at = text.rfind(bare)
    if at < 0:
        raise RequestError(
            "continue_final_message: the model's chat template changes the last message, so its end cannot be found"
        )
    # Templates often strip messages: keep the spaces at the end only if they were rendered.
    kept = content.lstrip()
    return text[: at + (len(kept) if text.startswith(kept, at) else len(bare))]
