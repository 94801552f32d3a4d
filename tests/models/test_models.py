"""All architectures as tiny models: however the work is cut up and laid out, the logits are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.batches import Feeder, make_batch, prefill
from helpers.tiny import ARCHITECTURES, VOCAB
from octavo.core.errors import ContextLengthError, InvalidParameterError
from octavo.formats.gguf import GGUFFile
from octavo.models.decoder import Model
from octavo.models.loader import load_model
from octavo.ops import make_ops

Tiny = Callable[..., Path]
# Logits have a spread of about 2; BLAS adds up in another order for another number of rows.
TOLERANCE = 5e-5


def load(path: Path) -> Model:
    with GGUFFile.open(path) as file:
        return load_model(file, make_ops("reference"))


def tokens(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, length)


@pytest.fixture(params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, tiny_gguf: Tiny) -> Model:
    return load(tiny_gguf(request.param))


def close(got: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


def test_logits_are_finite_varied_and_causal(model: Model) -> None:
    ids = tokens(50)
    logits = prefill(model, ids)
    assert logits.dtype == np.float32
    assert logits.shape == (50, VOCAB)
    assert 0.5 < logits.std() < 5
    changed = ids.copy()
    changed[30] = (changed[30] + 1) % VOCAB
    other = prefill(model, changed)
    close(other[:30], logits[:30])
    assert np.abs(other[30:] - logits[30:]).max() > 0.1


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, 59), max_size=12), order=st.permutations(range(6)))
def test_chunks_and_scattered_pages(model: Model, cuts: set[int], order: list[int]) -> None:
    ids = tokens(60)
    feeder = Feeder(model, model.new_kv(6, 16, "float32"), [order])
    pieces = np.split(ids, sorted(cuts))
    close(np.concatenate([feeder.feed({0: piece})[0] for piece in pieces]), prefill(model, ids))


@pytest.mark.parametrize("page_size", [16, 32, 64])
def test_page_sizes(model: Model, page_size: int) -> None:
    ids = tokens(70)
    close(prefill(model, ids, page_size=page_size), prefill(model, ids))


def test_prefill_chunks_and_decode_steps_of_many_sequences_mix_in_one_batch(model: Model) -> None:
    lengths = [60, 33, 47, 5]
    ids = [tokens(n, seed) for seed, n in enumerate(lengths)]
    pages = np.random.default_rng(5).permutation(16).reshape(4, 4)
    feeder = Feeder(model, model.new_kv(16, 16, "float32"), pages.tolist())
    got: dict[int, list[np.ndarray]] = {s: [] for s in range(4)}
    rng = np.random.default_rng(6)
    while any(feeder.lengths[s] < lengths[s] for s in range(4)):
        left = {s: lengths[s] - feeder.lengths[s] for s in range(4) if feeder.lengths[s] < lengths[s]}
        # About half of the steps of a sequence are decode steps, the others chunks; some sequences sit out.
        chosen = [s for s in left if rng.random() < 0.7] or list(left)
        sizes = {s: 1 if rng.random() < 0.5 else int(rng.integers(1, left[s] + 1)) for s in chosen}
        step = {s: ids[s][feeder.lengths[s] : feeder.lengths[s] + sizes[s]] for s in rng.permutation(chosen).tolist()}
        for s, logits in feeder.feed(step).items():
            got[s].append(logits)
    for s in range(4):
        close(np.concatenate(got[s]), prefill(model, ids[s]))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 0.05), ("bfloat16", 0.4)])
def test_half_precision_kv_is_near(model: Model, dtype: str, tolerance: float) -> None:
    ids = tokens(60)
    exact, half = prefill(model, ids), prefill(model, ids, dtype)
    assert np.abs(half - exact).max() < tolerance
    assert np.abs(half - exact).max() > 1e-5


def test_only_the_rows_asked_for_get_logits(model: Model) -> None:
    ids, kv = tokens(20), model.new_kv(2, 16, "float32")
    batch = make_batch([ids], [0], [[0, 1]], logit_rows=[19, 4])
    close(model.forward(batch, kv), prefill(model, ids)[[19, 4]])
    assert model.forward(replace(batch, logit_rows=np.zeros(0, np.int32)), kv).shape == (0, VOCAB)


def test_hidden_states_lead_to_the_same_logits(model: Model) -> None:
    ids, kv = tokens(20), model.new_kv(2, 16, "float32")
    batch = make_batch([ids], [0], [[0, 1]])
    hidden = model.hidden(batch, kv)
    assert hidden.shape == (20, model.config.hidden)
    close(model.logits_of(hidden, np.array([7], np.int32)), prefill(model, ids)[[7]])


def test_a_window_hides_what_is_older(tiny_gguf: Tiny) -> None:
    one_layer = load(tiny_gguf("mistral", layers=1, window=24))
    ids = tokens(60)
    changed = ids.copy()
    changed[10] = (changed[10] + 1) % VOCAB
    difference = np.abs(prefill(one_layer, ids) - prefill(one_layer, changed)).max(axis=1)
    assert (difference[10:34] > 1e-3).all()  # positions 10..33 see position 10
    assert difference[:10].max() < TOLERANCE
    assert difference[34:].max() < TOLERANCE


def test_a_window_longer_than_the_text_changes_nothing(tiny_gguf: Tiny) -> None:
    ids = tokens(60)
    close(prefill(load(tiny_gguf("mistral", window=60)), ids), prefill(load(tiny_gguf("mistral", window=0)), ids))


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_biases_of_any_matrix_are_used(tiny_gguf: Tiny, arch: str) -> None:
    ids = tokens(20)
    sizes = {
        "attn_q": 64,
        "attn_k": 32,
        "attn_v": 32,
        "attn_output": 64,
        "ffn_gate": 128,
        "ffn_up": 128,
        "ffn_down": 64,
    }
    plain = prefill(load(tiny_gguf(arch, layers=1)), ids)
    for name, size in sizes.items():
        bias = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        biased = prefill(load(tiny_gguf(arch, layers=1, tensors={f"blk.0.{name}.bias": bias})), ids)
        assert np.abs(biased - plain).max() > 0.05, name


@pytest.mark.parametrize(("quant", "tolerance"), [("Q8_0", 0.1), ("F16", 0.01), ("BF16", 0.1), ("Q5_1", 0.6)])
def test_quantized_weights_are_near(tiny_gguf: Tiny, quant: str, tolerance: float) -> None:
    ids = tokens(20)
    error = np.abs(prefill(load(tiny_gguf("llama", quant=quant)), ids) - prefill(load(tiny_gguf("llama")), ids))
    assert 0 < error.mean() < tolerance


def test_bad_tokens_and_positions_are_refused(model: Model) -> None:
    kv = model.new_kv(2, 16, "float32")
    for bad in (-1, VOCAB):
        with pytest.raises(InvalidParameterError, match=rf"token id {bad} is outside the vocabulary \(0\.\.319\)"):
            model.forward(make_batch([[1, bad]], [0], [[0]]), kv)
    with pytest.raises(ContextLengthError, match=r"position 512 .* max_model_len"):
        model.forward(make_batch([[1]], [512], [[0]]), kv)


def test_an_empty_batch_is_no_work(model: Model) -> None:
    kv = model.new_kv(1, 16, "float32")
    assert model.forward(make_batch([[]], [0], [[0]]), kv).shape == (0, VOCAB)
