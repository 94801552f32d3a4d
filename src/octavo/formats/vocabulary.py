"""The vocabulary of a GGUF file: token texts, kinds, scores, special ids and the switches around them.

Keys are those of the GGUF specification, section "tokenizer": `tokenizer.ggml.{model, tokens, token_type, scores,
bos_token_id, ...}`. This module reads and checks them; how text is cut into tokens is up to the tokenizer modules.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ModelFormatError

__all__ = ["PREFIX", "TokenType", "Vocabulary", "clip", "flag", "read_vocabulary", "strings"]

PREFIX = "tokenizer.ggml."
_log = logging.getLogger("octavo")

# Control tokens that end a turn, whatever the file names as its EOS: a chat model may end with either.
_TURN_ENDS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
)


class TokenType(IntEnum):
    """Kinds of tokens as `tokenizer.ggml.token_type` numbers them."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """What a file says about its tokens.

    Attributes:
        tokens: the texts as stored, by id.
        ids: text -> id.
        types: i32 [vocab], values of TokenType.
        scores: f32 [vocab], or None where the file has none.
        bos_id, eos_id, unk_id, pad_id: ids, or None where the model has no such token.
        eog_ids: every id that ends a generation.
    """

    tokens: list[str]
    ids: dict[str, int]
    types: NDArray[np.int32]
    scores: NDArray[np.float32] | None
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    eog_ids: frozenset[int]

    def of_type(self, *types: TokenType) -> list[int]:
        """The ids of all tokens of these kinds, ascending."""
        found: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return found


def clip(text: str, limit: int = 60) -> str:
    """A token or value quoted for a message, cut if long."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}..."


def strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    """An array of strings that the file must have. Raises ModelFormatError."""
    value = metadata.get(key)
    if value is None:
        raise ModelFormatError(f"{key} is missing; a tokenizer cannot be built without it")
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ModelFormatError(f"{key} must be an array of strings, not {type(value).__name__}")
    texts = list(value)
    if not set(map(type, texts)) <= {str}:
        raise ModelFormatError(f"{key} must hold strings only")
    return texts


def flag(metadata: Mapping[str, Any], name: str) -> bool | None:
    """The boolean `tokenizer.ggml.<name>`, or None if the file does not have it. Raises ModelFormatError."""
    value = metadata.get(PREFIX + name)
    if value is None or isinstance(value, bool):
        return value
    raise ModelFormatError(f"{PREFIX}{name} must be a boolean, not {type(value).__name__}")


def read_vocabulary(metadata: Mapping[str, Any], *, spm: bool) -> Vocabulary:
    """Reads and checks everything but the switches. `spm`: a SentencePiece vocabulary, which must have scores.

    Raises ModelFormatError, naming the key.
    """
    tokens = strings(metadata, PREFIX + "tokens")
    if not tokens:
        raise ModelFormatError(f"{PREFIX}tokens is empty")
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        _refuse_duplicates(tokens, ids)
    defaults = {"bos": 1, "eos": 2, "unknown": 0} if spm else {}  # what SentencePiece itself numbers them
    special = {
        name: _token_id(metadata, name, len(tokens), defaults.get(name))
        for name in ("bos", "eos", "eot", "eom", "unknown", "padding")
    }
    types = _types(metadata, tokens, special, spm=spm)
    scores = None
    if spm:
        scores = _numbers(metadata, PREFIX + "scores", len(tokens)).astype(np.float32)
        if not np.isfinite(scores).all():
            raise ModelFormatError(f"{PREFIX}scores holds values that are not finite")
    return Vocabulary(
        tokens,
        ids,
        types,
        scores,
        bos_id=special["bos"],
        eos_id=special["eos"],
        unk_id=special["unknown"],
        pad_id=special["padding"],
        eog_ids=_end_ids(ids, types, special),
    )


def _refuse_duplicates(tokens: list[str], ids: dict[str, int]) -> None:
    for index, text in enumerate(tokens):
        if text and ids[text] != index:
            raise ModelFormatError(
                f"{PREFIX}tokens holds the token {clip(text)} twice, with the ids {index} and {ids[text]}"
            )


def _numbers(metadata: Mapping[str, Any], key: str, count: int) -> NDArray[Any]:
    if metadata.get(key) is None:
        raise ModelFormatError(f"{key} is missing; this kind of tokenizer cannot be built without it")
    values = np.asarray(metadata[key])
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise ModelFormatError(f"{key} must be an array of numbers")
    if len(values) != count:
        raise ModelFormatError(f"{key} has {len(values)} entries for {count} tokens")
    return values


def _token_id(metadata: Mapping[str, Any], name: str, count: int, default: int | None) -> int | None:
    key = f"{PREFIX}{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return default if default is not None and default < count else None
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ModelFormatError(f"{key} must be an integer, not {type(value).__name__}")
    if 0 <= value < count:
        return int(value)
    if name in ("unknown", "padding"):  # converters write 2^32 - 1 for "none"; neither is needed to run the model
        _log.warning("%s = %d is outside the vocabulary of %d tokens; treated as absent", key, value, count)
        return None
    raise ModelFormatError(f"{key} = {value} is outside the vocabulary of {count} tokens")


def _types(
    metadata: Mapping[str, Any], tokens: list[str], special: Mapping[str, int | None], *, spm: bool
) -> NDArray[np.int32]:
    key = PREFIX + "token_type"
    if metadata.get(key) is not None:
        return _numbers(metadata, key, len(tokens)).astype(np.int32)
    types = np.full(len(tokens), TokenType.NORMAL, np.int32)
    for name, token_id in special.items():
        if token_id is not None:
            types[token_id] = TokenType.UNKNOWN if name == "unknown" and spm else TokenType.CONTROL
    if spm:
        spellings = {f"<0x{value:02X}>" for value in range(256)}
        types[[i for i, text in enumerate(tokens) if text in spellings]] = TokenType.BYTE
    return types


def _end_ids(ids: Mapping[str, int], types: NDArray[np.int32], special: Mapping[str, int | None]) -> frozenset[int]:
    named = {special[name] for name in ("eos", "eot", "eom")}
    known = {text: ids[text] for text in _TURN_ENDS if text in ids and types[ids[text]] == TokenType.CONTROL}
    if {"<|return|>", "<|call|>", "<|end|>"} <= known.keys():
        del known["<|end|>"]  # there it ends one message of several in an answer, not the answer
    return frozenset(i for i in named | set(known.values()) if i is not None)
