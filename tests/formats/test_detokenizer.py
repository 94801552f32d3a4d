"""The incremental detokenizer against decoding all at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.vocabularies import CONTROL, MARK, USER_DEFINED, bpe_metadata, spm_metadata
from octavo.core.errors import InvalidParameterError
from octavo.formats.detokenizer import Detokenizer
from octavo.formats.gguf import GGUFFile
from octavo.formats.tokenizer import Tokenizer

EXTRA = {"<|im_end|>": CONTROL, "<tool>": USER_DEFINED, "  ": USER_DEFINED}
WORDS = {MARK: -9.0, "a": -8.0, "b": -7.0, "ab": -1.0, MARK + "ab": -2.0, "é": -3.0, MARK + MARK: -4.0}
BPE = Tokenizer.from_metadata(bpe_metadata([("h", "e"), ("Ġ", "he"), ("ð", "Ł")], extra=EXTRA))


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_metadata(spm_metadata(WORDS, extra=EXTRA), cache_dir=tmp_path_factory.mktemp("kept"))


def streamed(tokenizer: Tokenizer, ids: list[int], **options: object) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)  # type: ignore[arg-type]
    return [*(detokenizer.append(i) for i in ids), detokenizer.flush()]


def check(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    pieces = streamed(tokenizer, ids, skip_special_tokens=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(st.lists(st.integers(0, BPE.vocab_size - 1)), st.booleans())
def test_bpe_any_ids(ids: list[int], skip: bool) -> None:
    check(BPE, ids, skip)


@given(ids=st.lists(st.integers(0, 268)), skip=st.booleans())
def test_spm_any_ids(spm: Tokenizer, ids: list[int], skip: bool) -> None:
    check(spm, ids, skip)


@given(text=st.text())
def test_text_is_never_cut_inside_a_character(spm: Tokenizer, text: str) -> None:
    for tokenizer in (BPE, spm):
        expected = text.replace(MARK, " ") if tokenizer is spm else text
        pieces = streamed(tokenizer, tokenizer.encode(text))
        assert "".join(pieces) == expected
        assert all("\ufffd" not in piece for piece in pieces if "\ufffd" not in text)
        assert pieces[-1] == ""  # nothing is held back once characters are complete


@given(before=st.text(min_size=1), after=st.text(), cut=st.integers(0, 40))
def test_a_continuation_is_what_it_adds_to_the_prompt(spm: Tokenizer, before: str, after: str, cut: int) -> None:
    for tokenizer in (BPE, spm):
        ids = tokenizer.encode(before + after)
        prompt, rest = ids[:cut], ids[cut:]
        text = "".join(streamed(tokenizer, rest, prompt_ids=prompt))
        certain = streamed(tokenizer, prompt)[:-1]  # what of the prompt was certain without the continuation
        assert "".join(certain) + text == tokenizer.decode(ids)


def test_an_emoji_arrives_whole() -> None:
    assert streamed(BPE, list("🙂!".encode())) == ["", "", "", "🙂", "!", ""]
    assert streamed(BPE, list("🙂".encode())[:3]) == ["", "", "", "\ufffd"]
    assert streamed(BPE, [0xF0, 0x9F, ord("x")]) == ["", "", "\ufffdx", ""]


def test_leading_space(spm: Tokenizer) -> None:
    ids = spm.encode("ab ab", add_special_tokens=False)
    assert "".join(streamed(spm, ids)) == "ab ab"
    assert "".join(streamed(spm, ids, prompt_ids=spm.encode("ab"))) == " ab ab"
    assert "".join(streamed(spm, ids, prompt_ids=[1])) == "ab ab"  # only BOS before: still the start of a text
    assert "".join(streamed(spm, ids, at_start=False)) == " ab ab"
    assert "".join(streamed(spm, ids, prompt_ids=spm.encode("ab"), at_start=True)) == "ab ab"


def test_special_tokens() -> None:
    end = BPE.token_id("<|im_end|>")
    assert end is not None
    ids = [ord("a"), end, ord("b")]
    assert streamed(BPE, ids) == ["a", "", "b", ""]
    assert streamed(BPE, ids, skip_special_tokens=False) == ["a", "<|im_end|>", "b", ""]


def test_ids_outside_the_vocabulary() -> None:
    with pytest.raises(InvalidParameterError):
        Detokenizer(BPE).append(BPE.vocab_size)
    with pytest.raises(InvalidParameterError):
        Detokenizer(BPE, prompt_ids=[BPE.vocab_size])


def test_after_flush_ids_begin_afresh() -> None:
    detokenizer = Detokenizer(BPE)
    assert detokenizer.append(0xF0) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
    assert detokenizer.append(ord("a")) == "a"


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q4_1.gguf", "qwen2.5-coder-0.5b-instruct-q4.gguf"])
def test_real_vocabularies(name: str, real_model: Callable[[str], Path]) -> None:
    tokenizer = Tokenizer.from_metadata(GGUFFile.open(real_model(name)).metadata)
    text = "Ein Ärgernis: 深度学习 👩‍👩‍👧‍👦 𝔘𝔫𝔦 नमस्ते\n\n    x = 1"
    ids = tokenizer.encode(text)
    assert "".join(streamed(tokenizer, ids)) == text
    everything = list(range(0, tokenizer.vocab_size, 7))
    for skip in (True, False):
        check(tokenizer, everything, skip)
