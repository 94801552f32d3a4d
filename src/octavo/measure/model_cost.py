"""What a model asks of the machine, and how long it takes at the machine's limits (a roofline: Williams et al., 2009).

Decode: a step reads every weight once and the keys and values of every sequence. Prefill: every token is multiplied
with every matrix, but the head only once per sequence. The limit is the slower of memory and the products, each kind of
them at its own peak: a matrix that stays in floats is multiplied as floats. Attention's products are counted apart
(`attention_limit_s`): at short contexts they are a few percent, and leaving them out only makes the limit harder to
reach; at 8k tokens they can take as long as the matrices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from octavo.formats.tensor import Tensor
from octavo.measure.limits import Kind, Rates, kind_of_format
from octavo.models.config import ModelConfig
from octavo.models.decoder import Model
from octavo.ops.kv import KV_DTYPES

__all__ = ["Limit", "Macs", "MatrixMacs", "ModelCost", "limit_of"]

Macs = Mapping[Kind, int]
"""Multiply-accumulates by what is multiplied."""


class Limit(NamedTuple):
    """Seconds that something takes at best, and which limit says so."""

    seconds: float
    bound: Literal["stream", "dot"]


def limit_of(stream_bytes: float, macs: Macs, rates: Rates) -> Limit | None:
    """The slower of reading so many bytes and adding up so many products; None if neither limit is known."""
    known = []
    if rates.stream_gb_s:
        known.append(Limit(stream_bytes / (rates.stream_gb_s * 1e9), "stream"))
    peaks = {kind: rates.peak_gmac_s(kind) for kind, count in macs.items() if count}
    seconds = [macs[kind] / (peak * 1e9) for kind, peak in peaks.items() if peak]
    if seconds and len(seconds) == len(peaks):
        known.append(Limit(sum(seconds), "dot"))
    return max(known, default=None)


@dataclass(frozen=True)
class MatrixMacs:
    """Products of one token in the matrices of all layers, and of one row of logits."""

    layers: Macs
    head: Macs

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Of a model file's tensors by name."""
        layers: Counter[Kind] = Counter()
        for name, tensor in tensors.items():
            if name.startswith("blk.") and name.endswith(".weight") and len(tensor.shape) == 2:
                layers[kind_of_format(tensor.dtype)] += tensor.shape[0] * tensor.shape[1]
        head = tensors.get("output.weight", tensors["token_embd.weight"])  # tied, if there is no output.weight
        return cls(layers, {kind_of_format(head.dtype): head.shape[0] * head.shape[1]})

    def times(self, tokens: int, logit_rows: int) -> Macs:
        """Products of so many tokens, of which so many rows get logits."""
        kinds = (*self.layers, *self.head)
        return {kind: tokens * self.layers.get(kind, 0) + logit_rows * self.head.get(kind, 0) for kind in kinds}


@dataclass(frozen=True)
class ModelCost:
    """Bytes and multiply-accumulates of one model.

    Attributes:
        stream_bytes: weights that a step reads (Model.stream_bytes).
        matrices: products per token and per row of logits.
        position_bytes: keys and values of one position in one layer.
        position_macs: products of one query token with the key and the value of one position in one layer.
        windows: per layer, 0 for full attention.
    """

    stream_bytes: int
    matrices: MatrixMacs
    position_bytes: int
    position_macs: int
    windows: tuple[int, ...]

    @classmethod
    def of(cls, model: Model, matrices: MatrixMacs, kv_dtype: str) -> Self:
        """The cost of a loaded model with its KV stored as kv_dtype ("float16", ...)."""
        return cls.from_config(model.config, matrices, model.stream_bytes, kv_dtype)

    @classmethod
    def from_config(cls, config: ModelConfig, matrices: MatrixMacs, stream_bytes: int, kv_dtype: str) -> Self:
        """The same from a shape, its matrices and the bytes of its packed weights."""
        return cls(
            stream_bytes=stream_bytes,
            matrices=matrices,
            position_bytes=2 * config.kv_heads * config.head_dim * KV_DTYPES[kv_dtype],
            position_macs=2 * config.heads * config.head_dim,
            windows=config.windows,
        )

    def seen(self, context: int) -> int:
        """Positions that the token at the end of so many tokens sees, itself included, over all layers."""
        return sum(min(context, window or context) for window in self.windows)

    def kv_bytes(self, context: int) -> int:
        """Keys and values that the token at the end of so many tokens reads."""
        return self.position_bytes * self.seen(context)

    def decode_limit(self, contexts: Iterable[int], steps: int, rates: Rates) -> Limit | None:
        """All of `steps` decode steps of sequences that had `contexts` tokens before the first of them.

        None if the stream rate is not known.
        """
        if rates.stream_gb_s is None:
            return None
        before = list(contexts)
        kv = sum(self.kv_bytes(context + step + 1) for context in before for step in range(steps))
        rows = steps * len(before)
        return limit_of(steps * self.stream_bytes + kv, self.matrices.times(rows, rows), rates)

    def prefill_limit(self, batch: int, prompt_tokens: int, steps: int, rates: Rates) -> Limit | None:
        """All prompts of a batch, computed in so many steps; None if a peak that they need is not known.

        Steps in which no prompt ends do not read the head, though its bytes are counted: memory is the slower limit
        only for prompts so short that one step computes them.
        """
        macs = self.matrices.times(batch * prompt_tokens, batch)
        if any(count and rates.peak_gmac_s(kind) is None for kind, count in macs.items()):
            return None
        return limit_of(steps * self.stream_bytes, macs, rates)

    def attention_limit_s(self, batch: int, prompt_tokens: int, rates: Rates) -> float | None:
        """Seconds that the attention of all prompts takes at the f32 peak; None if that is not known."""
        if rates.f32_gmac_s is None:
            return None
        seen = sum(_seen_by_all(prompt_tokens, window) for window in self.windows)
        return batch * seen * self.position_macs / (rates.f32_gmac_s * 1e9)


def _seen_by_all(tokens: int, window: int) -> int:
    """Positions that all tokens of a prompt see together in one layer."""
    width = min(window or tokens, tokens)
    return width * (width + 1) // 2 + (tokens - width) * width
