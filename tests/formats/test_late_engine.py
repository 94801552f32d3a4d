"""Plain merging gives what the library gives, and hands over to it when it should."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.vocabularies import MARK, bpe_metadata, byte_characters, spm_metadata
from octavo.core.errors import ModelFormatError
from octavo.formats import late_engine
from octavo.formats.gguf import GGUFFile
from octavo.formats.late_engine import LateEngine, merge_symbols
from octavo.formats.tokenizer import Tokenizer

TEXTS = [
    "Hello world, it's 12345 o'clock.",
    "  indented\n\n\tdef f(x):\r\n    return x**2  ",
    "naïve Übergröße 東京 😀👍🏽 \u200d\x00\x07",
    "a" * 300 + " " * 40 + "ab" * 99,
    "",
]


def engine_of(tokenizer: Tokenizer) -> LateEngine:
    engine = tokenizer._engine._engine  # type: ignore[attr-defined]
    assert isinstance(engine, LateEngine)
    return engine


def both(metadata: Any, text: str) -> tuple[list[int], list[int]]:
    """The ids that plain merging gives, and those that the library gives."""
    plain, library = Tokenizer.from_metadata(metadata), Tokenizer.from_metadata(metadata)
    engine_of(library)._whole()
    found = plain.encode(text), library.encode(text)
    assert engine_of(plain)._library is None, "this text was not merged in Python"
    return found


@st.composite
def bpe_merges(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Merges over a few letters, each of parts that exist by then, so that many apply to the same text."""
    known, merges = list("abcĠ"), []
    for _ in range(draw(st.integers(1, 14))):
        pair = (draw(st.sampled_from(known)), draw(st.sampled_from(known)))
        merges.append(pair)
        known.append("".join(pair))
    return draw(st.permutations(merges))


@given(merges=bpe_merges(), text=st.text("abc é", max_size=40), pre=st.sampled_from(["gpt-2", "llama-bpe"]))
def test_byte_level_pairs_merge_alike(merges: list[tuple[str, str]], text: str, pre: str) -> None:
    plain, library = both(bpe_metadata(merges, pre=pre), text)
    assert plain == library


@given(
    words=st.dictionaries(st.text("abc" + MARK, min_size=1, max_size=5), st.floats(-20, -1, width=16), max_size=20),
    text=st.text("abc é😀", max_size=40),
)
def test_sentencepiece_pairs_merge_alike(words: dict[str, float], text: str) -> None:
    plain, library = both(spm_metadata(words), text)
    assert plain == library


@pytest.mark.parametrize(
    "model", ["SmolLM2-135M-Instruct.Q4_1", "qwen2.5-coder-0.5b-instruct-q4", "gemma-3-270m-q4_k_m"]
)
def test_real_vocabularies_merge_alike(model: str, real_model: Callable[[str], Path]) -> None:
    metadata = GGUFFile.open(real_model(f"{model}.gguf")).metadata
    plain, library = Tokenizer.from_metadata(metadata), Tokenizer.from_metadata(metadata)
    engine_of(library)._whole()
    source = Path(late_engine.__file__).read_text()
    for text in [*TEXTS, source]:
        assert plain.encode(text) == library.encode(text), text
    assert engine_of(plain)._library is None


def test_a_pair_whose_part_is_no_token_never_merges() -> None:
    metadata = bpe_metadata([("a", "b")], extra={"xyz": 1})
    metadata["tokenizer.ggml.merges"] = ["xy z", "a b"]
    plain, library = both(metadata, "ab xyz")
    assert plain == library
    metadata["tokenizer.ggml.merges"] = ["x y", "a b"]
    with pytest.raises(ModelFormatError, match=r"entry 0, 'x y', does not make a token"):
        Tokenizer.from_metadata(metadata)


class Library:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        assert not add_special_tokens
        self.texts.append(text)
        return type("Encoding", (), {"ids": [ord(character) for character in text]})


def test_the_library_takes_over_for_good() -> None:
    built: list[Library] = []

    def build(cuts: object) -> Library:
        assert cuts is None
        built.append(Library())
        return built[-1]

    engine = LateEngine(None, lambda piece: [ord(c) for c in piece] if "!" not in piece else None, build)
    assert engine.encode("ab") == [97, 98]
    assert not built
    assert engine.encode("!") == [33]
    assert engine.encode("ab") == [97, 98]
    assert len(built) == 1
    assert built[0].texts == ["!", "ab"]


@pytest.mark.parametrize("text", ["a" * (late_engine.LONGEST_PIECE + 1), "a" * (late_engine.PLAIN_CHARACTERS + 1)])
def test_long_texts_go_to_the_library(text: str) -> None:
    library = Library()
    engine = LateEngine(None, lambda piece: [0] * len(piece), lambda cuts: library)
    assert engine.encode(text) == [97] * len(text)
    assert library.texts == [text]


def test_many_short_texts_make_the_library_pay() -> None:
    library = Library()
    engine = LateEngine(None, lambda piece: [0] * len(piece), lambda cuts: library)
    for _ in range(late_engine.PLAIN_CHARACTERS // 500):
        engine.encode("b" * 500)
    assert not library.texts
    engine.encode("b" * 500)
    assert len(library.texts) == 1


@given(st.text("ab", max_size=12), st.permutations(["aa", "ab", "ba", "aab", "abab", "aaaa"]))
def test_the_best_pair_merges_first(text: str, order: list[str]) -> None:
    merged = merge_symbols(list(text), lambda a, b: order.index(a + b) if a + b in order else None)
    assert "".join(merged) == text
    assert not any(a + b in order for a, b in pairwise(merged))
    symbols = list(text)  # the same by searching all pairs anew each time
    while pairs := [(order.index(a + b), i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in order]:
        at = min(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    assert merged == symbols


def test_all_bytes_survive() -> None:
    text = bytes(range(256)).decode("latin-1")
    plain, library = both(bpe_metadata(), text)
    assert plain == library
    assert len(byte_characters()) == 256
