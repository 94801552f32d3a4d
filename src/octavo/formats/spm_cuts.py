"""Finds, for a whole SentencePiece vocabulary at once, the two tokens that each token is merged from.

Texts are compared by a polynomial hash modulo 2^64, h(t) = sum of v(t[i]) * B^i, so that the hash of two texts joined
is h(left) + h(right) * B^len(left), and NumPy can look up all pairs of one length together.

A token is odd if it, or one that it is made of, has a better score than its parts. Without odd tokens, merging goes in
the order of the scores, and whether it leads to a pair can be told from what meets at the border (`_reached`). The few
tokens with odd parts (3 in a vocabulary of 262 thousand) are merged one by one instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["find_cuts"]

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_INVERSE = pow(_BASE, -1, 1 << 64)
_MIX = 0xD6E8FEB86659FD93
_NONE = np.int64(1) << 62

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]


@dataclass
class _Table:
    """Tokens in the order of their scores, then the characters that are no tokens.

    Attributes:
        hashes, lengths: u64, i64 [entries].
        powers: u64 [longest + 1], B^n.
        order: i64 [entries], entries by ascending hash; `ordered`: their hashes.
        merged_at: i64 [entries], when a symbol is made: its place in the order, or -1 for a single character.
        left, right: i64 [entries], what it is made of, once known; -1 before, and if no merging leads to it.
        odd: bool [entries], see above.
    """

    hashes: Hashes
    lengths: Ints
    powers: Hashes
    order: Ints
    ordered: Hashes
    merged_at: Ints
    left: Ints
    right: Ints
    odd: NDArray[np.bool_]

    def find(self, hashes: Hashes) -> Ints:
        """Entries of these hashes, _NONE where there is none."""
        place = np.minimum(np.searchsorted(self.ordered, hashes), len(self.ordered) - 1)
        return np.where(self.ordered[place] == hashes, self.order[place], _NONE)

    def find_joined(self, left: Ints, right: Ints) -> Ints:
        """Entries whose texts are those of `left` and `right` together."""
        return self.find(self.hashes[left] + self.hashes[right] * self.powers[self.lengths[left]])

    def makeable(self, entries: Ints) -> NDArray[np.bool_]:
        """Whether merging can lead to each: a character, or a token whose halves are known."""
        made: NDArray[np.bool_] = (self.lengths[entries] == 1) | (self.left[entries] >= 0)
        return made

    def set(self, made: Ints, left: Ints, right: Ints) -> None:
        """Notes what tokens are made of."""
        self.left[made], self.right[made] = left, right
        late = np.maximum(self.merged_at[left], self.merged_at[right]) > made
        self.odd[made] = late | self.odd[left] | self.odd[right]


def find_cuts(texts: Sequence[str], lone: str, merge: Callable[[int], tuple[int, int] | None]) -> NDArray[np.int32]:
    """Which two entries each token is merged from.

    texts: tokens, best score first, without duplicates; lone: characters in them that are no tokens. Entries are
    numbered through both. merge: entry -> what merging its text makes it from, or None; for tokens with odd parts.
    Returns i32 [rows, 3]: token, left, right, best token first. Tokens that no merging leads to have no row.
    """
    entries = [*texts, *lone]
    lengths = np.array([len(text) for text in entries], np.int64)
    starts = np.cumsum(lengths) - lengths
    sums, powers, inverses = _prefix_sums("".join(entries))
    hashes = (sums[starts + lengths] - sums[starts]) * inverses[starts]
    order = np.argsort(hashes)
    merged_at = np.where(lengths > 1, np.arange(len(entries)), -1)
    unknown = np.full(len(entries), -1, np.int64)
    odd = np.zeros(len(entries), np.bool_)
    table = _Table(hashes, lengths, powers, order, hashes[order], merged_at, unknown, unknown.copy(), odd)
    whole, left, right = _candidates(table, starts, sums, inverses)
    by_length = np.argsort(lengths[whole], kind="stable")
    bounds = np.searchsorted(lengths[whole], np.unique(lengths[whole]), sorter=by_length)
    for rows in np.split(by_length, bounds[1:]):
        hard = np.unique(whole[rows[odd[left[rows]] | odd[right[rows]]]])
        rows = rows[~np.isin(whole[rows], hard)]
        rows = rows[_reached(table, left[rows], right[rows])]
        table.set(whole[rows], left[rows], right[rows])
        pairs = {entry: pair for entry in hard.tolist() if (pair := merge(entry)) is not None}
        if pairs:
            table.set(np.array(list(pairs)), *np.array(list(pairs.values())).T)
    made = np.flatnonzero(table.left >= 0)
    return np.stack([made, table.left[made], table.right[made]], axis=1).astype(np.int32)


def _prefix_sums(text: str) -> tuple[Hashes, Hashes, Hashes]:
    """Sums of v(c) * B^i over the text before each place, B^i, and B^-i; u64 [characters + 1] each."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64) + np.uint64(1)
    values = codes * np.uint64(_MIX)
    values ^= values >> np.uint64(31)
    values *= np.uint64(_MIX)
    powers = np.ones(len(codes) + 1, np.uint64)
    inverses = powers.copy()
    powers[1:], inverses[1:] = _BASE, _INVERSE
    np.cumprod(powers, out=powers)
    np.cumprod(inverses, out=inverses)
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(values * powers[:-1], out=sums[1:])
    return sums, powers, inverses


def _candidates(table: _Table, starts: Ints, sums: Hashes, inverses: Hashes) -> tuple[Ints, Ints, Ints]:
    """All ways to cut a token into two entries: token, left, right; i64 [ways] each."""
    inner = np.maximum(table.lengths - 1, 0)
    whole = np.repeat(np.arange(len(starts)), inner)
    first = starts[whole]
    cut = first + 1 + np.arange(len(whole)) - (np.cumsum(inner) - inner)[whole]
    left = table.find((sums[cut] - sums[first]) * inverses[first])
    kept = left != _NONE
    whole, cut, left = whole[kept], cut[kept], left[kept]
    end = starts[whole] + table.lengths[whole]
    right = table.find((sums[end] - sums[cut]) * inverses[cut])
    kept = right != _NONE
    return whole[kept], left[kept], right[kept]


def _reached(table: _Table, left: Ints, right: Ints) -> NDArray[np.bool_]:
    """Whether merging the text of each pair leads to the pair: no merge across the border comes before.

    Goes back in time: of the symbols at the border, the one made last is taken apart, and the pair that then meets at
    the border must not have been the better choice (of equals, the left one is merged first).
    """
    reached = table.makeable(left) & table.makeable(right)
    rows = np.flatnonzero(reached)
    left, right = left[rows], right[rows]
    while len(rows):
        at_left, at_right = table.merged_at[left], table.merged_at[right]
        undo_left = at_left > at_right
        left = np.where(undo_left, table.right[left], left)
        right = np.where(undo_left | (at_right < 0), right, table.left[right])
        across = table.find_joined(left, right)
        crossed = np.where(undo_left, across < at_left, across <= at_right)
        reached[rows[crossed]] = False
        going = ~crossed & ((table.merged_at[left] >= 0) | (table.merged_at[right] >= 0))
        rows, left, right = rows[going], left[going], right[going]
    return reached
