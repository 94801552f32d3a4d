"""What a model asks of the machine, and how long it takes at the machine's limits (a roofline: Williams et al., 2009).

Decode: a step reads every weight once and the keys and values of every sequence. Prefill: every token is multiplied
with every matrix, but the head only once per sequence. The limit is the slower of memory and dot unit. Attention's own
products are not counted: at the contexts of a benchmark they are a few percent, and leaving them out only makes the
limit harder to reach.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from octavo.measure.limits import Rates
from octavo.models.config import ModelConfig
from octavo.models.decoder import Model
from octavo.ops.kv import KV_DTYPES

__all__ = ["Limit", "ModelCost", "limit_of"]


class Limit(NamedTuple):
    """Seconds that something takes at best, and which limit says so."""

    seconds: float
    bound: Literal["stream", "dot"]


def limit_of(stream_bytes: float, macs: float, rates: Rates) -> Limit | None:
    """The slower of reading so many bytes and adding up so many products; None if neither limit is known."""
    known = []
    if rates.stream_gb_s:
        known.append(Limit(stream_bytes / (rates.stream_gb_s * 1e9), "stream"))
    if rates.dot_gmac_s:
        known.append(Limit(macs / (rates.dot_gmac_s * 1e9), "dot"))
    return max(known, default=None)


@dataclass(frozen=True)
class ModelCost:
    """Bytes and multiply-accumulates of one model.

    Attributes:
        stream_bytes: weights that a step reads (Model.stream_bytes).
        layer_macs: products per token in the matrices of all layers.
        head_macs: products per row of logits.
        position_bytes: keys and values of one position in one layer.
        windows: per layer, 0 for full attention.
    """

    stream_bytes: int
    layer_macs: int
    head_macs: int
    position_bytes: int
    windows: tuple[int, ...]

    @classmethod
    def of(cls, model: Model, kv_dtype: str) -> Self:
        """The cost of a loaded model with its KV stored as kv_dtype ("float16", ...)."""
        return cls.from_config(model.config, model.stream_bytes, kv_dtype)

    @classmethod
    def from_config(cls, config: ModelConfig, stream_bytes: int, kv_dtype: str) -> Self:
        """The same from a shape and the bytes of its packed weights."""
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        layer = config.hidden * (queries + 2 * keys) + queries * config.hidden + 3 * config.hidden * config.ffn
        return cls(
            stream_bytes=stream_bytes,
            layer_macs=config.layers * layer,
            head_macs=config.hidden * config.vocab,
            position_bytes=2 * keys * KV_DTYPES[kv_dtype],
            windows=config.windows,
        )

    def kv_bytes(self, context: int) -> int:
        """Keys and values that the token at the end of so many tokens sees, itself included."""
        return self.position_bytes * sum(min(context, window or context) for window in self.windows)

    def decode_limit(self, contexts: Iterable[int], steps: int, rates: Rates) -> Limit | None:
        """All of `steps` decode steps of sequences that had `contexts` tokens before the first of them.

        None if the stream rate is not known.
        """
        if rates.stream_gb_s is None:
            return None
        before = list(contexts)
        kv = sum(self.kv_bytes(context + step + 1) for context in before for step in range(steps))
        macs = steps * len(before) * (self.layer_macs + self.head_macs)
        return limit_of(steps * self.stream_bytes + kv, macs, rates)

    def prefill_limit(self, batch: int, prompt_tokens: int, steps: int, rates: Rates) -> Limit | None:
        """All prompts of a batch, computed in so many steps; None if the dot peak is not known."""
        if rates.dot_gmac_s is None:
            return None
        macs = batch * (prompt_tokens * self.layer_macs + self.head_macs)
        return limit_of(steps * self.stream_bytes, macs, rates)
