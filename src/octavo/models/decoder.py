"""The decoder: one text for all architectures and all backends, about six calls to `ops` per layer.

The text runs once for each model, when `Ops.capture` learns from it what a step does; the reference backend runs it in
every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.core.batch import RaggedBatch
from octavo.core.errors import ContextLengthError, InvalidParameterError
from octavo.models.config import ModelConfig
from octavo.models.weights import LayerWeights, ModelWeights
from octavo.ops.api import F32, AttentionSpec, Ops, RopeTable, StepOps
from octavo.ops.kv import KVStore

__all__ = ["Decoder", "Layer", "Model"]


@dataclass(frozen=True)
class Layer:
    """What one layer needs: weights, the shape of its attention, its rotary table."""

    weights: LayerWeights
    attention: AttentionSpec
    rope: RopeTable


@dataclass(frozen=True)
class Decoder:
    """What a model computes, as steps (see ops.api.Step) over any ops that the weights fit."""

    config: ModelConfig
    weights: ModelWeights
    layers: tuple[Layer, ...]

    def logits(self, ops: StepOps, batch: RaggedBatch, kv: KVStore) -> F32:
        """f32 [R, V], logits of batch.logit_rows."""
        return self.head(ops, self.hidden(ops, batch, kv), batch.logit_rows)

    def hidden(self, ops: StepOps, batch: RaggedBatch, kv: KVStore) -> F32:
        """f32 [T, H], the residual stream after the last layer."""
        x = ops.embedding(self.weights.embedding, batch.tokens, self.config.embedding_scale)
        for index, layer in enumerate(self.layers):
            x = self._layer(ops, x, index, layer, batch, kv)
        return x

    def head(self, ops: StepOps, x: F32, rows: NDArray[np.int32]) -> F32:
        """f32 [R, V], logits of the rows [R] of x [T, H]."""
        return ops.logits(x, self.weights.head, self.weights.output_norm, rows, self.config.final_softcap)

    def _layer(self, ops: StepOps, x: F32, index: int, layer: Layer, batch: RaggedBatch, kv: KVStore) -> F32:
        w, spec = layer.weights, layer.attention
        qkv = ops.linear(x, w.qkv, norm=w.attn_norm)
        q = ops.rope_kv_write(qkv, kv, index, batch, spec, layer.rope, q_norm=w.q_norm, k_norm=w.k_norm)
        mixed = ops.attention(q, kv, index, batch, spec)
        x = ops.linear(mixed, w.out, post_norm=w.post_attn_norm, residual=x)
        inner = ops.linear(x, w.gate_up, norm=w.ffn_norm, activation=self.config.activation)
        return ops.linear(inner, w.down, post_norm=w.post_ffn_norm, residual=x)


class Model:
    """A decoder-only transformer, ready to run. Made by `load_model`; holds no state between calls.

    Attributes:
        config: its shape.
        max_positions: positions that its rotary tables cover.
        decoder: what it computes, op by op.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights, layers: tuple[Layer, ...], ops: Ops) -> None:
        self.config = config
        self.max_positions = len(layers[0].rope.cos)
        self.decoder = Decoder(config, weights, layers)
        self._ops = ops
        self._forward, self._hidden = ops.capture(self.decoder.logits), ops.capture(self.decoder.hidden)

    @property
    def ops(self) -> Ops:
        """The backend that the model was packed for, and that runs it."""
        return self._ops

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that the weights take, the mapped embedding table included."""
        return self.decoder.weights.weight_bytes

    @property
    def stream_bytes(self) -> int:
        """Bytes of weights that one decode step reads from memory."""
        return self.decoder.weights.stream_bytes

    def new_kv(self, num_pages: int, page_size: int, dtype: str) -> KVStore:
        """A KV store of this model's shape. Raises ConfigError (see KVStore)."""
        c = self.config
        return KVStore(c.layers, num_pages, page_size, c.kv_heads, c.head_dim, dtype)

    def forward(self, batch: RaggedBatch, kv: KVStore) -> F32:
        """Run the batch's tokens, write their K and V to kv, return logits f32 [R, V] of batch.logit_rows.

        Raises InvalidParameterError for a token id outside the vocabulary, ContextLengthError for a position
        outside the rotary tables.
        """
        return self._run(self._forward, batch, kv)

    def hidden(self, batch: RaggedBatch, kv: KVStore) -> F32:
        """As `forward`, but the residual stream f32 [T, H] after the last layer, before the final norm."""
        return self._run(self._hidden, batch, kv)

    def logits_of(self, x: F32, rows: NDArray[np.int32]) -> F32:
        """Logits f32 [R, V] of the rows [R] of x [T, H], which is what `hidden` returned."""
        return self.decoder.head(self._ops, x, rows)

    def argmax(self, logits: F32) -> tuple[NDArray[np.int32], F32]:
        """See Ops.argmax."""
        return self._ops.argmax(logits)

    def _run(self, step: Callable[[RaggedBatch, KVStore], F32], batch: RaggedBatch, kv: KVStore) -> F32:
        try:
            return step(batch, kv)
        except ValueError:
            self._explain(batch)
            raise

    def _explain(self, batch: RaggedBatch) -> None:
        """Say what is wrong with a batch that a step refused, where it is a token or a position."""
        if batch.num_tokens == 0:
            return
        low, high = int(batch.tokens.min()), int(batch.tokens.max())
        if low < 0 or high >= self.config.vocab:
            bad = low if low < 0 else high
            raise InvalidParameterError(f"token id {bad} is outside the vocabulary (0..{self.config.vocab - 1})")
        if int(batch.positions.max()) >= self.max_positions or int(batch.positions.min()) < 0:
            raise ContextLengthError(
                f"position {int(batch.positions.max())} is outside the context of {self.max_positions} tokens; "
                "send fewer tokens, or load the model with a larger max_model_len"
            )
