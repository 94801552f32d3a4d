"""Finds whole-token spellings (control tokens, user-defined tokens) in a text: leftmost first, then longest."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["TokenMatcher"]

_HEAD = 2  # characters that a candidate is found by; most vocabularies share few heads such as "<|"


class TokenMatcher:
    """Cuts text at the spellings it was given. first_characters: what a spelling can begin with."""

    def __init__(self, spellings: Mapping[str, int]):
        """`spellings`: text -> token id; the empty text is left out."""
        self._ids = {text: token_id for text, token_id in spellings.items() if text}
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[:_HEAD], set()).add(len(text))
        for head in lengths:
            lengths[head] |= lengths.get(head[:1], set())  # "\n" is also a match where "\n\n" could have begun
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        heads = sorted(self._lengths, key=len, reverse=True)
        self._heads = re.compile("|".join(map(re.escape, heads))) if heads else None
        self.first_characters = frozenset(text[0] for text in self._ids)

    def starts(self, text: str) -> list[int]:
        """Where spellings begin, those inside or across another one too."""
        found: list[int] = []
        position = 0
        while self._heads is not None and (match := self._heads.search(text, position)):
            if self._longest(text, match.start(), match.group())[1] is not None:
                found.append(match.start())
            position = match.start() + 1
        return found

    def ids(self, text: str) -> list[int]:
        """The tokens that `split` finds, in order."""
        return [piece for piece in self.split(text) if isinstance(piece, int)]

    def split(self, text: str) -> list[str | int]:
        """The text as pieces of plain text and token ids, in order; no empty pieces."""
        if self._heads is None:
            return [text] if text else []
        pieces: list[str | int] = []
        plain, position = 0, 0
        while match := self._heads.search(text, position):
            start = match.start()
            end, token_id = self._longest(text, start, match.group())
            if token_id is None:
                position = start + 1
                continue
            if plain < start:
                pieces.append(text[plain:start])
            pieces.append(token_id)
            plain = position = end
        if plain < len(text):
            pieces.append(text[plain:])
        return pieces

    def _longest(self, text: str, start: int, head: str) -> tuple[int, int | None]:
        for length in self._lengths[head]:
            token_id = self._ids.get(text[start : start + length])
            if token_id is not None:
                return start + length, token_id
        return start, None
