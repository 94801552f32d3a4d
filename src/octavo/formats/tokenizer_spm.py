"""SentencePiece BPE (`tokenizer.ggml.model = "llama"`: Llama 2, Mistral, Gemma): pairs of characters are merged by the
scores of the results; what no token covers is written as bytes.

A space is the word mark U+2581 in tokens. The ordered merges come from spm_merges.py; the `tokenizers` library runs
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Split

from octavo.core.errors import ModelFormatError, RequestError
from octavo.formats.late_engine import LateEngine, merge_symbols
from octavo.formats.spm_merges import SpmMerges, find_merges
from octavo.formats.vocabulary import PREFIX, TokenType, Vocabulary, clip

__all__ = ["WORD_MARK", "SentencePiece"]

WORD_MARK = "\u2581"
_MISSING = "\0missing"  # holds a NUL beside other characters, which no symbol of a text does
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


class SentencePiece:
    """Encodes plain text, and gives the bytes of a token."""

    def __init__(self, vocabulary: Vocabulary, cache_dir: Path | None):
        """`cache_dir`: where the merge list is kept; None: nowhere. Raises ModelFormatError."""
        self._vocabulary = vocabulary
        self._bytes = _byte_tokens(vocabulary)
        self._byte_ids = {value: token_id for token_id, value in self._bytes.items()}
        self._literal = frozenset(vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN))
        merged = (TokenType.NORMAL, TokenType.UNDEFINED, TokenType.UNUSED)
        members = np.flatnonzero(np.isin(vocabulary.types, merged))
        assert vocabulary.scores is not None
        merges = find_merges(vocabulary.tokens, members, vocabulary.scores, cache_dir)
        self._size = len(vocabulary.tokens)
        self._missing_id = self._size + len(merges.lone)
        self._expansions = _unused_parts(vocabulary, merges, self._lone_characters(merges))
        cuts = Split(Regex(_word_pattern(merges.joiners)), "isolated") if len(merges.joiners) <= 64 else None
        self._engine = LateEngine(cuts, self._merger(merges), lambda cuts: self._build(merges, cuts))

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain text. Raises RequestError if a character has neither token, bytes nor stand-in."""
        ids = self._engine.encode(text.replace(" ", WORD_MARK))
        if self._expansions and not self._expansions.keys().isdisjoint(ids):
            ids = [part for token_id in ids for part in self._expansions.get(token_id, (token_id,))]
        if self._missing_id in ids:
            raise RequestError("the text holds a character that the vocabulary of this model cannot express")
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """What the token stands for; the id must be valid."""
        value = self._bytes.get(token_id)
        if value is not None:
            return bytes([value])
        text = self._vocabulary.tokens[token_id]
        return text.encode() if token_id in self._literal else text.replace(WORD_MARK, " ").encode()

    def _as_bytes(self, character: str) -> tuple[int, ...]:
        """The tokens of a character that is none itself: its bytes, else the unknown token, else the missing one."""
        ids = [self._byte_ids.get(value) for value in character.encode()]
        if None not in ids:
            return tuple(i for i in ids if i is not None)
        return (self._missing_id if self._vocabulary.unk_id is None else self._vocabulary.unk_id,)

    def _lone_characters(self, merges: SpmMerges) -> dict[int, tuple[int, ...]]:
        """Characters that are no tokens but can be merged into one get ids above the vocabulary while encoding."""
        return {self._size + i: self._as_bytes(character) for i, character in enumerate(merges.lone)}

    def _symbols(self, merges: SpmMerges) -> dict[str, int]:
        """What plain text may become: characters and merged tokens, and nothing else by merging."""
        vocabulary = self._vocabulary
        ids = vocabulary.ids.copy()
        ids.pop("", None)
        literal = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED, TokenType.BYTE)
        for token_id in vocabulary.of_type(*literal):
            ids.pop(vocabulary.tokens[token_id], None)
        return ids | {character: self._size + i for i, character in enumerate(merges.lone)}

    def _merger(self, merges: SpmMerges) -> Callable[[str], list[int] | None]:
        ids = self._symbols(merges)
        rows = np.full(self._size, -1, np.int64)
        rows[merges.made] = np.arange(len(merges.made))

        def rank_of(left: str, right: str) -> int | None:
            made = ids.get(left + right, self._size)
            row = rows[made] if made < self._size else -1
            return int(row) if row >= 0 and merges.left[row] == ids.get(left) else None

        def merge(piece: str) -> list[int] | None:
            found: list[int] = []
            for symbol in merge_symbols(list(piece), rank_of):
                if symbol in ids:
                    found.append(ids[symbol])
                    continue
                parts = [self._byte_ids.get(value) for value in symbol.encode()]
                if None in parts:
                    return None  # unknown tokens are drawn together by the library
                found += [part for part in parts if part is not None]
            return found

        return merge

    def _build(self, merges: SpmMerges, cuts: Any | None) -> Engine:
        """The library's tokenizer. Raises ModelFormatError, though what find_merges gives should always fit."""
        ids = self._symbols(merges)
        ids |= {f"<0x{value:02X}>": token_id for value, token_id in self._byte_ids.items()}
        ids[_MISSING] = self._missing_id if self._vocabulary.unk_id is None else self._vocabulary.unk_id
        text_of = [*self._vocabulary.tokens, *merges.lone].__getitem__
        pairs = list(zip(map(text_of, merges.left.tolist()), map(text_of, merges.right.tolist()), strict=True))
        try:
            model = BPE(ids, pairs, unk_token=_MISSING, fuse_unk=True, byte_fallback=True)
        except Exception as error:  # the library raises no narrower type
            raise ModelFormatError(f"{PREFIX}tokens and scores make no tokenizer: {error}") from None
        engine = Engine(model)
        if cuts is not None:
            engine.pre_tokenizer = cuts
        return engine


def _word_pattern(joiners: str) -> str:
    """Cuts where no token can reach across: before a word mark, unless a joiner is in front of it.

    It changes no token, but lets the library remember the tokens of a word.
    """
    word = f"{WORD_MARK}*[^{WORD_MARK}]+"
    if joiners:
        listed = "".join(f"\\x{{{ord(character):x}}}" for character in joiners)
        word += f"(?:(?<=[{listed}]){WORD_MARK}+[^{WORD_MARK}]*)*"
    return f"{word}|{WORD_MARK}+"


def _byte_tokens(vocabulary: Vocabulary) -> dict[int, int]:
    """Token id -> byte value. Raises ModelFormatError if a token marked as a byte does not spell one."""
    found = {}
    for token_id in vocabulary.of_type(TokenType.BYTE):
        match = _BYTE.fullmatch(vocabulary.tokens[token_id])
        if match is None:
            raise ModelFormatError(
                f"{PREFIX}tokens, entry {token_id}: {clip(vocabulary.tokens[token_id])} is marked as a byte, "
                "but is not written as <0x00> to <0xFF>"
            )
        found[token_id] = int(match[1], 16)
    return found


def _unused_parts(
    vocabulary: Vocabulary, merges: SpmMerges, lone: dict[int, tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """Tokens marked unused take part in merging, but in the end stand for the two that they were made of."""
    parts = dict(lone)
    rows = np.flatnonzero(vocabulary.types[merges.made] == TokenType.UNUSED).tolist()
    for row in sorted(rows, key=lambda row: len(vocabulary.tokens[merges.made[row]])):  # halves before the whole
        halves = (int(merges.left[row]), int(merges.right[row]))
        parts[int(merges.made[row])] = tuple(part for half in halves for part in parts.get(half, (half,)))
    return parts
