r"""Pre-tokenizers of byte-level BPE: how text is cut before merging, by the names of `tokenizer.ggml.pre`.

Each is data: patterns applied one after the other, every match and every gap becoming a piece of its own. The
patterns are those that the models' own tokenizer files state, in Oniguruma syntax. Names with the same row are models
that share a pre-tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRE_TOKENIZERS", "PreTokenizer"]


@dataclass(frozen=True)
class PreTokenizer:
    """One way to cut text.

    Attributes:
        patterns: regular expressions, each applied to the pieces that the one before left.
        ignore_merges: a piece that is a token as it stands is taken whole, even if no merges lead to it.
        add_bos: whether a BOS is put before a text if the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


def _words(digits: str, *, letters: str = r"\p{L}", marks: str = "", suffix: str = r"[\r\n]*") -> str:
    """The pattern of the cl100k family, which differs in how digits, combining marks and line ends are taken."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}"
        rf"| ?[^\s\p{{L}}{marks}\p{{N}}]+{suffix}|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased_words(digits: str, contractions: str) -> str:
    """The pattern of the o200k family: words end where lower case turns into upper case."""
    head = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{head}{_UPPER}*{_LOWER}+{contractions}|{head}{_UPPER}+{_LOWER}*{contractions}|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


# The cased letters (general categories Lu, Ll, Lt) of the Unicode version that DeepSeek's first tokenizers froze.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_SYMBOL_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_gpt2 = PreTokenizer((_GPT2,))
_digits_gpt2 = PreTokenizer((r"\p{N}", _GPT2))
_llama3 = PreTokenizer((_words(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_three_digits = PreTokenizer((_words(r"\p{N}{1,3}"),))
_qwen2 = PreTokenizer((_words(r"\p{N}"),))
_o200k = PreTokenizer((_cased_words(r"\p{N}{1,3}", _CONTRACTIONS + "?"),))
_deepseek_v3 = PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _SYMBOL_WORDS))
_deepseek_llm = PreTokenizer(
    (
        r"[\r\n]",
        rf"\s?[{_CASED}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _CJK,
        r"\p{N}+",
    )
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    # What files without a name were made with: punctuation first, digits in groups of three last.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "exaone4", "gigachat", "trillion"), _gpt2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _digits_gpt2),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _llama3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _three_digits),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "solar-open", "grok-2"), _qwen2),
    "qwen35": PreTokenizer((_words(r"\p{N}", letters=r"[\p{L}\p{M}]", marks=r"\p{M}"),)),
    "tekken": PreTokenizer((_cased_words(r"\p{N}", ""),), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "o200k", "llama4", "kanana2"), _o200k),
    "deepseek-llm": _deepseek_llm,
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _deepseek_v3),
}
