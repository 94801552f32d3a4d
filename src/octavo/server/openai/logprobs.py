"""Log-probabilities as the OpenAI API spells them."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.outputs import Logprob, TokenLogprobs
from octavo.formats.tokenizer import Tokenizer
from octavo.server.openai.schema import ChatLogprobs, PromptLogprob, PromptLogprobs, TokenLogprob, TopLogprob

__all__ = ["LEAST", "chat_logprobs", "prompt_logprobs"]

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


def _one(token: int, each: Logprob, tokenizer: Tokenizer) -> TopLogprob:
    known = token < tokenizer.vocab_size
    return TopLogprob(each.decoded_token, max(each.logprob, LEAST), list(tokenizer.token_bytes(token)) if known else [])
