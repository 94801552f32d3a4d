"""Rotary tables against the formulas of their papers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octavo.core.errors import ModelFormatError
from octavo.formats.gguf import GGUFFile
from octavo.models.config import RopeConfig
from octavo.models.decoder import Model
from octavo.models.loader import load_model
from octavo.models.rope import inverse_frequencies, make_rope_table
from octavo.ops import make_ops

PLAIN = RopeConfig(theta=10000.0, dimensions=64, interleaved=False)
YARN = replace(PLAIN, scaling="yarn", factor=8.0, original_context=4096)


def base(config: RopeConfig) -> np.ndarray:
    return np.array([config.theta ** (-2 * i / config.dimensions) for i in range(config.dimensions // 2)])


@pytest.mark.parametrize("theta", [10000.0, 1e6])
@pytest.mark.parametrize("dimensions", [2, 64, 128])
def test_plain_table(theta: float, dimensions: int) -> None:
    table = make_rope_table(replace(PLAIN, theta=theta, dimensions=dimensions, interleaved=True), 33)
    assert table.interleaved
    assert table.cos.shape == table.sin.shape == (33, dimensions // 2)
    assert table.cos.dtype == table.sin.dtype == np.float32
    for position, i in np.ndindex(33, dimensions // 2):
        angle = position / theta ** (2 * i / dimensions)
        assert table.cos[position, i] == np.float32(math.cos(angle))
        assert table.sin[position, i] == np.float32(math.sin(angle))


def test_far_positions_keep_their_angles() -> None:
    table = make_rope_table(PLAIN, 100_001)
    assert table.cos.shape == (100_001, 32)
    assert table.sin[100_000, 0] == np.float32(math.sin(100_000))
    assert table.sin[100_000, 1] == pytest.approx(math.sin(100_000 * base(PLAIN)[1]), abs=1e-7)


@pytest.mark.parametrize("positions", [255, 256, 257, 40_000])
def test_blocks_agree_with_angles_taken_one_by_one(positions: int) -> None:
    table = make_rope_table(replace(PLAIN, attention_factor=1.25), positions)
    places = np.unique(np.minimum(np.r_[np.arange(0, positions, 97), 255, 256, positions], positions - 1))
    angles = places[:, None] * base(PLAIN)
    for got, wanted in ((table.cos, np.cos(angles)), (table.sin, np.sin(angles))):
        assert len(got) == positions
        # Half a unit in the last place of f32, and what the angle itself is off by.
        np.testing.assert_allclose(got[places], 1.25 * wanted, rtol=2**-24, atol=1e-10)


def test_linear_scaling_divides_positions() -> None:
    stretched = make_rope_table(replace(PLAIN, scaling="linear", factor=4.0), 81)
    plain = make_rope_table(PLAIN, 21)
    np.testing.assert_allclose(stretched.cos[::4], plain.cos, rtol=0, atol=1e-6)
    np.testing.assert_allclose(stretched.sin[::4], plain.sin, rtol=0, atol=1e-6)


def test_yarn_keeps_fast_dimensions_stretches_slow_ones_and_blends_between() -> None:
    frequencies, attention = inverse_frequencies(YARN)
    plain = base(YARN)
    turns = YARN.original_context * plain / (2 * math.pi)
    ratio = frequencies / plain
    np.testing.assert_allclose(ratio[turns > 40], 1, rtol=1e-14)  # NumPy's powers differ by a bit between processors
    np.testing.assert_allclose(ratio[turns < 0.7], 1 / 8)
    between = ratio[(turns < 25) & (turns > 1.5)]
    assert len(between) > 5
    assert (np.diff(between) < 0).all()
    # The blend is linear in the dimension's index.
    np.testing.assert_allclose(np.diff(between, 2), 0, atol=1e-12)
    assert attention == pytest.approx(0.1 * math.log(8) + 1)
    table = make_rope_table(YARN, 4)
    np.testing.assert_allclose(table.cos[0], attention, rtol=1e-6)


def test_yarn_options() -> None:
    stretched, attention = inverse_frequencies(replace(YARN, ext_factor=0.0))
    np.testing.assert_allclose(stretched, base(YARN) / 8)
    assert attention == 1
    assert inverse_frequencies(replace(YARN, attention_factor=0.5))[1] == pytest.approx(0.5 * (0.1 * math.log(8) + 1))
    narrow = inverse_frequencies(replace(YARN, beta_fast=4.0, beta_slow=2.0))[0] / base(YARN)
    assert np.sum((narrow < 1 - 1e-12) & (narrow > 1 / 8 + 1e-12)) < 5


def test_factors_divide_frequencies() -> None:
    factors = np.linspace(1, 8, 32).astype(np.float32)
    np.testing.assert_allclose(inverse_frequencies(PLAIN, factors)[0], base(PLAIN) / factors)


def tables(path: Path, **options: int) -> Model:
    with GGUFFile.open(path) as file:
        return load_model(file, make_ops("reference"), **options)


def test_bands_of_the_file_reach_the_table(tiny_gguf: Callable[..., Path]) -> None:
    factors = np.linspace(1, 8, 8).astype(np.float32)
    model = tables(tiny_gguf("llama", tensors={"rope_freqs.weight": factors}))
    rope = model.decoder.layers[0].rope
    assert rope.interleaved
    np.testing.assert_array_equal(rope.cos, make_rope_table(model.config.rope, 512, factors).cos)
    assert not np.array_equal(rope.cos, make_rope_table(model.config.rope, 512).cos)


@pytest.mark.parametrize(("positions", "kind"), [(64, "short"), (65, "long")])
def test_longrope_picks_its_factors_by_the_context(tiny_gguf: Callable[..., Path], positions: int, kind: str) -> None:
    factors = {"short": np.full(8, 2, np.float32), "long": np.full(8, 5, np.float32)}
    path = tiny_gguf(
        "llama",
        metadata={
            "llama.rope.scaling.type": "longrope",
            "llama.rope.scaling.original_context_length": 64,
            "llama.rope.scaling.attn_factor": 1.5,
        },
        tensors={f"rope_factors_{name}.weight": value for name, value in factors.items()},
    )
    model = tables(path, max_positions=positions)
    np.testing.assert_allclose(model.decoder.layers[0].rope.cos[0], 1.5)
    expected = 1.5 * np.sin(1 / factors[kind][0])
    assert model.decoder.layers[0].rope.sin[1, 0] == pytest.approx(expected, rel=1e-6)


def test_longrope_without_its_tensors_is_an_error(tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf("llama", metadata={"llama.rope.scaling.type": "longrope"})
    with pytest.raises(ModelFormatError, match=r"tensor rope_factors_long\.weight of shape \(8,\) is missing"):
        tables(path)


def test_gemma3_turns_local_and_global_layers_differently(tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf(
        "gemma3", metadata={"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}, rope_theta=1e6
    )
    model = tables(path)
    local, glob = model.decoder.layers[4].rope, model.decoder.layers[5].rope
    assert local.sin[1, 0] == np.float32(math.sin(1))
    assert glob.sin[1, 0] == np.float32(math.sin(1 / 8))
    assert local.sin[1, 1] == np.float32(math.sin(10000 ** (-2 / 32)))
    assert glob.sin[1, 1] == np.float32(math.sin(1e6 ** (-2 / 32) / 8))
