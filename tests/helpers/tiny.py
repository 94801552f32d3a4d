"""Tiny random models as real GGUF files, written by the public `gguf` package, that load in milliseconds.

    path = write_tiny_gguf(tmp_path / "m.gguf", "qwen3", layers=3, quant="Q8_0")

Vocabulary (320): the 256 byte tokens of GPT-2's byte-level BPE (ids 0..255), 56 merges (256..311), then
<|endoftext|>, <|im_start|>, <|im_end|>, <|pad|> and four reserved tokens, all of type "control".
The chat template is ChatML. Weights depend on the seed alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ARCHITECTURES",
    "CHAT_TEMPLATE",
    "ENDOFTEXT",
    "IM_END",
    "IM_START",
    "MERGES",
    "PAD",
    "SPECIAL",
    "TOKENS",
    "VOCAB",
    "TinySpec",
    "tiny_metadata",
    "tiny_spec",
    "tiny_tensors",
    "write_gguf",
    "write_tiny_gguf",
]

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_WORDS = "th in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve"
_LONGER = (
    "th|e in|g an|d Ġ|t Ġ|a Ġ|s Ġ|w Ġt|he Ġ|o Ġ|c Ġ|b Ġ|f Ġ|p Ġ|m Ġ|h Ġ|d Ġa|n Ġa|nd Ġth|e Ġt|o Ġo|f Ġ|in Ġ|is Ġi|t"
)


def _byte_characters() -> list[str]:
    """The character that stands for each byte in GPT-2's vocabulary: printable ones for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in printable]
    table = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [table[b] for b in range(256)]


def _merges() -> list[tuple[str, str]]:
    """56 merges whose both sides exist when they are applied and whose results are all different."""
    known = set(_byte_characters())
    result: list[tuple[str, str]] = []
    pairs = [(w[0], w[1]) for w in _WORDS.split()] + [(a, b) for a, b in (p.split("|") for p in _LONGER.split())]
    pairs += [("Ġ", c) for c in "liegnruv"] + [(c, c) for c in "01lsotep"]
    for left, right in pairs:
        if left in known and right in known and left + right not in known:
            known.add(left + right)
            result.append((left, right))
    assert len(result) >= 56, len(result)
    return result[:56]


MERGES = [f"{left} {right}" for left, right in _merges()]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>", *(f"<|reserved_{i}|>" for i in range(4))]
TOKENS = [*_byte_characters(), *(m.replace(" ", "") for m in MERGES), *SPECIAL]
VOCAB = len(TOKENS)
ENDOFTEXT, IM_START, IM_END, PAD = range(VOCAB - 8, VOCAB - 4)


@dataclass(frozen=True)
class TinySpec:
    """Sizes and switches of a tiny model; `tiny_spec` fills in what the architecture implies."""

    arch: str
    seed: int = 0
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 128
    vocab: int = VOCAB
    context_length: int = 512
    window: int = 0
    rope_theta: float = 10000.0
    eps: float = 1e-6
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    attn_softcap: float = 0.0
    final_softcap: float = 0.0
    quant: str = "F32"
    """Storage of all matrices: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1."""


_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"window": 24},
    "qwen2": {"qkv_bias": True, "tied": True},
    "qwen3": {"qk_norm": True, "head_dim": 32},
    "gemma2": {
        "tied": True,
        "post_norms": True,
        "window": 24,
        "attn_softcap": 50.0,
        "final_softcap": 30.0,
        "head_dim": 32,
    },
    "gemma3": {
        "tied": True,
        "post_norms": True,
        "qk_norm": True,
        "window": 24,
        "layers": 7,
        "head_dim": 32,
        "rope_theta": 1e6,
    },
}


def tiny_spec(arch: str, **overrides: Any) -> TinySpec:
    """The tiny model of an architecture, with any field of TinySpec changed."""
    return replace(TinySpec(arch, **_DEFAULTS[arch]), **overrides)


def tiny_metadata(spec: TinySpec) -> dict[str, Any]:
    """GGUF metadata of the model itself, keys and types as llama.cpp's converter writes them."""
    values: dict[str, Any] = {
        "context_length": spec.context_length,
        "embedding_length": spec.hidden,
        "block_count": spec.layers,
        "feed_forward_length": spec.ffn,
        "attention.head_count": spec.heads,
        "attention.head_count_kv": spec.kv_heads,
        "attention.layer_norm_rms_epsilon": spec.eps,
        "rope.freq_base": spec.rope_theta,
    }
    if spec.head_dim * spec.heads != spec.hidden:
        values |= {"attention.key_length": spec.head_dim, "attention.value_length": spec.head_dim}
    if spec.window:
        values["attention.sliding_window"] = spec.window
    if spec.attn_softcap:
        values["attn_logit_softcapping"] = spec.attn_softcap
    if spec.final_softcap:
        values["final_logit_softcapping"] = spec.final_softcap
    return {f"{spec.arch}.{key}": value for key, value in values.items()}


