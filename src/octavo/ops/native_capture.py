"""A step of a model as a program of the C++ extension: the Python that describes it runs once, and never again.

In the spirit of CUDA graphs. The step runs on symbols in place of a batch, a KV store and activations; each op adds an
instruction and returns the symbol of the buffer it would write. Every step then is one call (csrc/dispatch/program.h).
"""

from __future__ import annotations

import sys
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from octavo.core.batch import RaggedBatch
from octavo.core.errors import UnsupportedModelError
from octavo.formats.tensor import Tensor
from octavo.ops import _native
from octavo.ops.api import F32, Activation, AttentionSpec, Linear, Norm, RopeTable, Step
from octavo.ops.kv import KVStore

__all__ = ["Results", "check_attention", "record"]

# Memory between these is used again. Above, it is made anew: the logits of a long prompt are not kept for good.
MIN_KEPT_BYTES, MAX_KEPT_BYTES = 16 << 20, 128 << 20
MAX_GROUP = 32
MAX_HEAD_DIM = 512
_ONE_HOLDER = 2  # what getrefcount says of an array that one name holds; its views hold it, too


def check_attention(spec: AttentionSpec) -> None:
    """Raises UnsupportedModelError for a shape that the native kernels do not have."""
    if spec.heads > MAX_GROUP * spec.kv_heads or spec.head_dim % 16 or spec.head_dim > MAX_HEAD_DIM:
        raise UnsupportedModelError(
            f"attention with {spec.heads} heads over {spec.kv_heads} KV heads of {spec.head_dim} dimensions; "
            f"possible: up to {MAX_GROUP} heads per KV head, dimensions a multiple of 16 up to {MAX_HEAD_DIM}"
        )


class Results:
    """Memory for the results of one step after another; if it is large, used again once nobody holds the last one.

    malloc gives 32 MB and more back to the system, and to get them anew, page by page, costs about 5 ms.
    """

    def __init__(self) -> None:
        self._kept: list[F32] = []

    def take(self, rows: int, width: int) -> F32:
        """f32 [rows, width], not initialized, in which no other array lies."""
        size = rows * width
        if 4 * size < MIN_KEPT_BYTES:
            return np.empty((rows, width), np.float32)
        try:
            memory = self._kept.pop()  # at once, so that two threads never take the same
        except IndexError:
            memory = None
        if memory is None or memory.size < size or sys.getrefcount(memory) > _ONE_HOLDER:
            memory = np.empty(size, np.float32)
        result = memory[:size].reshape(rows, width)
        if memory.nbytes <= MAX_KEPT_BYTES:
            self._kept[:] = [memory]
        return result


def record(step: Step) -> _native.Program:
    """The program of a step. It holds on to the weights and tables that it reads.

    Raises UnsupportedModelError (see check_attention), ValueError where shapes do not fit together.
    """
    recorder = _Recorder()
    output = step(recorder, recorder.batch, recorder.kv)
    recorder.program.finish(_number(output))
    return recorder.program


class _Buffer:
    """Stands for an array that a step computes: the number of its buffer in the program."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


def _number(x: F32) -> int:
    buffer: Any = x
    assert isinstance(buffer, _Buffer), "a captured step works on what the ops return, and on nothing else"
    return buffer.number


def _symbol(number: int) -> F32:
    return cast(F32, _Buffer(number))


def _norm(norm: Norm | None) -> tuple[F32 | None, float]:
    return (norm.weight, norm.eps) if norm else (None, 0.0)


class _Recorder:
    """The StepOps of a recording. batch, kv: what stands for every batch and every store."""

    def __init__(self) -> None:
        self.program = _native.Program()
        tokens, positions, starts, lens, rows = (np.empty(0, np.int32) for _ in range(5))
        self.batch = RaggedBatch(tokens, positions, starts, lens, np.empty((0, 0), np.int32), rows)
        self.kv = cast(KVStore, object())

    def embedding(self, table: Tensor, tokens: NDArray[np.int32], scale: float = 1.0) -> F32:
        assert tokens is self.batch.tokens, "a captured step looks up the tokens of its batch"
        return _symbol(self.program.embedding(table.dtype, table.data, table.shape[-1], scale))

    def rms_norm(self, x: F32, norm: Norm) -> F32:
        return _symbol(self.program.rms_norm(_number(x), norm.weight, norm.eps))

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
        assert isinstance(w, _native.PackedLinear), "weights of one backend do not fit another"
        added = None if residual is None else _number(residual)
        return _symbol(self.program.linear(_number(x), w, *_norm(norm), activation or "", added, *_norm(post_norm)))

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
        self._check(batch, kv, spec)
        number = self.program.rope_kv_write(
            _number(qkv),
            layer,
            spec.heads,
            spec.kv_heads,
            spec.head_dim,
            rope.cos if rope else None,
            rope.sin if rope else None,
            rope.interleaved if rope else False,
            *_norm(q_norm),
            *_norm(k_norm),
        )
        return _symbol(number)

    def attention(self, q: F32, kv: KVStore, layer: int, batch: RaggedBatch, spec: AttentionSpec) -> F32:
        self._check(batch, kv, spec)
        shape = (spec.heads, spec.kv_heads, spec.head_dim)
        return _symbol(
            self.program.attention(_number(q), layer, *shape, spec.scale, spec.window, spec.softcap, spec.sinks)
        )

    def logits(self, x: F32, head: Linear, norm: Norm, rows: NDArray[np.int32], softcap: float = 0.0) -> F32:
        assert rows is self.batch.logit_rows, "a captured step gives the logits of its batch's logit_rows"
        out = self.linear(_symbol(self.program.select_rows(_number(x))), head, norm=norm)
        if softcap:
            self.program.softcap(_number(out), softcap)
        return out

    def _check(self, batch: RaggedBatch, kv: KVStore, spec: AttentionSpec) -> None:
        assert batch is self.batch, "a captured step has one batch"
        assert kv is self.kv, "a captured step has one KV store"
        check_attention(spec)
