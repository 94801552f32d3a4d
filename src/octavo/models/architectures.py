"""The supported architectures as data: one row each. What a row leaves out comes from the file's metadata.

Sources: the model reports (Llama arXiv:2302.13971, Mistral arXiv:2310.06825, Qwen2 arXiv:2407.10671, Qwen3
arXiv:2505.09388, Gemma 2 arXiv:2408.00118, Gemma 3 arXiv:2503.19786) and the conventions of GGUF files
(github.com/ggml-org/ggml, docs/gguf.md), e.g. that Gemma's norm weights are stored as 1 + w.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.errors import UnsupportedModelError
from octavo.ops.api import Activation

__all__ = ["ARCHITECTURES", "Architecture", "find_architecture"]


@dataclass(frozen=True)
class Architecture:
    """How one family differs from the plain decoder: norm, attention, norm, gated MLP, residuals.

    Attributes:
        name: `general.architecture` in GGUF, and the prefix of its metadata keys.
        interleaved_rope: the file's q and k rows are permuted so that RoPE turns pairs (2i, 2i + 1).
        activation: of the gate.
        qkv_bias: attn_{q,k,v}.bias must be there (other biases are used wherever a file has them).
        qk_norm: RMS norm of each query and key head before RoPE.
        post_norms: RMS norm of the attention and MLP outputs before they join the residual stream.
        scaled_embedding: embeddings are multiplied by sqrt(hidden).
        local_pattern: which layers of a repeating group see only a sliding window (of the metadata's size).
        window_required: the metadata must give that size; otherwise no size means full attention everywhere.
        local_rope_theta: RoPE base of local layers, which then have no RoPE scaling; None: as the global ones.
        attn_softcap, final_softcap: for files that do not say; 0: none.
        wide_scale_layers: models of this depth scale queries by (hidden / heads)^-0.5 instead of head_dim^-0.5.
    """

    name: str
    interleaved_rope: bool = False
    activation: Activation = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    scaled_embedding: bool = False
    local_pattern: tuple[bool, ...] = (True,)
    window_required: bool = False
    local_rope_theta: float | None = None
    attn_softcap: float = 0.0
    final_softcap: float = 0.0
    wide_scale_layers: int | None = None


_ROWS = (
    Architecture("llama", interleaved_rope=True),
    Architecture("mistral", interleaved_rope=True),
    Architecture("qwen2", qkv_bias=True),
    Architecture("qwen3", qk_norm=True),
    Architecture(
        "gemma2",
        activation="gelu_tanh",
        post_norms=True,
        scaled_embedding=True,
        local_pattern=(True, False),
        window_required=True,
        attn_softcap=50.0,
        final_softcap=30.0,
        wide_scale_layers=46,  # 27B: 144 = 4608 / 32, though its heads have 128 dimensions
    ),
    Architecture(
        "gemma3",
        activation="gelu_tanh",
        qk_norm=True,
        post_norms=True,
        scaled_embedding=True,
        local_pattern=(True, True, True, True, True, False),
        window_required=True,
        local_rope_theta=10000.0,
        wide_scale_layers=62,  # 27B: 168 = 5376 / 32, though its heads have 128 dimensions
    ),
)

ARCHITECTURES: dict[str, Architecture] = {row.name: row for row in _ROWS}


def find_architecture(name: str) -> Architecture:
    """The row of this name. Raises UnsupportedModelError, which lists the supported ones."""
    row = ARCHITECTURES.get(name)
    if row is None:
        raise UnsupportedModelError(
            f"architecture {name!r} (general.architecture) is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    return row
