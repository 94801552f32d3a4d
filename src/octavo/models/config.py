"""`ModelConfig`: everything about a model but its weights, read from GGUF metadata once and then frozen."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Literal, Self

from octavo.core.errors import ModelFormatError, UnsupportedModelError
from octavo.formats.gguf import GGUFFile
from octavo.formats.metadata import StringArray
from octavo.models.architectures import Architecture, find_architecture
from octavo.models.keys import ModelKeys
from octavo.ops.api import Activation, AttentionSpec
from octavo.ops.kv import KVStore

__all__ = ["ModelConfig", "RopeConfig", "RopeScaling"]

logger = logging.getLogger(__name__)

MAX_CONTEXT = 2**24
"""Tokens; a file that claims more is damaged, and tables made for it would fill the memory."""

RopeScaling = Literal["none", "linear", "yarn", "longrope"]

# Keys that would change what the model computes, each with the one value at which it changes nothing.
_NEUTRAL: dict[str, bool | float] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.temperature_scale": 0.0,
    "embedding_scale": 1.0,
    "logit_scale": 1.0,
    "nextn_predict_layers": 0,
    "residual_scale": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "use_parallel_residual": False,
}
# Keys that say nothing about the arithmetic of these architectures, or say again what others say.
_INERT = (
    "expert_used_count",
    "pooling_type",
    "rope.scaling.finetuned",
    "tensor_data_layout",
)


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding; see models/rope.py for what each scaling does.

    Attributes:
        theta: base of the frequencies.
        dimensions: how many of a head's dimensions turn.
        interleaved: pairs are (2i, 2i + 1), not (i, i + dimensions / 2).
        scaling: "linear" and "yarn" stretch by `factor`; "longrope" uses the file's factor tensors. Llama 3's bands
            need no name: they are a tensor (rope_freqs.weight) that applies under any scaling.
        original_context: tokens of the context before stretching (yarn, longrope).
        attention_factor: multiplies cos and sin, besides YaRN's own 0.1 ln(factor) + 1.
        ext_factor, beta_fast, beta_slow: YaRN's blend and its bounds in turns per original context.
    """

    theta: float
    dimensions: int
    interleaved: bool
    scaling: RopeScaling = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    ext_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder.

    Attributes:
        arch: name of the row in models/architectures.py.
        layers, hidden, heads, kv_heads, head_dim, ffn, vocab: sizes; vocab is the embedding table's rows.
        context_length: tokens the model was made for.
        eps: of every RMS norm.
        rope: of global layers. local_rope: of layers with a window; None: the same.
        windows: per layer, 0 for full attention (see AttentionSpec).
        attention_scale: multiplies q.k. attn_softcap, final_softcap: 0: none.
        embedding_scale: multiplies embeddings.
        qk_norm, post_norms, qkv_bias, activation: see Architecture.
        tied: the head is the embedding table.
    """

    arch: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context_length: int
    eps: float
    rope: RopeConfig
    local_rope: RopeConfig | None
    windows: tuple[int, ...]
    attention_scale: float
    attn_softcap: float
    final_softcap: float
    embedding_scale: float
    qk_norm: bool
    post_norms: bool
    qkv_bias: bool
    activation: Activation
    tied: bool

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Self:
        """Read the metadata of a GGUF file.

        Raises UnsupportedModelError (an architecture or a feature this version cannot run, by its key) or
        ModelFormatError (a missing, ill-typed or contradictory key).
        """
        keys = ModelKeys(file)
        row = find_architecture(keys.arch)
        _refuse_unsupported(keys)
        layers, hidden = keys.integer("block_count", high=4096), keys.integer("embedding_length")
        heads = keys.integer("attention.head_count")
        kv_heads = keys.integer("attention.head_count_kv", heads)
        if heads % kv_heads:
            raise ModelFormatError(f"{heads} query heads (head_count) are no multiple of {kv_heads} KV heads")
        head_dim = _head_dim(keys, hidden, heads)
        wide = layers == row.wide_scale_layers
        rope = _rope(keys, row, head_dim)
        config = cls(
            arch=row.name,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ffn=keys.integer("feed_forward_length"),
            vocab=_vocab(file),
            context_length=keys.integer("context_length", high=MAX_CONTEXT),
            eps=keys.number("attention.layer_norm_rms_epsilon"),
            rope=rope,
            local_rope=_local_rope(keys, row, rope),
            windows=_windows(keys, row, layers),
            attention_scale=keys.number("attention.scale", (hidden / heads if wide else head_dim) ** -0.5),
            attn_softcap=keys.number("attn_logit_softcapping", row.attn_softcap, zero=True),
            final_softcap=keys.number("final_logit_softcapping", row.final_softcap, zero=True),
            embedding_scale=math.sqrt(hidden) if row.scaled_embedding else 1.0,
            qk_norm=row.qk_norm,
            post_norms=row.post_norms,
            qkv_bias=row.qkv_bias,
            activation=row.activation,
            tied="output.weight" not in file.tensors,
        )
        if unread := keys.unread():
            logger.warning("%s: metadata keys unknown to this version have no effect: %s", file.path.name, unread)
        return config

    def attention(self, layer: int) -> AttentionSpec:
        """The attention of one layer."""
        return AttentionSpec(
            self.heads, self.kv_heads, self.head_dim, self.attention_scale, self.windows[layer], self.attn_softcap
        )

    def kv_page_bytes(self, page_size: int, dtype: str) -> int:
        """Bytes of one KV page over all layers."""
        return KVStore.page_stride(self.layers, page_size, self.kv_heads, self.head_dim, dtype)


def _refuse_unsupported(keys: ModelKeys) -> None:
    if keys.integer("expert_count", 0, low=0):
        raise UnsupportedModelError(f"{keys.key('expert_count')} is set: mixture-of-experts models are not supported")
    for name, value in _NEUTRAL.items():
        keys.neutral(name, value)
    for name in _INERT:
        keys.skip(name)


def _head_dim(keys: ModelKeys, hidden: int, heads: int) -> int:
    if not keys.has("attention.key_length") and hidden % heads:
        raise ModelFormatError(
            f"embedding_length {hidden} is no multiple of head_count {heads}, and {keys.key('attention.key_length')} "
            "is missing"
        )
    head_dim = keys.integer("attention.key_length", hidden // heads)
    value_dim = keys.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise UnsupportedModelError(
            f"heads have {head_dim} key and {value_dim} value dimensions (attention.key_length, value_length); "
            "this version supports only equal ones"
        )
    for name in ("attention.key_length_swa", "attention.value_length_swa"):
        keys.neutral(name, head_dim)
    return head_dim


def _vocab(file: GGUFFile) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise ModelFormatError(f"{file.path.name}: tensor token_embd.weight of shape (vocabulary, hidden) is missing")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, StringArray) and len(tokens) > table.shape[0]:
        raise ModelFormatError(
            f"{file.path.name}: tokenizer.ggml.tokens names {len(tokens)} tokens, but token_embd.weight has only "
            f"{table.shape[0]} rows"
        )
    return table.shape[0]


def _windows(keys: ModelKeys, row: Architecture, layers: int) -> tuple[int, ...]:
    """Window per layer; a file may replace the architecture's pattern by a period or by one flag for each layer."""
    window = keys.integer("attention.sliding_window", None if row.window_required else 0, low=0)
    pattern = keys.flags("attention.sliding_window_pattern", layers)
    if pattern is None:
        pattern = row.local_pattern
        period = keys.integer("attention.sliding_window_pattern", len(pattern))
        if period != len(pattern):
            pattern = (True,) * (period - 1) + (False,)
    return tuple(window if pattern[i % len(pattern)] else 0 for i in range(layers))


