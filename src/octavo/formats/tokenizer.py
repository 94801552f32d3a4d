"""Text to token ids and back, as the metadata of a model file describes it.

    tokenizer = Tokenizer.from_metadata(gguf.metadata)
    ids = tokenizer.encode("Hello world")
    text = tokenizer.decode(ids)

`tokenizer.ggml.model` names the kind: "gpt2" is byte-level BPE (tokenizer_bpe.py), "llama" is SentencePiece BPE
(tokenizer_spm.py). This module adds what both share: special tokens, BOS and EOS, the space before a text.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from octavo.core.env import env
from octavo.core.errors import (
    ConfigError,
    InvalidParameterError,
    ModelFormatError,
    RequestError,
    UnsupportedModelError,
)
from octavo.formats.token_matcher import TokenMatcher
from octavo.formats.tokenizer_bpe import ByteLevelBPE, find_pre_tokenizer
from octavo.formats.tokenizer_spm import WORD_MARK, SentencePiece
from octavo.formats.vocabulary import PREFIX, TokenType, Vocabulary, clip, flag, read_vocabulary

__all__ = ["Tokenizer"]


class _Engine(Protocol):
    def encode(self, text: str) -> list[int]: ...
    def token_bytes(self, token_id: int) -> bytes: ...


class Tokenizer:
    """A model's tokenizer. Make one with `from_metadata`. Safe to share between threads.

    Attributes:
        vocab_size: number of tokens; ids are below it.
        bos_id, eos_id, pad_id, unk_id: special ids, or None where the model has none.
        eog_ids: every id that ends a generation: EOS, and control tokens that end a turn.
        add_bos, add_eos: whether `encode` puts BOS before and EOS after a text.
        add_space_prefix: whether a text is encoded as if a space stood before it.
        special_ids: control and unknown tokens, which stand for no text.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        engine: _Engine,
        *,
        is_spm: bool,
        add_bos: bool,
        add_eos: bool,
        add_space_prefix: bool,
    ):
        self._vocabulary = vocabulary
        self._engine = engine
        self._is_spm = is_spm
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id, self.eos_id = vocabulary.bos_id, vocabulary.eos_id
        self.pad_id, self.unk_id = vocabulary.pad_id, vocabulary.unk_id
        self.eog_ids = vocabulary.eog_ids
        self.add_bos, self.add_eos, self.add_space_prefix = add_bos, add_eos, add_space_prefix
        self.special_ids = frozenset(vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN))
        self._pieces: list[bytes | None] = [None] * self.vocab_size

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], *, pre: str | None = None, cache_dir: Path | None = None
    ) -> Tokenizer:
        """Builds the tokenizer that `tokenizer.ggml.*` describes.

        metadata: key -> value; arrays may be any sequences.
        pre: name of the pre-tokenizer to use in place of the file's (the parameter `tokenizer_pre`).
        cache_dir: where the merges of a SentencePiece vocabulary are kept between runs;
            `$OCTAVO_CACHE/tokenizers` if None.
        Raises UnsupportedModelError for an unknown kind or pre-tokenizer, ModelFormatError for a malformed file,
        ConfigError if `pre` is given for a kind that has no pre-tokenizer.
        """
        with _collector_paused():
            return cls._of_kind(metadata, pre, cache_dir)

    @classmethod
    def _of_kind(cls, metadata: Mapping[str, Any], pre: str | None, cache_dir: Path | None) -> Tokenizer:
        model = metadata.get(PREFIX + "model")
        if model == "gpt2":
            return cls._bpe(metadata, pre)
        if model == "llama":
            if pre is not None:
                raise ConfigError(
                    f"tokenizer_pre = {clip(pre)} cannot be used: this model has a SentencePiece tokenizer, "
                    "and only byte-level BPE has pre-tokenizers; leave tokenizer_pre out"
                )
            return cls._spm(metadata, cache_dir if cache_dir is not None else env("OCTAVO_CACHE") / "tokenizers")
        if model is None:
            raise ModelFormatError(f"{PREFIX}model is missing; the file does not say how text becomes tokens")
        raise UnsupportedModelError(
            f"{PREFIX}model = {clip(str(model))} is not supported; supported are 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece BPE); use another file of this model, or give prompts as token ids"
        )

    @classmethod
    def _bpe(cls, metadata: Mapping[str, Any], pre: str | None) -> Tokenizer:
        cut = find_pre_tokenizer(metadata, pre)
        vocabulary = read_vocabulary(metadata, spm=False)
        engine = ByteLevelBPE(metadata, vocabulary, cut)
        switches = _switches(metadata, vocabulary, add_bos=cut.add_bos, add_space_prefix=False)
        return cls(vocabulary, engine, is_spm=False, **switches)

    @classmethod
    def _spm(cls, metadata: Mapping[str, Any], cache_dir: Path) -> Tokenizer:
        vocabulary = read_vocabulary(metadata, spm=True)
        switches = _switches(metadata, vocabulary, add_bos=True, add_space_prefix=True)
        return cls(vocabulary, SentencePiece(vocabulary, cache_dir), is_spm=True, **switches)

    @cached_property
    def _plain_matcher(self) -> TokenMatcher:
        return self._matcher(TokenType.USER_DEFINED)

    @cached_property
    def _special_matcher(self) -> TokenMatcher:
        return self._matcher(TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN)

    @cached_property
    def control_matcher(self) -> TokenMatcher:
        """Finds the spellings of `special_ids`."""
        return self._matcher(TokenType.CONTROL, TokenType.UNKNOWN)

    def _matcher(self, *types: TokenType) -> TokenMatcher:
        tokens = self._vocabulary.tokens
        found = self._vocabulary.of_type(*types)
        if not self._is_spm:
            return TokenMatcher({tokens[i]: i for i in found})
        # In SentencePiece's text a word mark is a space, in user-defined tokens as well.
        special = self.special_ids
        return TokenMatcher({tokens[i] if i in special else tokens[i].replace(WORD_MARK, " "): i for i in found})

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        parse_special: bool = False,
        stand_ins: Mapping[int, str] | None = None,
    ) -> list[int]:
        """Token ids of a text.

        add_special_tokens: put BOS before and EOS after it, as far as the model asks for them.
        parse_special: spellings of special tokens in the text become these tokens, as a rendered chat template needs
            it; a BOS or EOS that the text spells at its end is then not doubled. False: they stay text.
        stand_ins: code point -> the character it stands for, put back after special tokens have been found, so that
            what it hides stays text (see shield.py).
        User-defined tokens are found in any text. Raises RequestError if the text cannot be expressed.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text holds a lone surrogate (U+{ord(text[error.start]):04X} at character {error.start}), "
                "which is half of a character; send valid Unicode"
            ) from None
        ids: list[int] = []
        follows_special = True  # the start of a text counts as one
        for piece in self._pieces_of(text, parse_special, stand_ins):
            if isinstance(piece, int):
                ids.append(piece)
                follows_special = piece in self.special_ids
            else:
                ids += self._engine.encode(self._prefixed(piece) if follows_special else piece)
                follows_special = False
        return self._with_ends(ids, spelled=parse_special) if add_special_tokens else ids

    def _pieces_of(self, text: str, parse_special: bool, stand_ins: Mapping[int, str] | None) -> Iterator[str | int]:
        if stand_ins is None:
            yield from (self._special_matcher if parse_special else self._plain_matcher).split(text)
            return
        for piece in self.control_matcher.split(text) if parse_special else [text]:
            if isinstance(piece, int):
                yield piece
            else:
                yield from self._plain_matcher.split(piece.translate(stand_ins))

    def _prefixed(self, text: str) -> str:
        if not self.add_space_prefix or (not self._is_spm and text.startswith(" ")):
            return text
        return " " + text

    def _with_ends(self, ids: list[int], *, spelled: bool) -> list[int]:
        if self.add_bos and self.bos_id is not None and not (spelled and ids[:1] == [self.bos_id]):
            ids.insert(0, self.bos_id)
        if self.add_eos and self.eos_id is not None and not (spelled and ids[-1:] == [self.eos_id]):
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids. Bytes that are not UTF-8 become U+FFFD; the space that encoding put before the text
        is taken off again. Raises InvalidParameterError for an id outside the vocabulary.
        """
        parts: list[bytes] = []
        at_start = True
        for token_id in ids:
            special = self.is_special(token_id)
            if special and skip_special_tokens:
                continue
            parts.append(self.piece(token_id, at_start=at_start))
            at_start = at_start and special
        return b"".join(parts).decode("utf-8", "replace")

    def piece(self, token_id: int, *, at_start: bool) -> bytes:
        """The bytes that a token adds to a text. at_start: no text token was before it, so that the space that
        encoding puts before a text is not part of it. Raises InvalidParameterError."""
        value = self.token_bytes(token_id)
        if not (at_start and self._is_spm and self.add_space_prefix and value[:1] == b" "):
            return value
        # Only merged text starts with the added space; a user-defined token or a byte is what was there.
        merged = self._vocabulary.types[token_id] in (TokenType.NORMAL, TokenType.UNDEFINED, TokenType.UNUSED)
        return value[1:] if merged else value

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for: UTF-8, or a part of it; the spelling of a special token.

        Raises InvalidParameterError for an id outside the vocabulary.
        """
        self._check(token_id)
        value = self._pieces[token_id]
        if value is None:
            value = self._pieces[token_id] = self._engine.token_bytes(token_id)
        return value

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary spells it, such as "Ġthe" or "▁the". Raises InvalidParameterError."""
        self._check(token_id)
        return self._vocabulary.tokens[token_id]

    def token_id(self, text: str) -> int | None:
        """The id of the token that the vocabulary spells like this, or None."""
        return self._vocabulary.ids.get(text)

    def is_special(self, token_id: int) -> bool:
        """Whether a token stands for no text (control or unknown). Raises InvalidParameterError."""
        self._check(token_id)
        return token_id in self.special_ids

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise InvalidParameterError(
                f"token id {token_id} is not in the vocabulary; ids of this model are 0 to {self.vocab_size - 1}"
            )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No cyclic garbage collection inside: hundreds of thousands of short-lived tuples would start it over and over."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _switches(
    metadata: Mapping[str, Any], vocabulary: Vocabulary, *, add_bos: bool, add_space_prefix: bool
) -> dict[str, bool]:
    """add_bos, add_eos and add_space_prefix: what the file says, else the defaults of its kind."""
    asked = {"bos": flag(metadata, "add_bos_token"), "eos": flag(metadata, "add_eos_token")}
    ids = {"bos": vocabulary.bos_id, "eos": vocabulary.eos_id}
    for end, wanted in asked.items():
        if wanted and ids[end] is None:
            raise ModelFormatError(f"{PREFIX}add_{end}_token is true, but {PREFIX}{end}_token_id is missing")
    space = flag(metadata, "add_space_prefix")
    return {
        "add_bos": add_bos and ids["bos"] is not None if asked["bos"] is None else asked["bos"],
        "add_eos": bool(asked["eos"]),
        "add_space_prefix": add_space_prefix if space is None else space,
    }
