"""Token ids to text while they are still arriving."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from octavo.formats.tokenizer import Tokenizer

__all__ = ["Detokenizer"]

_TAIL_BYTES = 4  # the longest UTF-8 character; an unfinished one at the end of a text lies within these


class Detokenizer:
    """Gives each piece of text as soon as it is certain; never half a character.

        text = "".join(map(detokenizer.append, ids)) + detokenizer.flush()

    The whole equals `tokenizer.decode(ids)`; with a prompt, it is what the ids add to the prompt's text. One per
    sequence.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        prompt_ids: Sequence[int] = (),
        at_start: bool | None = None,
    ):
        """prompt_ids: what the ids to come continue; a leading space of theirs is then part of the text, and a
            character that the prompt left unfinished is given whole.
        at_start: whether the ids begin a text of their own (then the space that encoding puts before a text is left
            out); None: they do if the prompt has no text tokens.
        Raises InvalidParameterError for a prompt id outside the vocabulary.
        """
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if at_start is None:
            at_start = all(map(tokenizer.is_special, prompt_ids))
        self._at_start = at_start
        if not at_start:
            self._decoder.decode(self._tail(prompt_ids))

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """The last bytes of the prompt's text: enough to know what is unfinished."""
        tail = b""
        for token_id in reversed(prompt_ids):
            if not (self._skip and self._tokenizer.is_special(token_id)):
                tail = self._tokenizer.token_bytes(token_id) + tail
            if len(tail) >= _TAIL_BYTES:
                break
        return tail

    def append(self, token_id: int) -> str:
        """The text that became certain with one more token; may be empty. Raises InvalidParameterError."""
        special = self._tokenizer.is_special(token_id)
        if special and self._skip:
            return ""
        piece = self._tokenizer.piece(token_id, at_start=self._at_start)
        self._at_start = self._at_start and special
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """The rest: an unfinished character becomes U+FFFD. Later ids begin afresh, but not at the start of a text."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
