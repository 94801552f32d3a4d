"""Byte-level BPE (`tokenizer.ggml.model = "gpt2"`): text is cut by a pre-tokenizer, its bytes are written as printable
characters, and pairs of these are merged in the order of a list.

Follows the vocabulary format of GPT-2 (Radford et al., 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any

from tokenizers import Regex
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from octavo.core.errors import ModelFormatError, RequestError, UnsupportedModelError
from octavo.formats.late_engine import LateEngine, merge_symbols
from octavo.formats.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from octavo.formats.vocabulary import PREFIX, TokenType, Vocabulary, clip, strings

__all__ = ["ByteLevelBPE", "find_pre_tokenizer"]

_LITERAL = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED, TokenType.UNUSED)
_MISSING = "\0missing"  # stands for a byte that no token covers; cannot come from text, which holds no raw controls


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte: printable Latin-1 stands for itself, the other bytes follow from U+0100 on."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [value for value in range(256) if value not in set(kept)]
    return {chr(value): value for value in kept} | {chr(256 + i): value for i, value in enumerate(moved)}


_BYTES = _byte_alphabet()


def find_pre_tokenizer(metadata: Mapping[str, Any], override: str | None) -> PreTokenizer:
    """The pre-tokenizer that the file names, or the one named instead. Raises UnsupportedModelError."""
    name = override if override is not None else metadata.get(PREFIX + "pre", "default")
    found = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if found is None:
        asked = "tokenizer_pre" if override is not None else f"the file's {PREFIX}pre"
        raise UnsupportedModelError(
            f"{asked} = {clip(str(name))} is not a known pre-tokenizer; known: {', '.join(sorted(PRE_TOKENIZERS))} "
            "(tokenizer_pre takes one of these in place of what the file says)"
        )
    return found


class ByteLevelBPE:
    """Encodes plain text, and gives the bytes of a token."""

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary, pre: PreTokenizer):
        """Raises ModelFormatError if the merges do not fit the vocabulary."""
        self._vocabulary = vocabulary
        self._literal = frozenset(vocabulary.of_type(*_LITERAL))
        self._missing_id = len(vocabulary.tokens)
        self._engine = _late_engine(metadata, vocabulary, pre, self._missing_id)

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain text. Raises RequestError if a byte of it has no token."""
        ids = self._engine.encode(text)
        if self._missing_id in ids:
            raise RequestError("the text holds a character whose bytes are not all in the vocabulary of this model")
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """What the token stands for; the id must be valid."""
        text = self._vocabulary.tokens[token_id]
        if token_id in self._literal:
            return text.encode()
        try:
            return bytes([_BYTES[character] for character in text])
        except KeyError:  # an added token that the file does not mark as one
            return text.encode()


def _late_engine(metadata: Mapping[str, Any], vocabulary: Vocabulary, pre: PreTokenizer, missing_id: int) -> LateEngine:
    ids = vocabulary.ids.copy()
    for token_id in vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED):
        ids.pop(vocabulary.tokens[token_id], None)  # plain text must never become one of these
    ids.pop("", None)
    lines = strings(metadata, PREFIX + "merges")
    _check_merges(lines, ids)
    ids[_MISSING] = missing_id
    rank_of = dict(zip(lines, range(len(lines)), strict=True)).get
    id_of = ids.get

    def merge(piece: str) -> list[int]:
        if pre.ignore_merges and (whole := id_of(piece)) is not None:
            return [whole]
        symbols = merge_symbols(list(piece), lambda left, right: rank_of(f"{left} {right}"))
        return [id_of(symbol, missing_id) for symbol in symbols]

    def build(cuts: Any) -> Engine:
        pairs = map(str.split, lines, repeat(" "))
        # A pair with a part that is no token never meets, but the library would refuse it.
        merges: list[Any] = [(left, right) for left, right in pairs if left in ids and right in ids]
        engine = Engine(BPE(ids, merges, unk_token=_MISSING, ignore_merges=pre.ignore_merges))
        engine.pre_tokenizer = cuts
        return engine

    patterns = [Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    return LateEngine(Sequence([*patterns, ByteLevel(add_prefix_space=False, use_regex=False)]), merge, build)


def _check_merges(lines: list[str], ids: Mapping[str, int]) -> None:
    """Raises ModelFormatError unless each entry is two texts that make a token. A few C loops over all of them."""
    if set(map(str.count, lines, repeat(" "))) - {1}:
        index = next(i for i, line in enumerate(lines) if line.count(" ") != 1)
        raise ModelFormatError(f"{PREFIX}merges, entry {index}, is not two tokens: {clip(lines[index])}")
    if all(map(ids.__contains__, map(str.replace, lines, repeat(" "), repeat("")))):
        return
    index = next(i for i, line in enumerate(lines) if line.replace(" ", "") not in ids)
    raise ModelFormatError(
        f"{PREFIX}merges does not fit {PREFIX}tokens: entry {index}, {clip(lines[index])}, does not make a token"
    )
