"""Which two tokens each token is merged from: all at once against one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.formats.spm_merges import merges_of


def halves_by_merging(text: str, ranks: dict[str, int]) -> tuple[str, str] | None:
    """Merges `text` alone, best rank first, leftmost of equals; the last pair if one symbol is left."""
    symbols = list(text)
    pair = None
    while len(symbols) > 1:
        found = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ranks]
        if not found:
            return None
        at = min(found)[1]
        pair = (symbols[at], symbols[at + 1])
        symbols[at : at + 2] = ["".join(pair)]
    return pair


_text = st.text("ab", min_size=1, max_size=7) | st.text("abc", min_size=2, max_size=4)


@given(st.lists(_text, unique=True, max_size=40), st.randoms(use_true_random=False), st.booleans())
@example(["aa", "aaa", "aaaaa", "aaaa"], None, False)
@example(["bc", "abc", "ab"], None, False)  # "abc" before its half: the order of scores is not the order of merging
def test_all_at_once_equals_one_by_one(texts: list[str], random: Any, trained: bool) -> None:
    if random is not None:
        random.shuffle(texts)
    if trained:  # as trained vocabularies are: what a token is made of comes first
        texts.sort(key=len)
    tokens = ["<unk>", *texts]
    scores = np.array([0.0, *(-float(i) for i in range(len(texts)))], np.float32)
    merges = merges_of(tokens, np.arange(1, len(tokens)), scores)
    assert set(merges.lone) == {c for text in texts for c in text} - set(texts)
    names = [*tokens, *merges.lone]
    got = {names[a]: (names[b], names[c]) for a, b, c in zip(merges.made, merges.left, merges.right, strict=True)}
    ranks = {text: rank for rank, text in enumerate(texts)}
    wanted = {text: halves_by_merging(text, ranks) for text in texts if len(text) > 1}
    assert got == {text: pair for text, pair in wanted.items() if pair is not None}
    assert [ranks[names[i]] for i in merges.made] == sorted(ranks[names[i]] for i in merges.made)


def test_characters_before_a_word_mark() -> None:
    tokens = ["a\u2581", "\u2581\u2581", "\u2581a", ">\u2581<"]
    merges = merges_of(tokens, np.arange(4), np.zeros(4, np.float32))
    assert merges.joiners == ">a"
    assert merges.lone == "<>a\u2581"


def test_no_tokens() -> None:
    merges = merges_of(["<unk>"], np.arange(0), np.zeros(1, np.float32))
    assert len(merges.made) == 0
    assert (merges.lone, merges.joiners) == ("", "")
