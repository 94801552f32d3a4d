"""From the tensors of a file to packed weights: names, shapes, and nothing left over unnoticed.

Tensor names are those of GGUF (blk.{layer}.attn_q.weight, ...); shapes are (outputs, inputs).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from octavo.core.errors import ModelFormatError, UnsupportedModelError
from octavo.formats.ggml import dequantize_tensor
from octavo.formats.gguf import GGUFFile
from octavo.formats.mapped import release_pages
from octavo.formats.tensor import Tensor
from octavo.models.config import ModelConfig
from octavo.ops.api import F32, Linear, Norm, Ops

__all__ = ["LayerWeights", "ModelWeights", "Progress", "TensorReader", "load_weights"]

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called as progress(bytes packed so far, bytes in all)."""

_EXPERTS = ("_exps.", "_shexp.", "ffn_gate_inp", ".ffn_gate.0.")
# Parts of a multimodal file beside its text decoder.
_VISION = ("v.", "mm.", "a.")
# Old converters stored the RoPE frequencies, which follow from the metadata.
_REDUNDANT = ("attn_rot_embd", "rotary_emb.inv_freq")


@dataclass(frozen=True)
class LayerWeights:
    """One layer. qkv: q, k, v stacked by rows; gate_up: gated (see Ops.pack). Norms that a model lacks are None."""

    attn_norm: Norm
    qkv: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    out: Linear
    post_attn_norm: Norm | None
    ffn_norm: Norm
    gate_up: Linear
    down: Linear
    post_ffn_norm: Norm | None

    def norms(self) -> Iterable[Norm]:
        found = (self.attn_norm, self.q_norm, self.k_norm, self.post_attn_norm, self.ffn_norm, self.post_ffn_norm)
        return (norm for norm in found if norm is not None)

    @property
    def packed_bytes(self) -> int:
        """Bytes read when a token passes through."""
        matrices = (self.qkv, self.out, self.gate_up, self.down)
        return sum(m.packed_bytes for m in matrices) + sum(n.weight.nbytes for n in self.norms())


@dataclass(frozen=True)
class ModelWeights:
    """All weights. embedding [V, H] is a view of the file; head is packed from it if the model ties them."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    output_norm: Norm
    head: Linear

    @property
    def stream_bytes(self) -> int:
        """Bytes read from memory by one decode step: all but the embedding table, of which it reads single rows."""
        return sum(x.packed_bytes for x in self.layers) + self.head.packed_bytes + self.output_norm.weight.nbytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory: what a step streams, and the mapped embedding table."""
        return self.stream_bytes + self.embedding.data.nbytes


class TensorReader:
    """Takes tensors out of a file by name and shape, and knows which are left."""

    def __init__(self, file: GGUFFile) -> None:
        self._name = file.path.name
        self._left = dict(file.tensors)
        self.bytes_taken = 0

    def find(self, name: str, *shape: int) -> Tensor | None:
        """The tensor, or None if the file has none of this name. Raises ModelFormatError for another shape."""
        tensor = self._left.pop(name, None)
        if tensor is not None and tensor.shape != shape:
            raise ModelFormatError(f"{self._name}: tensor {name} has shape {tensor.shape}; expected {shape}")
        self.bytes_taken += 0 if tensor is None else tensor.data.nbytes
        return tensor

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor. Raises ModelFormatError if it is missing or has another shape."""
        tensor = self.find(name, *shape)
        if tensor is None:
            self._refuse_experts()
            raise ModelFormatError(f"{self._name}: tensor {name} of shape {shape} is missing")
        return tensor

    def vector(self, name: str, size: int) -> F32:
        """As `take`, as f32 [size]."""
        return dequantize_tensor(self.take(name, size))

    def biases(self, names: tuple[tuple[str, int], ...], *, required: bool = False) -> F32 | None:
        """Biases of stacked matrices as one f32 [sum of sizes]: zeros where one is absent, None where all are."""
        found = [self.take(name, size) if required else self.find(name, size) for name, size in names]
        if not any(found):
            return None
        parts = [dequantize_tensor(t) if t else np.zeros(n, np.float32) for t, (_, n) in zip(found, names, strict=True)]
        return np.concatenate(parts)

    def finish(self) -> None:
        """Raises UnsupportedModelError if tensors are left that would change the model's answers."""
        self._refuse_experts()
        left = [name for name in self._left if not any(part in name for part in _REDUNDANT)]
        vision = [name for name in left if name.startswith(_VISION)]
        if vision:
            logger.warning("%s: %d tensors of its vision part are not used: only text runs", self._name, len(vision))
        unknown = [name for name in left if not name.startswith(_VISION)]
        if unknown:
            raise UnsupportedModelError(
                f"{self._name}: {len(unknown)} tensors have no use in this architecture, so its answers would be "
                f"wrong: {', '.join(unknown[:3])}{', ...' if len(unknown) > 3 else ''}"
            )

    def _refuse_experts(self) -> None:
        expert = next((name for name in self._left if any(part in name for part in _EXPERTS)), None)
        if expert is not None:
            raise UnsupportedModelError(
                f"{self._name}: tensor {expert} belongs to a mixture of experts, which this version does not support"
            )


