"""Turns the scores of a SentencePiece BPE vocabulary into an ordered list of merges, and keeps the list on disk.

A score-based merger joins, over and over, the adjacent pair whose joined text is the token of the highest score, the
leftmost of equals. No merge inside the span of a final token crosses the span's border, so the merges inside are those
of that token's text alone: each token is only ever made from one pair, the last that joins when its own text is
encoded. The merges of all tokens, in the order of the scores of the results, are therefore an ordinary BPE merge list
that gives the same tokens for every text. (Tokens of equal score are taken in the order of their ids; trained
vocabularies have no equal scores.)

Kudo and Richardson, "SentencePiece", 2018, describes the format.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo.formats.spm_cuts import find_cuts

__all__ = ["SpmMerges", "find_merges", "merges_of"]

_log = logging.getLogger("octavo")
_MAGIC = b"octavo spm merges 1\n"
_NEVER = 1 << 62
_MARK = 0x2581  # the word mark


@dataclass(frozen=True)
class SpmMerges:
    """An ordered merge list.

    Attributes:
        made: i32 [merges], ids of the tokens made, best first.
        left, right: i32 [merges], ids of the two that each is made of. Ids from the size of the vocabulary on stand
            for the characters of `lone`.
        lone: characters that occur inside tokens but are no tokens themselves.
        joiners: characters that some token holds right before a word mark (U+2581).
    """

    made: NDArray[np.int32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    lone: str
    joiners: str


def merges_of(tokens: Sequence[str], members: NDArray[np.int64], scores: NDArray[np.float32]) -> SpmMerges:
    """tokens: all texts by id; members i64: ids that merging may produce, ascending; scores f32 [vocab].

    Time: about 4 us a token.
    """
    order = [i for i in members[np.argsort(-scores[members], kind="stable")].tolist() if tokens[i]]
    ranks = {tokens[token_id]: rank for rank, token_id in enumerate(order)}
    texts = list(ranks)
    lone, joiners = _characters(ranks)

    def entry_of(symbol: str) -> int:
        return ranks[symbol] if symbol in ranks else len(texts) + lone.index(symbol)

    def merge(entry: int) -> tuple[int, int] | None:
        text = texts[entry]
        cut = _last_cut(text, ranks)
        return (entry_of(text[:cut]), entry_of(text[cut:])) if cut else None

    ids = np.array([*order, *range(len(tokens), len(tokens) + len(lone))], np.int32)
    made, left, right = ids[find_cuts(texts, lone, merge)].T
    return SpmMerges(made, left, right, lone, joiners)


def _characters(ranks: dict[str, int]) -> tuple[str, str]:
    """The `lone` and the `joiners` of these tokens."""
    codes = np.frombuffer("\0".join(ranks).encode("utf-32-le"), np.uint32)
    found = set(map(chr, np.unique(codes).tolist()))
    marks = np.flatnonzero(codes[1:] == _MARK)
    before = set(map(chr, np.unique(codes[marks]).tolist()))
    return "".join(sorted(found - ranks.keys() - {"\0"})), "".join(sorted(before - {"\0", chr(_MARK)}))


def _last_cut(text: str, ranks: dict[str, int]) -> int:
    """Where the last two symbols meet when `text` alone is merged; 0 if merging does not lead to one symbol."""
    symbols = list(text)
    rank_of = ranks.get
    pairs = [rank_of(a + b, _NEVER) for a, b in pairwise(symbols)]
    while len(symbols) > 2:
        best = min(pairs)
        if best == _NEVER:
            return 0
        at = pairs.index(best)
        symbols[at] += symbols.pop(at + 1)
        del pairs[at]
        if at:
            pairs[at - 1] = rank_of(symbols[at - 1] + symbols[at], _NEVER)
        if at < len(pairs):
            pairs[at] = rank_of(symbols[at] + symbols[at + 1], _NEVER)
    return len(symbols[0])


def find_merges(
    tokens: Sequence[str], members: NDArray[np.int64], scores: NDArray[np.float32], folder: Path | None
) -> SpmMerges:
    """As `merges_of`, kept in `folder` under a hash of the vocabulary. None: nothing is kept.

    A file that cannot be read or is damaged is made again; a folder that cannot be written costs the time, no more.
    """
    if folder is None:
        return merges_of(tokens, members, scores)
    path = folder / f"spm-{_digest(tokens, members, scores)}.merges"
    kept = _load(path)
    if kept is None:
        kept = merges_of(tokens, members, scores)
        _save(path, kept)
    return kept


def _digest(tokens: Sequence[str], members: NDArray[np.int64], scores: NDArray[np.float32]) -> str:
    return _hash("\0".join(tokens).encode(), members.tobytes(), scores.tobytes()).hex()


def _hash(*parts: bytes) -> bytes:
    from hashlib import blake2b  # slow to import, and other tokenizers do without

    state = blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.digest()


def _load(path: Path) -> SpmMerges | None:
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    body = stored[len(_MAGIC) + 16 :]
    if stored[: len(_MAGIC) + 16] != _MAGIC + _hash(body):
        _log.info("%s is damaged or of another version; it is made again", path)
        return None
    merges, lone = np.frombuffer(body, np.int32, 2).tolist()
    rest = np.frombuffer(body, np.int32, offset=8)
    made, left, right = rest[: 3 * merges].reshape(3, merges)
    characters = "".join(map(chr, rest[3 * merges :].tolist()))
    return SpmMerges(made, left, right, characters[:lone], characters[lone:])


def _save(path: Path, merges: SpmMerges) -> None:
    counts = [len(merges.made), len(merges.lone)]
    characters = [ord(character) for character in merges.lone + merges.joiners]
    parts = [np.array(counts), merges.made, merges.left, merges.right, np.array(characters)]
    body = b"".join(part.astype(np.int32).tobytes() for part in parts)
    temporary: str | None = None
    try:
        from tempfile import mkstemp  # 10 ms of imports that a start with kept merges does not need

        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = mkstemp(prefix=path.name, suffix=".partial", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + _hash(body) + body)
        os.replace(temporary, path)  # readers see the old file or the whole new one
    except OSError as error:
        _log.info("the built tokenizer is not kept for next time: %s", error)
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
