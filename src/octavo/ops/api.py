"""The op set: everything a decoder-only transformer needs, as about six calls a layer.

Two implementations share this contract: `reference` (NumPy, the oracle) and `native` (the C++ extension).
Arrays are C-contiguous NumPy arrays; activations are f32. Weights are opaque: `pack` makes them, and a backend
chooses their layout. The KV store's layout is shared by all CPU backends (see ops/kv.py).

Row invariance: row t of every result depends on row t of the inputs (and, for attention, on the KV of its own
sequence) alone, bit for bit: not on T, not on the other rows, not on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.core.batch import RaggedBatch
from octavo.formats.tensor import Tensor
from octavo.ops.kv import KVStore

__all__ = ["F32", "Activation", "AttentionSpec", "Linear", "Norm", "Ops", "RopeTable", "Step", "StepOps"]

F32 = NDArray[np.float32]
Activation = Literal["silu", "gelu_tanh"]


class Linear(Protocol):
    """A packed weight matrix (or several stacked by rows): opaque but for its logical shape and memory."""

    @property
    def rows(self) -> int:
        """N, outputs."""

    @property
    def columns(self) -> int:
        """K, inputs."""

    @property
    def packed_bytes(self) -> int:
        """Bytes read from memory when every row is used once."""


@dataclass(frozen=True)
class Norm:
    """RMS norm: x / sqrt(mean(x^2) + eps) * weight. weight f32 [H] (Gemma's 1 + w is in GGUF files already)."""

    weight: F32
    eps: float


@dataclass(frozen=True)
class RopeTable:
    """Rotary embedding as tables, so that every scaling is data.

    cos, sin: f32 [max positions, rotary_dim / 2], attention factor (YaRN's mscale) multiplied in.
    interleaved: True rotates pairs (2i, 2i + 1) (llama/mistral GGUF files, whose q/k rows are permuted for it);
        False rotates pairs (i, i + rotary_dim / 2) (NeoX: qwen2, qwen3, gemma).
    Dimensions past rotary_dim pass through.
    """

    cos: F32
    sin: F32
    interleaved: bool


@dataclass(frozen=True)
class AttentionSpec:
    """The shape of one layer's attention; query head h reads KV head h // (heads / kv_heads).

    scale: multiplies q.k. window: a token sees itself and the window - 1 before it; 0: all before it.
    softcap: cap * tanh(s / cap) on scores, before the mask; 0: none.
    sinks: f32 [heads], a logit per head that joins the softmax's sum and has no value (gpt-oss); None: none.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: F32 | None = None


class StepOps(Protocol):
    """What a step of a model is made of."""

    def embedding(self, table: Tensor, tokens: NDArray[np.int32], scale: float = 1.0) -> F32:
        """Rows of the table as f32 [T, H], times scale. table is used as it lies in the file."""

    def rms_norm(self, x: F32, norm: Norm) -> F32:
        """x [T, H] -> [T, H]."""

    def linear(
        self,
        x: F32,
        w: Linear,
        *,
        norm: Norm | None = None,
        activation: Activation | None = None,
        residual: F32 | None = None,
        post_norm: Norm | None = None,
    ) -> F32:
        """y = f(norm(x) @ w.T + bias); x [T, K] -> [T, N] ([T, N / 2] if w is gated). In this order:

        norm (if given) of x; matmul; bias; act(gate) * up if gated; post_norm over the row; + residual [T, N].
        """

    def rope_kv_write(
        self,
        qkv: F32,
        kv: KVStore,
        layer: int,
        batch: RaggedBatch,
        spec: AttentionSpec,
        rope: RopeTable | None,
        *,
        q_norm: Norm | None = None,
        k_norm: Norm | None = None,
    ) -> F32:
        """qkv [T, (heads + 2 kv_heads) * head_dim] (q, then k, then v) -> rotated q [T, heads * head_dim].

        q_norm, k_norm: RMS norm over each head (weight [head_dim]) before RoPE. k and v go to the batch's pages of
        this layer, rounded to the store's dtype (round to nearest even). rope None: no position encoding.
        """

    def attention(self, q: F32, kv: KVStore, layer: int, batch: RaggedBatch, spec: AttentionSpec) -> F32:
        """Causal attention of every query row over the KV of its own sequence, f32 arithmetic -> [T, heads * head_dim].

        The row at position p sees keys max(0, p - window + 1)..p; with batch.tree, of its own sequence's new tokens
        those at such positions whose bit is set.
        """

    def logits(self, x: F32, head: Linear, norm: Norm, rows: NDArray[np.int32], softcap: float = 0.0) -> F32:
        """Logits [R, V] of the rows asked for: norm, head, then cap * tanh(y / cap) if softcap."""


Step = Callable[[StepOps, RaggedBatch, KVStore], F32]
"""A model's work on a batch, written over `StepOps`: step(ops, batch, kv) -> the array it computed last.

It does the same for every batch: it passes `batch`, its arrays, `kv` and what the ops return to the ops, and looks into
none of them.
"""


class Ops(StepOps, Protocol):
    """One backend. Instances own their threads; several may live in one process."""

    name: str

    def pack(self, parts: Sequence[Tensor], *, bias: F32 | None = None, gated: bool = False) -> Linear:
        """Pack matrices with the same K, stacked by rows in the order given; formats may differ between parts.

        bias: f32 [N], added to the result. gated: exactly two parts (gate, up) of equal shape; `linear` then
        needs an activation and returns act(gate) * up.
        Raises UnsupportedModelError for a storage format it has no kernel for, naming the tensor and the known ones.
        """

    def capture(self, step: Step) -> Callable[[RaggedBatch, KVStore], F32]:
        """`step` over these ops, as a function of batch and KV store that gives the same bits.

        A backend may run `step` once, now, to learn what it does, and then do it without it.
        Raises UnsupportedModelError where that shows something the backend has no kernel for. The function raises
        ValueError, before anything is written to the store, for tokens and positions outside their tables.
        """

    def argmax(self, logits: F32) -> tuple[NDArray[np.int32], F32]:
        """logits [R, V] -> (id i32 [R] of the largest in each row, its value f32 [R]).

        The lowest id where several are equal; the first NaN where there is one.
        """
