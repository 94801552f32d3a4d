"""Merging in plain Python for the first texts of a process, and by the `tokenizers` library from then on.

The library's tables of a vocabulary take 0.1 to 0.5 s to build, all of it under the interpreter's lock, which would be
most of the time that a small model takes to start. A prompt of a few sentences is merged in Python in a millisecond,
with nothing built. So the tables are built only once enough text has come that they pay, and both ways give the same
tokens: the same pieces, and in each the pair of the lowest rank first, the leftmost of equals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

__all__ = ["LateEngine", "merge_symbols"]

PLAIN_CHARACTERS = 32_768  # in all texts together; Python takes about 2 us for each
LONGEST_PIECE = 512  # characters; the time for a piece is quadratic in them
_NEVER = 1 << 62


class LateEngine:
    """Encodes plain text. Safe to share between threads."""

    def __init__(
        self, cuts: Any | None, merge: Callable[[str], Sequence[int] | None], build: Callable[[Any | None], Any]
    ) -> None:
        """cuts: the library's pre-tokenizer, which cuts a text into pieces; None: a text is one piece.
        merge: the ids of a piece, or None if only the library can tell them.
        build: makes the library's tokenizer, with these cuts.
        """
        self._cuts, self._build = cuts, build
        self._merge: Callable[[str], Sequence[int] | None] | None = merge
        self._known: dict[str, Sequence[int]] = {}
        self._left = PLAIN_CHARACTERS
        self._lock = threading.Lock()
        self._library: Any = None

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        merge = self._merge
        if merge is not None and len(text) <= self._left:
            self._left -= len(text)
            ids = self._plainly(text, merge)
            if ids is not None:
                return ids
        found: list[int] = self._whole().encode(text, add_special_tokens=False).ids
        return found

    def _plainly(self, text: str, merge: Callable[[str], Sequence[int] | None]) -> list[int] | None:
        ids: list[int] = []
        pieces = [text] if self._cuts is None else [piece for piece, _ in self._cuts.pre_tokenize_str(text)]
        for piece in pieces:
            found = self._known.get(piece)
            if found is None:
                found = merge(piece) if len(piece) <= LONGEST_PIECE else None
                if found is None:
                    return None
                self._known[piece] = found
            ids += found
        return ids

    def _whole(self) -> Any:
        with self._lock:
            if self._library is None:
                self._library = self._build(self._cuts)
                self._merge = None  # with it go the tables that only Python needed
                self._known = {}
            return self._library


def merge_symbols(symbols: list[str], rank_of: Callable[[str, str], int | None]) -> list[str]:
    """Joins the adjacent pair of the lowest rank, the leftmost of equals, until none has a rank.

    rank_of(left, right): a number from 0 on, or None if the two are never joined. Changes and returns `symbols`.
    """

    def rank(at: int) -> int:
        found = rank_of(symbols[at], symbols[at + 1])
        return _NEVER if found is None else found

    ranks = [_NEVER if found is None else found for found in (rank_of(a, b) for a, b in pairwise(symbols))]
    while ranks and (best := min(ranks)) != _NEVER:
        at = ranks.index(best)
        symbols[at] += symbols.pop(at + 1)
        del ranks[at]
        if at:
            ranks[at - 1] = rank(at - 1)
        if at < len(ranks):
            ranks[at] = rank(at)
    return symbols
