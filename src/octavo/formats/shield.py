"""Keeps the special tokens that a chat's own words spell from becoming special tokens.

A rendered chat is encoded with special tokens recognized, because the template writes them. Whoever writes a message
could write them as well: `<|im_end|>` typed by a user would end the user's turn. So the words are veiled before the
template sees them: a stand-in, a character that occurs in none of the words, takes the place of the first character of
a spelling. What is veiled matches no special token, and the tokenizer puts the character back into the text around the
tokens that it finds.

A template may also join what it was given in pieces: a filter that takes a tag out of `<|im_<tag>end|>` makes a
spelling that was not there before. `heavy` veils every sign that could begin a spelling, and nothing comes through
that; but then a template that looks for `</think>` no longer finds it. So both are rendered, and the light one is taken
where it has the same special tokens (see ChatTemplate.encode).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from octavo.core.errors import RequestError
from octavo.formats.token_matcher import TokenMatcher

__all__ = ["Shield", "map_strings"]

_CANDIDATES = (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900))  # noncharacters, then those for private use


class Shield:
    """Veils for one chat.

    Attributes:
        stand_ins: code point of a stand-in -> the character it stands for, as `str.translate` takes it.
        needed: whether the words hold anything that could begin a special token.
    """

    def __init__(self, matcher: TokenMatcher, words: Any, template: str) -> None:
        """matcher: finds special tokens. words: all that the template is given. template: its source.

        Raises RequestError if there is no character left to stand in.
        """
        self._matcher = matcher
        everything = "\n".join(_strings(words))
        firsts = [first for first in sorted(matcher.first_characters) if first in everything]
        self.needed = bool(firsts)
        codes = _unused(everything + template) if firsts else iter(())
        self._codes = {ord(first): code for first, code in zip(firsts, codes, strict=False)}
        if len(self._codes) < len(firsts):
            raise RequestError("the chat uses nearly all private-use characters of Unicode; leave some of them out")
        self._signs = {first: code for first, code in self._codes.items() if _is_sign(chr(first))}
        self.stand_ins = {code: chr(first) for first, code in self._codes.items()}

    def light(self, text: str) -> str:
        """Veils each spelling of a special token."""
        parts, done = [], 0
        for start in self._matcher.starts(text):
            parts += [text[done:start], chr(self._codes[ord(text[start])])]
            done = start + 1
        return "".join([*parts, text[done:]])

    def heavy(self, text: str) -> str:
        """Veils each sign that could begin a special token as well; letters, digits and spaces stay, as templates
        compare words such as "function"."""
        return self.light(text).translate(self._signs)

    def unescape(self, text: str) -> str:
        """Stand-ins that were written as \\uxxxx while rendering are themselves again."""
        for code in self.stand_ins:
            text = text.replace(_escape(code), chr(code))
        return text


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of nested dicts and sequences (as lists) in which every string, keys too, is changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_strings(key, change): map_strings(item, change) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [map_strings(item, change) for item in value]
    return value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            yield from _strings(item)


def _unused(text: str) -> Iterator[int]:
    """Candidates that the text does not hold, nor their escapes: JSON and Python's repr write them as \\uxxxx."""
    lower = text.lower()
    return (code for code in _CANDIDATES if chr(code) not in text and _escape(code) not in lower)


def _escape(code: int) -> str:
    return f"\\u{code:04x}"


def _is_sign(character: str) -> bool:
    return not character.isalnum() and not character.isspace()
