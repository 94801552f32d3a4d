"""Every architecture against transformers: random tiny models, exported as GGUF, must give the same logits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.batches import Feeder
from octavo.formats.gguf import GGUFFile
from octavo.models.decoder import Model
from octavo.models.loader import load_model
from octavo.ops import make_ops

pytestmark = [pytest.mark.oracle]

# Logits have a spread of about 1; f32 sums in another order differ by a few 1e-6 after two layers.
TOLERANCE = 1e-4
LENGTH = 70  # tokens: nearly three of the sliding windows below


@dataclass(frozen=True)
class Case:
    """A transformers config: its class, the GGUF architecture, and what differs from the tiny defaults."""

    config: str
    arch: str
    options: dict[str, Any] = field(default_factory=dict)


def rope(kind: str, theta: float = 10000.0, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **parameters}}


LLAMA3 = rope(
    "llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
GEMMA_ROPE = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
}
SOFTCAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
CASES = {
    "llama": Case("LlamaConfig", "llama"),
    "llama-mha-tied": Case("LlamaConfig", "llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-mqa-wide-heads": Case("LlamaConfig", "llama", {"num_key_value_heads": 1, "head_dim": 32}),
    "llama-biases": Case("LlamaConfig", "llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3": Case("LlamaConfig", "llama", LLAMA3),
    "llama-linear": Case("LlamaConfig", "llama", rope("linear", factor=4.0)),
    "llama-yarn": Case("LlamaConfig", "llama", YARN),
    "mistral": Case("MistralConfig", "mistral", {"sliding_window": 24}),
    "mistral-as-llama": Case("MistralConfig", "llama", {"sliding_window": None}),
    "qwen2": Case("Qwen2Config", "qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": Case("Qwen2Config", "qwen2", YARN | {"num_key_value_heads": 1}),
    "qwen3": Case("Qwen3Config", "qwen3", {"head_dim": 32}),
    "qwen3-tied-yarn": Case("Qwen3Config", "qwen3", YARN | {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma2": Case("Gemma2Config", "gemma2", {"head_dim": 32, "query_pre_attn_scalar": 32, "num_hidden_layers": 3}),
    "gemma2-softcaps": Case("Gemma2Config", "gemma2", SOFTCAPS | {"head_dim": 32, "query_pre_attn_scalar": 32}),
    "gemma2-27b-scale": Case(
        "Gemma2Config", "gemma2", {"head_dim": 32, "query_pre_attn_scalar": 16, "num_hidden_layers": 46}
    ),
    "gemma3": Case("Gemma3TextConfig", "gemma3", {"head_dim": 32, "query_pre_attn_scalar": 32, "num_hidden_layers": 7}),
    "gemma3-linear": Case(
        "Gemma3TextConfig",
        "gemma3",
        GEMMA_ROPE | {"head_dim": 32, "query_pre_attn_scalar": 32, "num_hidden_layers": 12},
    ),
}


def tiny_config(transformers: Any, case: Case) -> Any:
    options: dict[str, Any] = {
        "vocab_size": 200,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": case.arch.startswith("gemma"),
        "attn_implementation": "eager",
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if case.arch.startswith("gemma"):
        options["sliding_window"] = 24
    return getattr(transformers, case.config)(**(options | case.options))


@pytest.fixture(params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Model, np.ndarray, np.ndarray]:
    """Our model, tokens [LENGTH], and the logits of transformers [LENGTH, V]."""
    torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
    transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")
    from helpers.hf_export import export_gguf, randomize

    case = CASES[request.param]
    theirs = transformers.AutoModelForCausalLM.from_config(tiny_config(transformers, case), dtype=torch.float32).eval()
    randomize(theirs)
    tokens = np.random.default_rng(1).integers(0, 200, LENGTH)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)[None], use_cache=False).logits[0].numpy()
    with GGUFFile.open(export_gguf(theirs, case.arch, tmp_path / "tiny.gguf")) as file:
        return load_model(file, make_ops("reference")), tokens, expected


def test_logits_of_prefill_and_of_chunks(pair: tuple[Model, np.ndarray, np.ndarray]) -> None:
    model, tokens, expected = pair
    assert expected.std() > 0.1
    whole = Feeder(model, model.new_kv(5, 16, "float32"), [range(5)]).feed({0: tokens})[0]
    np.testing.assert_allclose(whole, expected, rtol=0, atol=TOLERANCE)
    feeder = Feeder(model, model.new_kv(5, 16, "float32"), [[3, 0, 4, 1, 2]])
    pieces = np.split(tokens, [30, 47, *range(48, LENGTH)])
    chunked = np.concatenate([feeder.feed({0: piece})[0] for piece in pieces])
    np.testing.assert_allclose(chunked, expected, rtol=0, atol=TOLERANCE)