def _rope(keys: ModelKeys, row: Architecture, head_dim: int) -> RopeConfig:
    dimensions = keys.integer("rope.dimension_count", head_dim, low=2, high=head_dim)
    if dimensions % 2:
        raise ModelFormatError(f"metadata key {keys.key('rope.dimension_count')} is {dimensions}; it must be even")
    keys.neutral("rope.dimension_count_swa", dimensions)
    scaling, factor = _scaling(keys)
    theta = keys.number("rope.freq_base", 10000.0)
    if theta <= 1:
        raise ModelFormatError(f"metadata key {keys.key('rope.freq_base')} is {theta:g}; it must be above 1")
    attention_factor = keys.number("rope.scaling.attn_factor", 1.0)
    return RopeConfig(
        theta=theta,
        dimensions=dimensions,
        interleaved=row.interleaved_rope,
        scaling=scaling,
        factor=factor,
        original_context=keys.integer("rope.scaling.original_context_length", keys.integer("context_length")),
        attention_factor=attention_factor * keys.number("rope.scaling.yarn_attn_factor", 1.0),
        ext_factor=keys.number("rope.scaling.yarn_ext_factor", 1.0, zero=True),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def _scaling(keys: ModelKeys) -> tuple[RopeScaling, float]:
    """Kind and factor; a factor without a type is linear, and rope.scale_linear is its older name."""
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    kind = keys.string("rope.scaling.type", "linear")
    if kind == "yarn":
        return "yarn", factor
    if kind == "linear":
        return ("linear", factor) if factor != 1 else ("none", 1.0)
    if kind == "none":
        return "none", 1.0
    if kind == "longrope":
        keys.neutral("rope.scaling.factor", 1.0)
        return "longrope", 1.0
    raise UnsupportedModelError(
        f"metadata key {keys.key('rope.scaling.type')} is {kind!r}; supported: none, linear, yarn, longrope"
    )


def _local_rope(keys: ModelKeys, row: Architecture, rope: RopeConfig) -> RopeConfig | None:
    """RoPE of layers with a window, where it differs from that of global layers."""
    if row.local_rope_theta is None:
        return None
    theta = keys.number("rope.freq_base_swa", row.local_rope_theta)
    return RopeConfig(theta, rope.dimensions, rope.interleaved)
