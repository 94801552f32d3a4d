"""A small transformers model as a GGUF file, in the conventions of llama.cpp's converter.

Needs torch and transformers; only tests marked `oracle` import it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from helpers.tiny import write_gguf

__all__ = ["export_gguf", "randomize"]

_LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_GEMMA_LAYER_NAMES = _LAYER_NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GLOBAL_NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}


def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Weights that make every part matter: matrices of unit gain, norms and biases spread around the neutral."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise / math.sqrt(parameter.shape[1]))
            else:
                parameter.add_(0.3 * noise)


def export_gguf(model: Any, arch: str, path: Path) -> Path:
    """Write a transformers causal language model as GGUF with F32 weights."""
    config = model.config
    tensors = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        target = _gguf_name(name, gemma=arch.startswith("gemma"))
        tensors[target] = _convert(target, value.numpy().astype(np.float32), arch, config)
    factors = _llama3_factors(config)
    if factors is not None:
        tensors["rope_freqs.weight"] = factors
    return write_gguf(path, arch, _metadata(config, arch), tensors)


def _gguf_name(name: str, *, gemma: bool) -> str:
    parts = name.removeprefix("model.").split(".")
    if parts[0] != "layers":
        return f"{_GLOBAL_NAMES[parts[0]]}.{parts[1]}"
    names = _GEMMA_LAYER_NAMES if gemma else _LAYER_NAMES
    return f"blk.{parts[1]}.{names['.'.join(parts[2:-1])]}.{parts[-1]}"


def _convert(name: str, value: NDArray[np.float32], arch: str, config: Any) -> NDArray[np.float32]:
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return value + 1
    heads = {".attn_q.": config.num_attention_heads, ".attn_k.": config.num_key_value_heads}
    for part, count in heads.items():
        if arch in ("llama", "mistral") and part in name:
            # Rows (half, i) of a head become rows (i, half): RoPE then turns neighbours.
            split = value.reshape(count, 2, value.shape[0] // count // 2, *value.shape[1:])
            return np.ascontiguousarray(split.swapaxes(1, 2).reshape(value.shape))
    return value


def _rope(config: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = config.rope_parameters
    return parameters.get("full_attention", parameters)


def _metadata(config: Any, arch: str) -> dict[str, Any]:
    rope = _rope(config)
    values: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(rope["rope_theta"]),
        "vocab_size": config.vocab_size,
    }
    head_dim = getattr(config, "head_dim", None)
    if head_dim is not None:
        values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if getattr(config, "sliding_window", None):
        values["attention.sliding_window"] = config.sliding_window
    if getattr(config, "attn_logit_softcapping", None):
        values["attn_logit_softcapping"] = config.attn_logit_softcapping
    if getattr(config, "final_logit_softcapping", None):
        values["final_logit_softcapping"] = config.final_logit_softcapping
    if rope["rope_type"] in ("linear", "yarn"):
        values |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        values["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return {f"{arch}.{key}": value for key, value in values.items()}


def _llama3_factors(config: Any) -> NDArray[np.float32] | None:
    """Llama 3.1's bands: wavelengths above original / low stretch by `factor`, below original / high not at all."""
    rope = _rope(config)
    if rope["rope_type"] != "llama3":
        return None
    dim = config.head_dim
    wavelengths = 2 * math.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    share = np.clip((rope["original_max_position_embeddings"] / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / rope["factor"] + share)).astype(np.float32)
