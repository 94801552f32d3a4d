"""The reference backend: every operation as plain NumPy in f32, to be read and to be compared with.

Weights are dequantized to f32 once, when packed: 4 bytes per weight, whatever the file stores.
Matrix products go to NumPy's BLAS, which may add up in another order for another number of rows; so results of one
row in two different batches agree to f32 rounding (about 1e-6 relative), not bit for bit as the native backend's do.
BLAS brings its own threads (OPENBLAS_NUM_THREADS).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from octavo.core.batch import RaggedBatch
from octavo.core.errors import UnsupportedModelError
from octavo.formats.ggml import FORMATS, dequantize_tensor
from octavo.formats.tensor import Tensor
from octavo.ops.api import F32, Activation, AttentionSpec, Linear, Norm, RopeTable, Step
from octavo.ops.kv import KVStore
from octavo.ops.reference_attention import attention, write_kv
from octavo.ops.reference_math import activate, rms_norm, rotate, softcap

__all__ = ["ReferenceLinear", "ReferenceOps"]


@dataclass(frozen=True)
class ReferenceLinear:
    """A dequantized matrix: weight f32 [N, K], bias f32 [N] or None; gated: the first N / 2 rows are the gate."""

    weight: F32
    bias: F32 | None
    gated: bool

    @property
    def rows(self) -> int:
        return int(self.weight.shape[0])

    @property
    def columns(self) -> int:
        return int(self.weight.shape[1])

    @property
    def packed_bytes(self) -> int:
        return self.weight.nbytes + (self.bias.nbytes if self.bias is not None else 0)


class ReferenceOps:
    """The Ops protocol (see ops/api.py) in NumPy."""

    name = "reference"

    def pack(self, parts: Sequence[Tensor], *, bias: F32 | None = None, gated: bool = False) -> ReferenceLinear:
        """See Ops.pack; takes every storage format that formats/ggml.py can read."""
        assert parts, "pack needs at least one matrix"
        assert not gated or (len(parts) == 2 and parts[0].shape == parts[1].shape), "gated: two parts of one shape"
        weight = np.empty((sum(part.shape[0] for part in parts), parts[0].shape[1]), np.float32)
        start = 0
        for part in parts:
            if part.dtype not in FORMATS:
                raise UnsupportedModelError(
                    f"tensor {part.name} is stored as {part.dtype}, which has no kernel; known: {', '.join(FORMATS)}"
                )
            weight[start : start + part.shape[0]] = dequantize_tensor(part)
            start += part.shape[0]
        assert bias is None or bias.shape == weight.shape[:1], "bias: one number per row"
        return ReferenceLinear(weight, bias, gated)

    def embedding(self, table: Tensor, tokens: NDArray[np.int32], scale: float = 1.0) -> F32:
        """See Ops.embedding."""
        _require_inside(tokens, table.shape[0], "token id")
        rows = Tensor(table.name, table.dtype, (len(tokens), table.shape[1]), table.data[tokens])
        return dequantize_tensor(rows) * np.float32(scale)

    def rms_norm(self, x: F32, norm: Norm) -> F32:
        """See Ops.rms_norm."""
        return rms_norm(x, norm)

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
        """See Ops.linear."""
        assert isinstance(w, ReferenceLinear), "weights of one backend do not fit another"
        assert w.gated == (activation is not None), "an activation belongs to a gated weight"
        y: F32 = (rms_norm(x, norm) if norm else x) @ w.weight.T
        if w.bias is not None:
            y = y + w.bias
        if activation is not None:
            gate, up = np.split(y, 2, axis=1)
            y = activate(gate, activation) * up
        if post_norm is not None:
            y = rms_norm(y, post_norm)
        return y if residual is None else residual + y

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
        """See Ops.rope_kv_write."""
        heads = qkv.reshape(len(qkv), spec.heads + 2 * spec.kv_heads, spec.head_dim)
        q, k, v = np.split(heads, [spec.heads, spec.heads + spec.kv_heads], axis=1)
        q, k = (rms_norm(q, q_norm) if q_norm else q), (rms_norm(k, k_norm) if k_norm else k)
        if rope is not None:
            _require_inside(batch.positions, len(rope.cos), "position")
            q, k = rotate(q, batch.positions, rope), rotate(k, batch.positions, rope)
        write_kv(k, v, kv, layer, batch)
        return np.ascontiguousarray(q).reshape(len(qkv), spec.heads * spec.head_dim)

    def attention(self, q: F32, kv: KVStore, layer: int, batch: RaggedBatch, spec: AttentionSpec) -> F32:
        """See Ops.attention."""
        return attention(q, kv, layer, batch, spec)

    def logits(self, x: F32, head: Linear, norm: Norm, rows: NDArray[np.int32], softcap: float = 0.0) -> F32:
        """See Ops.logits."""
        return _softcap(self.linear(x[rows], head, norm=norm), softcap)

    def capture(self, step: Step) -> Callable[[RaggedBatch, KVStore], F32]:
        """See Ops.capture; runs `step` as it is."""
        return partial(step, self)

    def argmax(self, logits: F32) -> tuple[NDArray[np.int32], F32]:
        """See Ops.argmax."""
        ids = logits.argmax(axis=1)
        return ids.astype(np.int32), logits[np.arange(len(ids)), ids]


def _require_inside(values: NDArray[np.int32], limit: int, what: str) -> None:
    if values.size and (values.min() < 0 or values.max() >= limit):
        raise ValueError(f"{what} out of range")


_softcap = softcap  # the contract's argument of the same name hides it inside `logits`
