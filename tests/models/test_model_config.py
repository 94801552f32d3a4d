"""What is read from metadata, and what is refused with which words."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.tiny import ARCHITECTURES, VOCAB
from octavo.core.errors import ConfigError, ModelFormatError, UnsupportedModelError
from octavo.formats.gguf import GGUFFile
from octavo.models.architectures import ARCHITECTURES as ROWS
from octavo.models.config import ModelConfig
from octavo.models.loader import estimate_weight_bytes, load_model
from octavo.ops import make_ops
from octavo.ops.kv import KVStore

Tiny = Callable[..., Path]


def read(path: Path) -> ModelConfig:
    with GGUFFile.open(path) as file:
        return ModelConfig.from_gguf(file)


def load(path: Path, **options: Any) -> Any:
    with GGUFFile.open(path) as file:
        return load_model(file, make_ops("reference"), **options)


def test_every_row_has_a_tiny_model() -> None:
    assert set(ROWS) == set(ARCHITECTURES)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_sizes(tiny_gguf: Tiny, arch: str) -> None:
    config = read(tiny_gguf(arch, layers=3, kv_heads=1, context_length=200))
    assert (config.arch, config.layers, config.hidden, config.heads, config.kv_heads) == (arch, 3, 64, 4, 1)
    assert (config.ffn, config.vocab, config.context_length, config.eps) == (128, VOCAB, 200, pytest.approx(1e-6))
    assert config.attention(1).scale == pytest.approx(config.head_dim**-0.5)
    assert config.rope.interleaved == (arch in ("llama", "mistral"))
    assert config.embedding_scale == (8.0 if arch.startswith("gemma") else 1.0)
    assert config.kv_page_bytes(16, "float16") == KVStore.page_stride(3, 16, 1, config.head_dim, "float16")


def test_windows(tiny_gguf: Tiny) -> None:
    assert read(tiny_gguf("llama")).windows == (0, 0)
    assert read(tiny_gguf("mistral")).windows == (24, 24)
    assert read(tiny_gguf("gemma2", layers=5)).windows == (24, 0, 24, 0, 24)
    assert read(tiny_gguf("gemma3", layers=7)).windows == (24, 24, 24, 24, 24, 0, 24)
    period = {"gemma3.attention.sliding_window_pattern": 3}
    assert read(tiny_gguf("gemma3", layers=4, metadata=period)).windows == (24, 24, 0, 24)
    flags = {"gemma3.attention.sliding_window_pattern": [False, True, True]}
    assert read(tiny_gguf("gemma3", layers=3, metadata=flags)).windows == (0, 24, 24)


def test_softcaps_come_from_metadata_and_gemma2_has_its_own(tiny_gguf: Tiny) -> None:
    gemma2 = read(tiny_gguf("gemma2", metadata={"gemma2.attn_logit_softcapping": None}, final_softcap=7.0))
    assert (gemma2.attn_softcap, gemma2.final_softcap) == (50.0, 7.0)
    llama = read(tiny_gguf("llama"))
    assert (llama.attn_softcap, llama.final_softcap) == (0.0, 0.0)


def test_query_scale(tiny_gguf: Tiny) -> None:
    assert read(tiny_gguf("gemma2", layers=46)).attention_scale == pytest.approx(16**-0.5)
    assert read(tiny_gguf("gemma3", layers=62)).attention_scale == pytest.approx(16**-0.5)
    assert read(tiny_gguf("llama", metadata={"llama.attention.scale": 0.3})).attention_scale == pytest.approx(0.3)


def test_a_list_of_equal_layers_counts_as_one_number(tiny_gguf: Tiny) -> None:
    assert read(tiny_gguf(metadata={"llama.attention.head_count_kv": [2, 2]})).kv_heads == 2
    with pytest.raises(UnsupportedModelError, match=r"llama\.attention\.head_count_kv.* differs from layer to layer"):
        read(tiny_gguf(metadata={"llama.attention.head_count_kv": [2, 1]}))


@pytest.mark.parametrize(
    ("metadata", "scaling", "factor"),
    [
        ({}, "none", 1.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, "none", 1.0),
        ({"rope.scaling.factor": 4.0}, "linear", 4.0),
        ({"rope.scale_linear": 2.0}, "linear", 2.0),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}, "none", 1.0),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "yarn", 4.0),
    ],
)
def test_rope_scaling(tiny_gguf: Tiny, metadata: dict[str, Any], scaling: str, factor: float) -> None:
    rope = read(tiny_gguf(metadata={f"llama.{key}": value for key, value in metadata.items()})).rope
    assert (rope.scaling, rope.factor, rope.original_context) == (scaling, factor, 512)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"llama.block_count": None}, ModelFormatError, r"'llama\.block_count' is missing"),
        ({"llama.block_count": 0}, ModelFormatError, r"'llama\.block_count' is 0; it must be between 1 and 4096"),
        ({"llama.block_count": "two"}, ModelFormatError, r"'llama\.block_count' holds a string"),
        ({"llama.attention.layer_norm_rms_epsilon": math.nan}, ModelFormatError, r"rms_epsilon' is nan"),
        ({"llama.attention.head_count_kv": 3}, ModelFormatError, "4 query heads .* multiple of 3 KV heads"),
        ({"llama.attention.head_count": 5, "llama.attention.head_count_kv": 5}, ModelFormatError, "no multiple"),
        ({"llama.attention.value_length": 8}, UnsupportedModelError, "16 key and 8 value dimensions"),
        ({"llama.rope.dimension_count": 17}, ModelFormatError, "between 2 and 16"),
        ({"llama.context_length": 2**30}, ModelFormatError, "between 1 and 16777216"),
        ({"llama.rope.freq_base": 1.0}, ModelFormatError, "must be above 1"),
        ({"llama.attention.key_length_swa": 8}, UnsupportedModelError, "key_length_swa.* only 16"),
        ({"llama.rope.dimension_count": 5}, ModelFormatError, "must be even"),
        ({"llama.rope.scaling.type": "dynamic"}, UnsupportedModelError, "'dynamic'; supported: none, linear, yarn"),
        ({"llama.rope.scaling.yarn_log_multiplier": 0.1}, UnsupportedModelError, "yarn_log_multiplier"),
        ({"llama.expert_count": 8}, UnsupportedModelError, "mixture-of-experts"),
        ({"llama.attention.causal": False}, UnsupportedModelError, "only True"),
        ({"llama.logit_scale": 0.25}, UnsupportedModelError, "logit_scale"),
        ({"tokenizer.ggml.tokens": ["x"] * 400}, ModelFormatError, "400 tokens.* only 320 rows"),
        (
            {"gemma2.attention.sliding_window": None},
            ModelFormatError,
            r"'gemma2\.attention\.sliding_window' is missing",
        ),
        ({"gemma3.attention.sliding_window_pattern": [True]}, ModelFormatError, "7 booleans"),
    ],
)
def test_bad_metadata(tiny_gguf: Tiny, metadata: dict[str, Any], error: type[Exception], message: str) -> None:
    arch = next(iter(metadata)).split(".")[0]
    path = tiny_gguf(arch if arch in ARCHITECTURES else "llama", metadata=metadata)
    with pytest.raises(error, match=message):
        read(path)


def test_unknown_architectures_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    from helpers.tiny import tiny_spec, tiny_tensors, write_gguf

    path = write_gguf(tmp_path / "x.gguf", "mamba", {}, tiny_tensors(tiny_spec("llama")))
    with pytest.raises(
        UnsupportedModelError, match=r"'mamba'.*supported: llama, mistral, qwen2, qwen3, gemma2, gemma3"
    ):
        read(path)


def test_keys_that_nobody_knows_are_reported(tiny_gguf: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read(tiny_gguf(metadata={"llama.attention.sparkle": 3}))
    assert "llama.attention.sparkle" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for arch in ARCHITECTURES:
            read(tiny_gguf(arch))
    assert caplog.text == ""


# Tensors


@pytest.mark.parametrize(
    ("arch", "tensors", "error", "message"),
    [
        (
            "llama",
            {"blk.1.ffn_up.weight": None},
            ModelFormatError,
            r"blk\.1\.ffn_up\.weight of shape \(128, 64\) is mis",
        ),
        ("llama", {"output_norm.weight": np.ones(32)}, ModelFormatError, r"output_norm.* \(32,\); expected \(64,\)"),
        (
            "llama",
            {"blk.0.attn_q.weight": np.ones((32, 64))},
            ModelFormatError,
            r"attn_q.* \(32, 64\); exp.* \(64, 64\)",
        ),
        ("llama", {"token_embd.weight": None}, ModelFormatError, "token_embd"),
        ("llama", {"output.weight": np.ones((7, 64))}, ModelFormatError, r"expected \(320, 64\)"),
        ("qwen2", {"blk.0.attn_k.bias": None}, ModelFormatError, r"blk\.0\.attn_k\.bias of shape \(32,\) is missing"),
        ("qwen3", {"blk.0.attn_q_norm.weight": None}, ModelFormatError, "attn_q_norm"),
        ("llama", {"blk.0.attn_q_norm.weight": np.ones(16)}, UnsupportedModelError, r"1 tensors .*attn_q_norm"),
        ("llama", {"blk.2.attn_q.weight": np.ones((64, 64))}, UnsupportedModelError, r"blk\.2\.attn_q"),
        ("gemma3", {"rope_freqs.weight": np.ones(16)}, UnsupportedModelError, "rope_freqs"),
        (
            "llama",
            {"blk.0.ffn_up.weight": None, "blk.0.ffn_up_exps.weight": np.ones((2, 128, 64))},
            UnsupportedModelError,
            "mixture of experts",
        ),
    ],
)
def test_bad_tensors(tiny_gguf: Tiny, arch: str, tensors: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load(tiny_gguf(arch, tensors=tensors))


def test_vision_tensors_are_left_out_with_a_word(tiny_gguf: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    load(tiny_gguf("gemma3", tensors={"v.patch_embd.weight": np.ones((4, 4))}))
    assert "1 tensors of its vision part are not used" in caplog.text


def test_max_positions(tiny_gguf: Tiny) -> None:
    assert load(tiny_gguf(context_length=100)).max_positions == 100
    assert load(tiny_gguf(context_length=100), max_positions=40).max_positions == 40
    with pytest.raises(ConfigError, match=r"max_model_len 101 .* 100 tokens"):
        load(tiny_gguf(context_length=100), max_positions=101)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_estimate_is_what_loading_takes(tiny_gguf: Tiny, arch: str, tied: bool) -> None:
    seen: list[tuple[int, int]] = []
    path = tiny_gguf(arch, quant="Q8_0", tied=tied)
    model = load(path, progress=lambda done, total: seen.append((done, total)))
    with GGUFFile.open(path) as file:
        assert estimate_weight_bytes(file, "reference") == model.weight_bytes
        stored = sum(t.data.nbytes for t in file.tensors.values())
        table = file.tensors["token_embd.weight"].data.nbytes
        assert estimate_weight_bytes(file) == stored + (table if tied else 0)
    assert model.stream_bytes == model.weight_bytes - table
    assert seen[-1] == (stored, stored)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