def tiny_tensors(spec: TinySpec) -> dict[str, NDArray[np.float32]]:
    """Random f32 weights by GGUF name; matrices [outputs, inputs] scaled by 1 / sqrt(inputs)."""
    rng = np.random.default_rng(spec.seed)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def vector(size: int, mean: float = 0.0) -> NDArray[np.float32]:
        return (mean + 0.2 * rng.standard_normal(size)).astype(np.float32)

    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    tensors = {"token_embd.weight": 2 * matrix(spec.vocab, spec.hidden), "output_norm.weight": vector(spec.hidden, 1.0)}
    if spec.tied:
        # Random signs, or a tied head would name the token that was fed, whatever the layers do.
        tensors["output_norm.weight"] *= rng.choice((-1, 1), spec.hidden).astype(np.float32)
    else:
        tensors["output.weight"] = 2 * matrix(spec.vocab, spec.hidden)
    for layer in range(spec.layers):
        block: dict[str, NDArray[np.float32]] = {
            "attn_norm.weight": vector(spec.hidden, 1.0),
            "attn_q.weight": matrix(queries, spec.hidden),
            "attn_k.weight": matrix(keys, spec.hidden),
            "attn_v.weight": matrix(keys, spec.hidden),
            "attn_output.weight": matrix(spec.hidden, queries),
            "ffn_norm.weight": vector(spec.hidden, 1.0),
            "ffn_gate.weight": matrix(spec.ffn, spec.hidden),
            "ffn_up.weight": matrix(spec.ffn, spec.hidden),
            "ffn_down.weight": matrix(spec.hidden, spec.ffn),
        }
        if spec.qkv_bias:
            block |= {f"attn_{n}.bias": vector(s) for n, s in (("q", queries), ("k", keys), ("v", keys))}
        if spec.qk_norm:
            block |= {f"attn_{n}_norm.weight": vector(spec.head_dim, 1.0) for n in "qk"}
        if spec.post_norms:
            block |= {f"post_{n}_norm.weight": vector(spec.hidden, 1.0) for n in ("attention", "ffw")}
        tensors |= {f"blk.{layer}.{name}": value for name, value in block.items()}
    return tensors


def tokenizer_metadata(add_bos: bool = False) -> dict[str, Any]:
    """The byte-level BPE tokenizer and the chat template as GGUF metadata; end of sequence is <|im_end|>."""
    kinds = [gguf.TokenType.NORMAL] * (VOCAB - len(SPECIAL)) + [gguf.TokenType.CONTROL] * len(SPECIAL)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [int(k) for k in kinds],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": ENDOFTEXT,
        "tokenizer.ggml.eos_token_id": IM_END,
        "tokenizer.ggml.padding_token_id": PAD,
        "tokenizer.ggml.add_bos_token": add_bos,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def write_gguf(
    path: Path, arch: str, metadata: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]], quant: str = "F32"
) -> Path:
    """Write a GGUF file: matrices in the storage format `quant`, vectors in F32; a metadata value None is left out.

    Python ints become u32 (i32 inside arrays), floats f32; NumPy scalars keep the type they name.
    """
    writer = gguf.GGUFWriter(path, arch)
    for key, value in metadata.items():
        _add_value(writer, key, value)
    for name, tensor in tensors.items():
        kind = gguf.GGMLQuantizationType[quant if tensor.ndim > 1 else "F32"]
        data = np.ascontiguousarray(gguf.quants.quantize(np.asarray(tensor, np.float32), kind))
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float | np.floating):
        writer.add_float32(key, float(value))
    elif isinstance(value, int | np.integer):
        (writer.add_int32 if value < 0 else writer.add_uint32)(key, int(value))
    elif isinstance(value, list | tuple):
        writer.add_array(key, value)
    else:
        raise TypeError(f"{key}: {value!r}")


def write_tiny_gguf(
    path: Path,
    arch: str = "llama",
    *,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
    add_bos: bool = False,
    **overrides: Any,
) -> Path:
    """Write a tiny random model.

    overrides: fields of TinySpec. metadata: keys to add or replace (None removes). tensors: the same for tensors.
    """
    spec = tiny_spec(arch, **overrides)
    weights: dict[str, Any] = {**tiny_tensors(spec), **(tensors or {})}
    values = {**tiny_metadata(spec), **tokenizer_metadata(add_bos), **(metadata or {})}
    return write_gguf(path, arch, values, {k: v for k, v in weights.items() if v is not None}, spec.quant)
