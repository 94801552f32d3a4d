"""Tokenizers against golden token ids, against plain mergers, and against malformed metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from helpers.vocabularies import (
    CONTROL,
    MARK,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    bpe_metadata,
    merge_by_score,
    spm_metadata,
)
from octavo.core.errors import (
    ConfigError,
    InvalidParameterError,
    ModelFormatError,
    RequestError,
    UnsupportedModelError,
)
from octavo.formats.gguf import GGUFFile
from octavo.formats.pretokenizers import PRE_TOKENIZERS
from octavo.formats.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent.parent / "golden"
REAL = [
    ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m.tokens.json"),
    ("qwen2.5-coder-0.5b-instruct-q4.gguf", "qwen2.5-coder-0.5b.tokens.json"),
    ("qwen2.5-coder-1.5b-instruct-q4.gguf", "qwen2.5-coder-0.5b.tokens.json"),
    ("gemma-3-270m-q4_k_m.gguf", "gemma3-270m.tokens.json"),
]
HELLO = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello")]
WORDS = {MARK: -9.0, "a": -8.0, "b": -7.0, "c": -6.0, "ab": -1.0, MARK + "ab": -2.0, "abc": -3.0, MARK + MARK: -4.0}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTAVO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def spm(*arguments: Any, **keys: Any) -> Tokenizer:
    return Tokenizer.from_metadata(spm_metadata(*arguments, **keys))


def bpe(*arguments: Any, **keys: Any) -> Tokenizer:
    return Tokenizer.from_metadata(bpe_metadata(*arguments, **keys))


def texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in ids]


# --- real models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "golden"), REAL, ids=[name for name, _ in REAL])
def test_golden_tokens_both_ways(model: str, golden: str, real_model: Callable[[str], Path]) -> None:
    tokenizer = Tokenizer.from_metadata(GGUFFile.open(real_model(model)).metadata)
    rows = json.loads((GOLDEN / golden).read_text())["rows"]
    assert len(rows) > 40
    for row in rows:
        assert tokenizer.encode(row["text"], add_special_tokens=False) == row["ids"], row["text"]
        assert tokenizer.decode(row["ids"]) == row["text"]


def test_gemma_vocabulary(real_model: Callable[[str], Path]) -> None:
    metadata = GGUFFile.open(real_model("gemma-3-270m-q4_k_m.gguf")).metadata
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.vocab_size == 262144
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id) == (2, 1, 3, 0)
    assert tokenizer.eog_ids == {1, tokenizer.token_id("<end_of_turn>")}
    assert tokenizer.add_bos
    assert not tokenizer.add_space_prefix
    assert tokenizer.encode("Hello world") == [2, 9259, 1902]
    again = Tokenizer.from_metadata(metadata)  # now from the kept merges
    assert again.encode("Merges of the second time, ¼ übermäßig.") == tokenizer.encode(
        "Merges of the second time, ¼ übermäßig."
    )
    scores = np.asarray(metadata["tokenizer.ggml.scores"])
    types = np.asarray(metadata["tokenizer.ggml.token_type"])
    tokens = list(metadata["tokenizer.ggml.tokens"])
    scored = {tokens[i]: float(scores[i]) for i in np.flatnonzero(types == NORMAL)}
    for text in ("internationalisation", "x>▁</y", "Donaudampfschifffahrt▁und▁Ähnliches", "▁::::::::", "▁YYYY"):
        wanted = merge_by_score(text, scored)
        got = tokenizer.encode(text.replace(MARK, " "), add_special_tokens=False)
        assert texts(tokenizer, got) == wanted


def test_smollm2_special_tokens(real_model: Callable[[str], Path]) -> None:
    tokenizer = Tokenizer.from_metadata(GGUFFile.open(real_model("SmolLM2-135M-Instruct.Q4_1.gguf")).metadata)
    assert tokenizer.eog_ids == {0, 2}
    assert not tokenizer.add_bos
    text = "<|im_start|>user\nhi<|im_end|>"
    assert 1 not in tokenizer.encode(text)
    parsed = tokenizer.encode(text, parse_special=True)
    assert (parsed[0], parsed[-1]) == (1, 2)
    assert tokenizer.decode(parsed) == "user\nhi"
    assert tokenizer.decode(parsed, skip_special_tokens=False) == text
    assert tokenizer.special_ids == frozenset(range(17))


# --- byte-level BPE --------------------------------------------------------------------------------------------------


def test_bpe_merges_in_order() -> None:
    tokenizer = bpe(HELLO)
    ids = tokenizer.encode("hello hello hell")
    assert texts(tokenizer, ids) == ["hello", "Ġhello", "Ġ", "hell"]
    assert tokenizer.token_bytes(ids[1]) == b" hello"


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_all_text(pre: str) -> None:
    tokenizer = bpe(HELLO, pre=pre)
    text = (
        "".join(map(chr, range(0x250)))
        + "  hello\r\n\n\tΑβγ дом 中文ひらカナ 한글 ไทย e\u0301 1234567 🙂🚀 don't I'LL  "
    )
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text(), st.sampled_from(sorted(PRE_TOKENIZERS)))
def test_bpe_round_trip_is_exact(text: str, pre: str) -> None:
    tokenizer = KNOWN.get(pre) or KNOWN.setdefault(pre, bpe(HELLO, pre=pre))
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


KNOWN: dict[str, Tokenizer] = {}

CUTS = [
    ("gpt-2", "it's 1234 don'T", ["it", "'s", " 1234", " don", "'", "T"]),
    ("smollm", "a 12", ["a", " ", "1", "2"]),
    ("starcoder", "x9\n\n y", ["x", "9", "\n\n", " y"]),
    ("llama-bpe", "I'LL pay 12345!\n\n ok", ["I", "'LL", " pay", " ", "123", "45", "!\n\n", " ok"]),
    ("qwen2", "a  b 123\r\n!", ["a", " ", " b", " ", "1", "2", "3", "\r\n", "!"]),
    ("qwen2", "e\u0301t", ["e", "\u0301t"]),
    ("qwen35", "e\u0301t", ["e\u0301t"]),
    ("tekken", "camelCase HTTPServer 12", ["camel", "Case", " HTTPServer", " ", "1", "2"]),
    ("gpt-4o", "camelCase don't 1234/\n", ["camel", "Case", " don't", " ", "123", "4", "/\n"]),
    ("deepseek-llm", "int x=1;\n", ["int", " x", "=", "1", ";", "\n"]),
    ("deepseek-llm", "中文字abc", ["中文字", "abc"]),
    ("deepseek-coder", "a12, b", ["a", "1", "2", ",", " b"]),
    ("deepseek-v3", "x 12345 #if\n#if", ["x", " ", "123", "45", " #", "if", "\n", "#if"]),
    ("falcon", "ab, 1234", ["ab", ",", " ", "123", "4"]),
    ("default", "ab, 1234", ["ab", ",", " ", "123", "4"]),
]


@pytest.mark.parametrize(("pre", "text", "pieces"), CUTS)
def test_where_text_is_cut(pre: str, text: str, pieces: list[str]) -> None:
    cut = Sequence([Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[pre].patterns])
    assert [piece for piece, _ in cut.pre_tokenize_str(text)] == pieces


def test_ignore_merges_takes_a_whole_piece() -> None:
    # "abc" is a token that no merge leads to.
    merges = [("b", "c")]
    assert texts(bpe(merges), bpe(merges, extra={"abc": NORMAL}).encode("abc")) == ["a", "bc"]
    for pre, whole in (("llama-bpe", True), ("tekken", True), ("qwen2", False)):
        tokenizer = bpe(merges, extra={"abc": NORMAL}, pre=pre)
        assert texts(tokenizer, tokenizer.encode("abc")) == (["abc"] if whole else ["a", "bc"])


def test_ignore_merges_never_gives_a_control_token() -> None:
    tokenizer = bpe([], extra={"stop": CONTROL}, pre="llama-bpe")
    assert texts(tokenizer, tokenizer.encode("stop")) == list("stop")
    assert texts(tokenizer, tokenizer.encode("stop", parse_special=True)) == ["stop"]


def test_llama3_adds_bos_by_default_and_qwen2_does_not() -> None:
    extra = {"<bos>": CONTROL}
    assert bpe([], extra=extra, pre="llama-bpe", bos_token_id=256).encode("a")[0] == 256
    assert bpe([], extra=extra, pre="qwen2", bos_token_id=256).encode("a") == [ord("a")]
    assert not bpe([], pre="llama-bpe").add_bos  # the file names no BOS


def test_bpe_without_a_byte_refuses_texts_that_need_it() -> None:
    metadata = bpe_metadata()
    metadata["tokenizer.ggml.tokens"][ord("q")] = "<gone>"
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.decode(tokenizer.encode("abc")) == "abc"
    with pytest.raises(RequestError, match="not all in the vocabulary"):
        tokenizer.encode("quit")


def test_bpe_space_prefix_if_the_file_asks_for_it() -> None:
    tokenizer = bpe(HELLO, add_space_prefix=True)
    assert texts(tokenizer, tokenizer.encode("hello")) == ["Ġhello"]
    assert texts(tokenizer, tokenizer.encode(" hello")) == ["Ġhello"]


# --- SentencePiece ---------------------------------------------------------------------------------------------------

_symbols = st.text("ab" + MARK, min_size=2, max_size=6)


@given(st.lists(_symbols, unique=True, max_size=24), st.text("abc ", max_size=24), st.randoms(use_true_random=False))
def test_spm_equals_merging_by_score(found: list[str], text: str, random: Any) -> None:
    order = ["a", "b", MARK, *found]
    random.shuffle(order)
    scored = {token: -float(i) for i, token in enumerate(order)}
    tokenizer = spm(scored, add_space_prefix=False)
    got = tokenizer.encode(text, add_special_tokens=False)
    wanted: list[str] = []
    for symbol in merge_by_score(text.replace(" ", MARK), scored):
        wanted += [symbol] if symbol in scored else [f"<0x{value:02X}>" for value in symbol.encode()]
    assert texts(tokenizer, got) == wanted
    assert tokenizer.decode(got) == text


@given(st.lists(st.text("ab", min_size=2, max_size=4), unique=True, max_size=12), st.text("ab", max_size=16))
def test_spm_characters_that_are_no_tokens_still_merge(found: list[str], text: str) -> None:
    scored = {token: -float(i) for i, token in enumerate(found)}
    tokenizer = spm(scored, add_space_prefix=False)
    wanted: list[str] = []
    for symbol in merge_by_score(text, scored):
        wanted += [symbol] if symbol in scored else [f"<0x{ord(symbol):02X}>"]
    assert texts(tokenizer, tokenizer.encode(text, add_special_tokens=False)) == wanted


@given(st.text())
def test_spm_round_trip(text: str) -> None:
    tokenizer = KNOWN.get("spm") or KNOWN.setdefault("spm", spm(WORDS))
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace(MARK, " ")


def test_spm_prefix_bos_and_bytes() -> None:
    tokenizer = spm(WORDS)
    assert texts(tokenizer, tokenizer.encode("abc ab")) == ["<s>", MARK + "ab", "c", MARK + "ab"]
    assert texts(tokenizer, tokenizer.encode("é", add_special_tokens=False)) == [MARK, "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("abc ab"), skip_special_tokens=False) == "<s>abc ab"
    bare = spm(WORDS, add_space_prefix=False, add_bos_token=False, add_eos_token=True)
    assert texts(bare, bare.encode("abc ab")) == ["abc", MARK + "ab", "</s>"]


def test_spm_prefix_follows_control_but_not_user_defined_tokens() -> None:
    tokenizer = spm(WORDS, extra={"[INST]": CONTROL, "\n\n": USER_DEFINED})
    ids = tokenizer.encode("[INST]ab\n\nab", parse_special=True)
    assert texts(tokenizer, ids) == ["<s>", "[INST]", MARK + "ab", "\n\n", "ab"]


def test_spm_user_defined_tokens_are_found_in_plain_text() -> None:
    runs = {"\n": USER_DEFINED, "\n\n": USER_DEFINED, MARK * 3: USER_DEFINED, "</td>": USER_DEFINED}
    tokenizer = spm(WORDS, extra=runs, add_space_prefix=False)
    ids = tokenizer.encode("a\n\n\nb    c</td>", add_special_tokens=False)
    assert texts(tokenizer, ids) == ["a", "\n\n", "\n", "b", MARK * 3, MARK, "c", "</td>"]
    assert tokenizer.decode(ids) == "a\n\n\nb    c</td>"


def test_spm_unknown_characters() -> None:
    with_unknown = spm(WORDS, with_bytes=False, add_space_prefix=False)
    assert texts(with_unknown, with_unknown.encode("aééb", add_special_tokens=False)) == ["a", "<unk>", "b"]
    metadata = spm_metadata(WORDS, with_bytes=False)
    metadata["tokenizer.ggml.unknown_token_id"] = 2**32 - 1  # what some converters write for "none"
    with pytest.raises(RequestError, match="cannot express"):
        Tokenizer.from_metadata(metadata).encode("é")


def test_spm_unused_tokens_stand_for_their_parts() -> None:
    scored = {"a": -5.0, "b": -6.0, "c": -7.0, "ab": -1.0, "abc": -2.0, "abcc": -3.0}
    metadata = spm_metadata(scored, add_space_prefix=False)
    for text in ("ab", "abc"):
        metadata["tokenizer.ggml.token_type"][metadata["tokenizer.ggml.tokens"].index(text)] = UNUSED
    tokenizer = Tokenizer.from_metadata(metadata)
    assert texts(tokenizer, tokenizer.encode("abc", add_special_tokens=False)) == ["a", "b", "c"]
    assert texts(tokenizer, tokenizer.encode("abcc", add_special_tokens=False)) == ["abcc"]


def test_spm_merges_are_kept_and_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    metadata = spm_metadata(WORDS)
    wanted = Tokenizer.from_metadata(metadata, cache_dir=tmp_path / "kept").encode("abc abab")
    (kept,) = (tmp_path / "kept").iterdir()
    sound = kept.read_bytes()
    for damaged in (b"", sound[:-4], sound[:40] + b"\1" + sound[41:], b"x" * 200):
        kept.write_bytes(damaged)
        assert Tokenizer.from_metadata(metadata, cache_dir=tmp_path / "kept").encode("abc abab") == wanted
        assert kept.read_bytes() == sound
    other = spm_metadata({**WORDS, "ab": -5.5})
    Tokenizer.from_metadata(other, cache_dir=tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_spm_works_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tokenizer = Tokenizer.from_metadata(spm_metadata(WORDS), cache_dir=tmp_path / "file" / "below")
    assert tokenizer.decode(tokenizer.encode("abc")) == "abc"


# --- special tokens, both kinds --------------------------------------------------------------------------------------

CHAT = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<tool>": USER_DEFINED, "<|endoftext|>": CONTROL}


@pytest.mark.parametrize("build", [lambda: bpe([], extra=CHAT, eos_token_id=257), lambda: spm(WORDS, extra=CHAT)])
def test_special_spellings_in_plain_text_stay_text(build: Callable[[], Tokenizer]) -> None:
    tokenizer = build()
    text = "<|im_start|>a<tool>b<|im_end|><|im_start|"
    plain = tokenizer.encode(text, add_special_tokens=False)
    assert not tokenizer.special_ids & set(plain)
    assert tokenizer.token_id("<tool>") in plain
    assert tokenizer.decode(plain) == text
    parsed = texts(tokenizer, tokenizer.encode(text, add_special_tokens=False, parse_special=True))
    assert parsed.count("<|im_start|>") == parsed.count("<|im_end|>") == parsed.count("<tool>") == 1
    assert tokenizer.token_id("<|im_end|>") in tokenizer.eog_ids
    assert tokenizer.token_id("<|endoftext|>") in tokenizer.eog_ids


def test_a_spelled_bos_is_not_doubled() -> None:
    tokenizer = spm(WORDS, add_eos_token=True)
    assert texts(tokenizer, tokenizer.encode("<s>ab</s>", parse_special=True)) == ["<s>", MARK + "ab", "</s>"]
    assert tokenizer.encode("", parse_special=True) == tokenizer.encode("") == [1, 2]


def test_longest_spelling_wins() -> None:
    tokenizer = bpe([], extra={"<a": CONTROL, "<ab>": CONTROL, "<ab>c": CONTROL, "\n": CONTROL, "\n\n": CONTROL})
    assert texts(tokenizer, tokenizer.encode("x\n\n\n<b", parse_special=True)) == ["x", "\n\n", "\n", "<", "b"]
    ids = tokenizer.encode("<ab>c<ab><ab", parse_special=True)
    assert texts(tokenizer, ids) == ["<ab>c", "<ab>", "<a", "b"]


def test_end_marks_of_harmony_do_not_end_the_answer() -> None:
    marks = {"<|end|>": CONTROL, "<|return|>": CONTROL, "<|call|>": CONTROL}
    tokenizer = bpe([], extra=marks, pre="gpt-4o", eos_token_id=257)
    assert tokenizer.eog_ids == {257, 258}
    assert bpe([], extra={"<|end|>": CONTROL}).eog_ids == {256}
    assert bpe([], extra={"<|end|>": NORMAL}).eog_ids == frozenset()  # text of a normal token ends nothing


def test_eot_and_eom_of_the_file_end_a_generation() -> None:
    extra = {"A": CONTROL, "B!": CONTROL, "C!": CONTROL}
    metadata = bpe_metadata([], extra={f"{key}#": value for key, value in extra.items()})
    metadata |= {"tokenizer.ggml.eos_token_id": 256, "tokenizer.ggml.eot_token_id": np.uint32(257)}
    metadata |= {"tokenizer.ggml.eom_token_id": 258}
    assert Tokenizer.from_metadata(metadata).eog_ids == {256, 257, 258}


def test_a_file_without_token_types() -> None:
    metadata = spm_metadata(WORDS)
    del metadata["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.special_ids == {0, 1, 2}
    assert texts(tokenizer, tokenizer.encode("é")) == ["<s>", MARK, "<0xC3>", "<0xA9>"]


# --- what is refused -------------------------------------------------------------------------------------------------


def test_unknown_pre_tokenizer_lists_the_known_and_can_be_overridden() -> None:
    metadata = bpe_metadata(HELLO, pre="brand-new")
    with pytest.raises(UnsupportedModelError, match=r"brand-new.*llama-bpe.*qwen2.*tokenizer_pre") as caught:
        Tokenizer.from_metadata(metadata)
    assert "\n" not in str(caught.value)
    tokenizer = Tokenizer.from_metadata(metadata, pre="gpt-2")
    assert texts(tokenizer, tokenizer.encode("hello")) == ["hello"]
    with pytest.raises(UnsupportedModelError, match="tokenizer_pre = 'nope'"):
        Tokenizer.from_metadata(metadata, pre="nope")
    with pytest.raises(ConfigError, match="SentencePiece"):
        Tokenizer.from_metadata(spm_metadata(WORDS), pre="gpt-2")


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", 7])
def test_unsupported_kinds_name_the_supported(model: object) -> None:
    with pytest.raises(UnsupportedModelError, match=r"gpt2.*llama"):
        Tokenizer.from_metadata({**bpe_metadata(), "tokenizer.ggml.model": model})


@pytest.mark.parametrize(
    ("kind", "key", "value", "message"),
    [
        ("bpe", "model", None, "model is missing"),
        ("bpe", "tokens", None, "tokens is missing"),
        ("bpe", "tokens", [], "tokens is empty"),
        ("bpe", "tokens", "text", "array of strings"),
        ("bpe", "tokens", [1, 2], "strings only"),
        ("bpe", "tokens", ["a"] * 261, "twice"),
        ("bpe", "token_type", [1, 2], "2 entries for 26"),
        ("bpe", "token_type", ["x"] * 256, "numbers"),
        ("bpe", "merges", None, "merges is missing"),
        ("bpe", "merges", ["a b c"], "entry 0, is not two tokens"),
        ("bpe", "merges", ["ab"], "entry 0, is not two tokens"),
        ("bpe", "merges", ["x y"], "does not fit"),
        ("bpe", "bos_token_id", 10**6, "outside the vocabulary"),
        ("bpe", "eos_token_id", -1, "outside the vocabulary"),
        ("bpe", "eos_token_id", "2", "must be an integer"),
        ("bpe", "eos_token_id", True, "must be an integer"),
        ("bpe", "add_bos_token", 1, "must be a boolean"),
        ("bpe", "add_bos_token", True, "bos_token_id is missing"),
        ("spm", "scores", None, "scores is missing"),
        ("spm", "scores", [1.0], "1 entries"),
        ("spm", "scores", np.full(267, np.nan, np.float32), "not finite"),
        ("spm", "token_type", np.full(267, 6, np.int32), "marked as a byte"),
    ],
)
def test_malformed_metadata(kind: str, key: str, value: object, message: str) -> None:
    metadata = bpe_metadata(HELLO) if kind == "bpe" else spm_metadata(WORDS)
    metadata[f"tokenizer.ggml.{key}"] = value
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(ModelFormatError, match=message) as caught:
        Tokenizer.from_metadata(metadata)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("token_id", [-1, 262, 10**12])
def test_ids_outside_the_vocabulary(token_id: int) -> None:
    tokenizer = bpe(HELLO)
    for ask in (tokenizer.token_bytes, tokenizer.token_text, tokenizer.is_special, lambda i: tokenizer.decode([65, i])):
        with pytest.raises(InvalidParameterError, match="0 to 260"):
            ask(token_id)


def test_lone_surrogates_are_refused() -> None:
    for tokenizer in (bpe(HELLO), spm(WORDS)):
        with pytest.raises(RequestError, match=r"U\+D83D at character 2"):
            tokenizer.encode("ab\ud83d")


def test_bytes_that_are_no_text_decode_to_replacement_characters() -> None:
    tokenizer = bpe()
    assert tokenizer.decode([0xFF, ord("a"), 0xF0, 0x9F]) == "\ufffda\ufffd"
