"""From an open GGUF file to a `Model`."""

from __future__ import annotations

from octavo.core.errors import ConfigError
from octavo.formats.ggml import dequantize_tensor
from octavo.formats.gguf import GGUFFile
from octavo.models.config import ModelConfig
from octavo.models.decoder import Layer, Model
from octavo.models.rope import make_rope_table
from octavo.models.weights import Progress, TensorReader, load_weights
from octavo.ops.api import F32, Ops, RopeTable

__all__ = ["estimate_weight_bytes", "load_model"]


def load_model(
    file: GGUFFile, ops: Ops, *, max_positions: int | None = None, progress: Progress | None = None
) -> Model:
    """Check and pack everything that a model needs.

    The file may be closed afterwards; its map lives as long as the embedding table that the model views.

    max_positions: positions to prepare rotary tables for (None: the model's whole context).
    progress: called as progress(bytes packed so far, bytes in all), once per layer.
    Raises UnsupportedModelError, ModelFormatError (naming key or tensor), ConfigError (max_positions too large).
    """
    config = ModelConfig.from_gguf(file)
    positions = config.context_length if max_positions is None else max_positions
    if not 1 <= positions <= config.context_length:
        raise ConfigError(
            f"max_model_len {positions} is not possible: this model's context is {config.context_length} tokens"
        )
    reader = TensorReader(file)
    rope, local = _rope_tables(config, reader, positions)
    weights = load_weights(config, file, reader, ops, progress)
    reader.finish()
    layers = tuple(
        Layer(layer, config.attention(i), local if config.windows[i] else rope)
        for i, layer in enumerate(weights.layers)
    )
    return Model(config, weights, layers, ops)


def estimate_weight_bytes(file: GGUFFile, backend: str = "native") -> int:
    """About the `Model.weight_bytes` that loading would give, from shapes alone: for a memory plan made before.

    native: a packed matrix takes what the file stores. reference: 4 bytes per weight, and the mapped embedding table.
    """
    stored = {name: t.data.nbytes for name, t in file.tensors.items()}
    table = stored.get("token_embd.weight", 0)
    tied = "output.weight" not in stored
    if backend != "reference":
        # A tied head is packed apart from the table that embeddings are looked up in.
        return sum(stored.values()) + (table if tied else 0)
    sizes = {name: 4 * _elements(t.shape) for name, t in file.tensors.items()}
    head_only = 0 if tied else sizes.get("token_embd.weight", 0)
    return sum(sizes.values()) - head_only + table


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _rope_tables(config: ModelConfig, reader: TensorReader, positions: int) -> tuple[RopeTable, RopeTable]:
    """The tables of global layers and of layers with a window."""
    rope = make_rope_table(config.rope, positions, _rope_factors(config, reader, positions))
    return rope, rope if config.local_rope is None else make_rope_table(config.local_rope, positions)


def _rope_factors(config: ModelConfig, reader: TensorReader, positions: int) -> F32 | None:
    """Frequency divisors f32 [dimensions / 2]: Llama 3's bands, or LongRoPE's for this length of context.

    LongRoPE (Ding et al., arXiv:2402.13753) has one set for contexts up to the original and one for longer ones; the
    choice is made once, by the number of positions, so that a token's rotation never depends on what follows it.
    """
    half = config.rope.dimensions // 2
    if config.rope.scaling == "longrope":
        factors = {name: reader.vector(f"rope_factors_{name}.weight", half) for name in ("long", "short")}
        return factors["long" if positions > config.rope.original_context else "short"]
    if config.local_rope is not None:
        return None
    bands = reader.find("rope_freqs.weight", half)
    return None if bands is None else dequantize_tensor(bands)
