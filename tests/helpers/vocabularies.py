"""Small tokenizer metadata, and mergers so plain that they are obviously right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

MARK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def byte_characters() -> list[str]:
    """The 256 printable characters that stand for bytes in GPT-2's format, by byte."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(value) if value in plain else chr(next(others)) for value in range(256)]


def bpe_metadata(
    merges: Sequence[tuple[str, str]] = (),
    *,
    extra: Mapping[str, int] | None = None,
    pre: str = "gpt-2",
    **keys: Any,
) -> dict[str, Any]:
    """Byte-level BPE with all bytes, one token for each merge, then the `extra` tokens (text -> type).

    keys: further `tokenizer.ggml.*` values.
    """
    tokens = byte_characters()
    tokens += [text for text in dict.fromkeys(a + b for a, b in merges) if text not in tokens]
    types = [NORMAL] * len(tokens) + list((extra or {}).values())
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *(extra or {})],
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in merges],
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def spm_metadata(
    scored: Mapping[str, float], *, extra: Mapping[str, int] | None = None, with_bytes: bool = True, **keys: Any
) -> dict[str, Any]:
    """SentencePiece: <unk>, <s>, </s>, the bytes, the `scored` tokens, then the `extra` ones (text -> type)."""
    head = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
    if with_bytes:
        head |= {f"<0x{value:02X}>": BYTE for value in range(256)}
    tail = dict(extra or {})
    scores = [0.0] * len(head) + list(scored.values()) + [-1000.0] * len(tail)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*head, *scored, *tail],
        "tokenizer.ggml.token_type": np.array([*head.values(), *[NORMAL] * len(scored), *tail.values()], np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def merge_by_score(text: str, scored: Mapping[str, float]) -> list[str]:
    """Joins the pair whose joined text has the highest score, the leftmost of equals, until none is a token."""
    symbols = list(text)
    while True:
        pairs = [(scored[a + b], -i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scored]
        if not pairs:
            return symbols
        at = -max(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
