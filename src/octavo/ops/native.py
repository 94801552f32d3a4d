"""The native backend: ops/api.py through the C++ extension (csrc/), threaded, vectorized, row-invariant.

Weights of quantized formats meet activations rounded to int8 with one scale per 256 numbers of a row, outliers apart in
f32; BF16 and FP8 weights meet bf16 activations where the processor multiplies bf16, f32 elsewhere; F32 and F16 multiply
in f32, as does attention. See docs/performance.md for what that costs in accuracy and gains in speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from octavo.core.batch import RaggedBatch
from octavo.core.env import env
from octavo.core.errors import ConfigError, UnsupportedModelError
from octavo.formats.tensor import Tensor
from octavo.ops import _native
from octavo.ops.api import F32, Activation, AttentionSpec, Linear, Norm, RopeTable, Step
from octavo.ops.kv import KVStore
from octavo.ops.native_capture import Results, check_attention, record

__all__ = ["NativeOps", "available_tiers", "build_digest", "measure_dot", "measure_stream", "storage_formats"]


def storage_formats() -> list[str]:
    """Storage formats that the kernels multiply with, by name."""
    return list(_native.formats())


def build_digest() -> str:
    """16 hexadecimal digits that tell builds of the extension apart; other kernels may round differently."""
    from hashlib import blake2b  # brings a whole crypto library along: 5 ms

    return blake2b(Path(_native.__file__).read_bytes(), digest_size=8).hexdigest()


def available_tiers() -> list[str]:
    """Instruction-set tiers this machine can run, best first."""
    return list(_native.tiers())


@cache
def measure_stream(threads: int) -> float:
    """Gigabytes per second that `threads` threads read from memory: the best of a quarter of a second of reads."""
    return float(_native.Context(threads, env("OCTAVO_ISA")).stream_gb_s(256 << 20, 0.25))


@cache
def measure_dot(threads: int, kind: Literal["int8", "bf16", "f32"] = "int8") -> float:
    """Giga multiply-accumulates per second of `threads` threads in the instructions alone: the ceiling.

    kind: int8 dot products, bf16 ones (or what multiplies bf16 where the tier has none), f32 multiply-adds.
    """
    return float(_native.Context(threads, env("OCTAVO_ISA")).dot_gmac_s(0.25, kind))


class NativeOps:
    """Ops over the C++ extension.

    Args:
        threads: threads of this instance's pool (the calling thread is one of them).
        tier: instruction-set tier; None: OCTAVO_ISA, or the best the machine has.

    Raises:
        ConfigError: the tier is not available here, or the number of threads is not possible.
    """

    name = "native"

    def __init__(self, threads: int, *, tier: str | None = None) -> None:
        tier = tier or env("OCTAVO_ISA")
        if tier not in ("auto", *available_tiers()):
            raise ConfigError(
                f"instruction-set tier {tier!r} is not available here; possible: auto, {', '.join(available_tiers())} "
                "(OCTAVO_ISA)"
            )
        try:
            self._context = _native.Context(threads, tier)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self.threads = threads
        self._stores: WeakKeyDictionary[KVStore, _native.BoundKv] = WeakKeyDictionary()

    @property
    def tier(self) -> str:
        return str(self._context.tier)

    def pack(self, parts: Sequence[Tensor], *, bias: F32 | None = None, gated: bool = False) -> Linear:
        columns = parts[0].shape[-1]
        known = _native.formats()
        for part in parts:
            if part.dtype not in known:
                raise UnsupportedModelError(
                    f"tensor {part.name!r} is stored as {part.dtype}; the native backend knows {', '.join(known)}"
                )
            if part.shape[-1] != columns or columns % _native.block_size(part.dtype):
                raise UnsupportedModelError(
                    f"tensor {part.name!r} has {part.shape[-1]} columns; needed are {columns}, "
                    f"a multiple of {_native.block_size(part.dtype)} for {part.dtype}"
                )
        packed: Linear = self._context.pack([p.dtype for p in parts], [p.data for p in parts], columns, bias, gated)
        return packed

    def embedding(self, table: Tensor, tokens: NDArray[np.int32], scale: float = 1.0) -> F32:
        out = np.empty((len(tokens), table.shape[-1]), np.float32)
        self._context.embedding(table.dtype, table.data, table.shape[-1], tokens, scale, out)
        return out

    def rms_norm(self, x: F32, norm: Norm) -> F32:
        out = np.empty_like(x)
        self._context.rms_norm(x, norm.weight, norm.eps, out)
        return out

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
        out = np.empty((len(x), w.rows // 2 if w.gated else w.rows), np.float32)
        self._context.linear(
            x,
            w,
            out,
            norm.weight if norm else None,
            norm.eps if norm else 0.0,
            activation or "",
            residual,
            post_norm.weight if post_norm else None,
            post_norm.eps if post_norm else 0.0,
        )
        return out

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
        q = np.empty((len(qkv), spec.heads * spec.head_dim), np.float32)
        self._context.rope_kv_write(
            qkv,
            kv.k[layer],
            kv.v[layer],
            kv.dtype,
            batch.positions,
            batch.query_starts,
            batch.kv_lens,
            batch.page_tables,
            batch.tree,
            spec.heads,
            rope.cos if rope else None,
            rope.sin if rope else None,
            rope.interleaved if rope else False,
            q_norm.weight if q_norm else None,
            q_norm.eps if q_norm else 0.0,
            k_norm.weight if k_norm else None,
            k_norm.eps if k_norm else 0.0,
            q,
        )
        return q

    def attention(self, q: F32, kv: KVStore, layer: int, batch: RaggedBatch, spec: AttentionSpec) -> F32:
        check_attention(spec)
        out = np.empty_like(q)
        self._context.attention(
            q,
            kv.k[layer],
            kv.v[layer],
            kv.dtype,
            batch.positions,
            batch.query_starts,
            batch.kv_lens,
            batch.page_tables,
            batch.tree,
            spec.heads,
            spec.scale,
            spec.window,
            spec.softcap,
            spec.sinks,
            out,
        )
        return out

    def logits(self, x: F32, head: Linear, norm: Norm, rows: NDArray[np.int32], softcap: float = 0.0) -> F32:
        out = self.linear(np.ascontiguousarray(x[rows]), head, norm=norm)
        if softcap:
            self._context.softcap(out, softcap)
        return out

    def capture(self, step: Step) -> Callable[[RaggedBatch, KVStore], F32]:
        """See Ops.capture: `step` runs once, on symbols, and is a program from then on (see ops/native_capture.py)."""
        program, results = record(step), Results()
        by_row, width = program.output_by_row, program.width

        def run(batch: RaggedBatch, kv: KVStore) -> F32:
            out = results.take(len(batch.logit_rows if by_row else batch.tokens), width)
            self._context.run(
                program,
                self._bound(kv),
                batch.tokens,
                batch.positions,
                batch.query_starts,
                batch.kv_lens,
                batch.page_tables,
                batch.logit_rows,
                out,
                batch.tree,
            )
            return out

        return run

    def argmax(self, logits: F32) -> tuple[NDArray[np.int32], F32]:
        ids, values = np.empty(len(logits), np.int32), np.empty(len(logits), np.float32)
        self._context.argmax(logits, ids, values)
        return ids, values

    def _bound(self, kv: KVStore) -> _native.BoundKv:
        """The store's arrays as the extension reads them; they are handed over once in the life of a store."""
        bound = self._stores.get(kv)
        if bound is None:
            bound = self._stores[kv] = _native.BoundKv(kv.k, kv.v, kv.dtype)
        return bound
