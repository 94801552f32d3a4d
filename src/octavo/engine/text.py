"""The text side of a model: tokenizer and chat template, and what the engine needs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.errors import InvalidParameterError, ModelFormatError
from octavo.engine.output import Detokenize
from octavo.engine.step import Vocabulary
from octavo.formats.chat import ChatTemplate
from octavo.formats.detokenizer import Detokenizer
from octavo.formats.gguf import GGUFFile
from octavo.formats.tokenizer import Tokenizer

__all__ = ["Text", "read_text", "vocabulary_of"]


@dataclass(frozen=True)
class Text:
    """How a model's text becomes tokens and back, and how its chats become text."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate


def read_text(file: GGUFFile, pre: str | None, template: str | None) -> Text:
    """Read both from a file.

    pre: see Tokenizer. template: the text of a Jinja template, or the name of one in the file.
    Raises UnsupportedModelError, ModelFormatError, ConfigError (see Tokenizer), InvalidParameterError (no such name, or
    a text that is no template).
    """
    tokenizer = Tokenizer.from_metadata(file.metadata, pre=pre)
    if template is None or "{" not in template:
        return Text(tokenizer, ChatTemplate.from_metadata(file.metadata, tokenizer, name=template))
    own = ChatTemplate.from_metadata(file.metadata, tokenizer)
    given = ChatTemplate(template, own.bos_token, own.eos_token)
    try:
        given.compile()
    except ModelFormatError as error:
        raise InvalidParameterError(f"chat_template: {error}") from None
    return Text(tokenizer, given)


def vocabulary_of(tokenizer: Tokenizer, size: int) -> Vocabulary:
    """What the engine needs of a tokenizer. size: columns of the logits, which may be padded past the last token."""

    def detokenizer(prompt_ids: Sequence[int], skip_special_tokens: bool, starts_text: bool) -> Detokenize:
        made = Detokenizer(
            tokenizer,
            skip_special_tokens=skip_special_tokens,
            prompt_ids=prompt_ids,
            at_start=True if starts_text else None,
        )
        return _Padded(made, tokenizer.vocab_size) if size > tokenizer.vocab_size else made

    def decode(token: int) -> str:
        return tokenizer.token_bytes(token).decode("utf-8", "replace") if token < tokenizer.vocab_size else ""

    return Vocabulary(size, min(size, tokenizer.vocab_size), tokenizer.eog_ids, decode, detokenizer)


class _Padded:
    """A detokenizer for models whose logits have more columns than the tokenizer has tokens: the rest have no text."""

    def __init__(self, inner: Detokenizer, known: int) -> None:
        self._inner, self._known = inner, known

    def append(self, token: int, /) -> str:
        return self._inner.append(token) if token < self._known else ""

    def flush(self) -> str:
        return self._inner.flush()