def load_weights(
    config: ModelConfig, file: GGUFFile, reader: TensorReader, ops: Ops, progress: Progress | None = None
) -> ModelWeights:
    """Pack every tensor of the decoder. Raises ModelFormatError (missing or misshapen), UnsupportedModelError."""
    total = sum(tensor.data.nbytes for tensor in file.tensors.values())

    def report() -> None:
        if progress is not None:
            progress(reader.bytes_taken, total)

    embedding = reader.take("token_embd.weight", config.vocab, config.hidden)
    norm = Norm(reader.vector("output_norm.weight", config.hidden), config.eps)
    table = embedding if config.tied else reader.take("output.weight", config.vocab, config.hidden)
    # First, because it is the largest: while a matrix is packed, its file pages are in memory too.
    head = _pack(ops, [table], reader.biases((("output.bias", config.vocab),)))
    report()
    layers = []
    for layer in range(config.layers):
        layers.append(_load_layer(config, layer, reader, ops))
        report()
    return ModelWeights(embedding, tuple(layers), norm, head)


def _load_layer(config: ModelConfig, layer: int, reader: TensorReader, ops: Ops) -> LayerWeights:
    hidden, ffn = config.hidden, config.ffn
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    block = f"blk.{layer}."

    def norm(name: str, size: int = hidden) -> Norm:
        return Norm(reader.vector(f"{block}{name}.weight", size), config.eps)

    def pack(*parts: tuple[str, int], columns: int, required: bool = False, gated: bool = False) -> Linear:
        matrices = [reader.take(f"{block}{name}.weight", rows, columns) for name, rows in parts]
        names = tuple((f"{block}{name}.bias", rows) for name, rows in parts)
        return _pack(ops, matrices, reader.biases(names, required=required), gated=gated)

    heads = (("attn_q", queries), ("attn_k", keys), ("attn_v", keys))
    return LayerWeights(
        attn_norm=norm("attn_norm"),
        qkv=pack(*heads, columns=hidden, required=config.qkv_bias),
        q_norm=norm("attn_q_norm", config.head_dim) if config.qk_norm else None,
        k_norm=norm("attn_k_norm", config.head_dim) if config.qk_norm else None,
        out=pack(("attn_output", hidden), columns=queries),
        post_attn_norm=norm("post_attention_norm") if config.post_norms else None,
        ffn_norm=norm("ffn_norm"),
        gate_up=pack(("ffn_gate", ffn), ("ffn_up", ffn), columns=hidden, gated=True),
        down=pack(("ffn_down", hidden), columns=ffn),
        post_ffn_norm=norm("post_ffw_norm") if config.post_norms else None,
    )


def _pack(ops: Ops, matrices: list[Tensor], bias: F32 | None, *, gated: bool = False) -> Linear:
    """Pack, and let go of the file's pages: memory then holds the packed model and no second one."""
    packed = ops.pack(matrices, bias=bias, gated=gated)
    for matrix in matrices:
        release_pages(matrix.data)
    return packed
