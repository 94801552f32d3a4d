"""Log-probabilities as the OpenAI API spells them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from octavo.core.outputs import Logprob, TokenLogprobs
from octavo.formats.tokenizer import Tokenizer
from octavo.server.openai.schema import (
    ChatLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TextLogprobs,
    TokenLogprob,
    TopLogprob,
)

__all__ = ["LEAST", "TextLogprobsBuilder", "chat_logprobs", "prompt_logprobs"]

LEAST = -9999.0
"""JSON has no minus infinity; vLLM writes this."""


def chat_logprobs(entries: Sequence[TokenLogprobs], top: int, tokenizer: Tokenizer) -> ChatLogprobs:
    """top: how many of the most likely tokens are listed beside each."""
    content = []
    for entry in entries:
        (own, chosen), *_ = entry.items()
        ranked = sorted((each for each in entry.items() if each[1].rank <= top), key=lambda each: each[1].rank)
        first = _one(own, chosen, tokenizer)
        rest = [_one(token, each, tokenizer) for token, each in ranked[:top]]
        content.append(TokenLogprob(first.token, first.logprob, first.bytes, rest))
    return ChatLogprobs(content)


def prompt_logprobs(entries: Sequence[TokenLogprobs | None]) -> PromptLogprobs:
    """vLLM's shape: for each token a dict from ids, as text, to log-probabilities."""
    return [
        None
        if entry is None
        else {
            str(token): PromptLogprob(max(each.logprob, LEAST), each.rank, each.decoded_token)
            for token, each in entry.items()
        }
        for entry in entries
    ]


class TextLogprobsBuilder:
    """The shape of text completions for one choice, piece by piece. top: most likely tokens that are listed."""

    def __init__(self, top: int, tokenizer: Tokenizer) -> None:
        self._top, self._tokenizer = top, tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        self._at_start = True
        self._made = TextLogprobs([], [], [], [])

    def add_prompt(self, ids: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> None:
        """The echoed prompt: its first token has no log-probability."""
        for token, entry in zip(ids, entries, strict=True):
            self._add(token, entry)

    def add(self, ids: Sequence[int], entries: Sequence[TokenLogprobs]) -> None:
        """Generated tokens."""
        for token, entry in zip(ids, entries, strict=True):
            self._add(token, entry)

    def take(self) -> TextLogprobs:
        """What has been added since it was last called."""
        made, self._made = self._made, TextLogprobs([], [], [], [])
        return made

    def _add(self, token: int, entry: TokenLogprobs | None) -> None:
        made, tokenizer = self._made, self._tokenizer
        known = token < tokenizer.vocab_size
        piece = tokenizer.piece(token, at_start=self._at_start) if known else b""
        shown = entry[token].decoded_token if entry else piece.decode("utf-8", "replace")
        made.tokens.append(shown)
        made.text_offset.append(self._offset)
        made.token_logprobs.append(None if entry is None else max(entry[token].logprob, LEAST))
        made.top_logprobs.append(None if entry is None else self._ranked(token, entry))
        if known and not tokenizer.is_special(token):
            self._offset += len(self._characters.decode(piece))
            self._at_start = False

    def _ranked(self, own: int, entry: TokenLogprobs) -> dict[str, float]:
        """The most likely tokens, and the token itself; of those that are spelled alike, the likeliest."""
        best: dict[str, float] = {}
        for token, each in sorted(entry.items(), key=lambda item: item[1].rank):
            if each.rank <= self._top or token == own:
                best.setdefault(each.decoded_token, max(each.logprob, LEAST))
        return best


def _one(token: int, each: Logprob, tokenizer: Tokenizer) -> TopLogprob:
    known = token < tokenizer.vocab_size
    return TopLogprob(each.decoded_token, max(each.logprob, LEAST), list(tokenizer.token_bytes(token)) if known else [])
