"""Tokens with their texts, as TGI lists them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from octavo.core.outputs import Logprob, TokenLogprobs
from octavo.formats.tokenizer import Tokenizer
from octavo.server.openai.logprobs import LEAST
from octavo.server.tgi.schema import PrefillToken, Token, TokenizedToken

__all__ = ["TokenTexts", "prefill_tokens", "tokenized"]


class TokenTexts:
    """Tokens that follow each other, each with the text that it completes."""

    def __init__(self, tokenizer: Tokenizer, *, at_start: bool = False) -> None:
        """at_start: they are a text from its beginning, not the continuation of another."""
        self._tokenizer, self._at_start = tokenizer, at_start
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def text(self, token: int) -> str:
        """What the next token adds; of a special one its spelling."""
        tokenizer = self._tokenizer
        if token >= tokenizer.vocab_size:  # logits have columns for tokens that do not exist
            return ""
        if tokenizer.is_special(token):
            return tokenizer.token_text(token)
        text = self._characters.decode(tokenizer.piece(token, at_start=self._at_start))
        self._at_start = False
        return text

    def token(self, token: int, entry: TokenLogprobs) -> Token:
        return Token(token, self.text(token), max(entry[token].logprob, LEAST), self._special(token))

    def top(self, entry: TokenLogprobs, count: int) -> list[Token]:
        """The likeliest tokens at one place, in this order; each with its own text."""
        ranked = sorted((each for each in entry.items() if each[1].rank <= count), key=lambda each: each[1].rank)
        return [self._alone(token, each) for token, each in ranked[:count]]

    def _alone(self, token: int, each: Logprob) -> Token:
        return Token(token, each.decoded_token, max(each.logprob, LEAST), self._special(token))

    def _special(self, token: int) -> bool:
        return token >= self._tokenizer.vocab_size or self._tokenizer.is_special(token)


def prefill_tokens(
    tokenizer: Tokenizer, ids: Sequence[int], entries: Sequence[TokenLogprobs | None]
) -> list[PrefillToken]:
    """The tokens of inputs."""
    texts = TokenTexts(tokenizer, at_start=True)
    return [
        PrefillToken(token, texts.text(token), None if entry is None else max(entry[token].logprob, LEAST))
        for token, entry in zip(ids, entries, strict=True)
    ]


def tokenized(tokenizer: Tokenizer, ids: Sequence[int]) -> list[TokenizedToken]:
    """The tokens of a text and where each is in it; special ones are nowhere."""
    texts, listed, place = TokenTexts(tokenizer, at_start=True), [], 0
    for token in ids:
        text = texts.text(token)
        if tokenizer.is_special(token):
            listed.append(TokenizedToken(token, text, 0, 0))
            continue
        listed.append(TokenizedToken(token, text, place, place + len(text)))
        place += len(text)
    return listed
