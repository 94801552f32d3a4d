"""A captured step gives the bits of the same step run op by op, whatever batches come, and holds what it needs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.batches import make_batch
from helpers.engines import load_tiny
from helpers.tiny import ARCHITECTURES, VOCAB
from octavo.core.batch import RaggedBatch
from octavo.core.errors import ContextLengthError, InvalidParameterError, UnsupportedModelError
from octavo.measure.random_weights import random_tensor
from octavo.models.decoder import Model
from octavo.ops.api import AttentionSpec, Norm
from octavo.ops.kv import KVStore

native = pytest.importorskip("octavo.ops.native", exc_type=ImportError)

Tiny = Callable[..., Path]
PAGES, PAGE = 40, 16


@pytest.fixture(params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, tiny_gguf: Tiny) -> Model:
    return load_tiny(tiny_gguf(request.param, quant="Q8_0"), "native")


class Batches:
    """Random ragged batches over five sequences that grow: decode steps, chunks, sequences that sit out."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.tables = self.rng.permutation(PAGES).reshape(5, -1)
        self.lengths = [0] * 5

    def next(self) -> RaggedBatch:
        rng = self.rng
        chosen = rng.permutation(5)[: rng.integers(1, 6)].tolist()
        sizes = [1 if rng.random() < 0.5 else int(rng.integers(1, 40)) for _ in chosen]
        room = PAGES // 5 * PAGE
        sizes = [min(n, room - self.lengths[s]) for s, n in zip(chosen, sizes, strict=True)]
        tokens = [rng.integers(0, VOCAB, n) for n in sizes]
        rows = rng.permutation(sum(sizes))[: rng.integers(0, sum(sizes) + 1)]
        batch = make_batch(tokens, [self.lengths[s] for s in chosen], self.tables[chosen], rows)
        for s, n in zip(chosen, sizes, strict=True):
            self.lengths[s] += n
        return batch


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_same_bits_as_op_by_op(model: Model, dtype: str) -> None:
    one, other = (model.new_kv(PAGES, PAGE, dtype) for _ in range(2))
    batches = Batches(3)
    for number in range(12):
        batch = batches.next()
        if number % 3 == 2:
            got, want = model.hidden(batch, one), model.decoder.hidden(model.ops, batch, other)
        else:
            got, want = model.forward(batch, one), model.decoder.logits(model.ops, batch, other)
        assert got.dtype == want.dtype
        assert np.array_equal(got, want), number
        for a, b in zip((*one.k, *one.v), (*other.k, *other.v), strict=True):
            assert np.array_equal(a, b), number


def test_results_stay_when_the_next_step_runs(model: Model) -> None:
    kv = model.new_kv(PAGES, PAGE, "float32")
    batch = make_batch([[1, 2, 3]], [0], [[0]])
    first = model.forward(batch, kv)
    kept = first.copy()
    model.forward(replace(batch, tokens=np.array([7, 8, 9], np.int32)), kv)
    assert np.array_equal(first, kept)


def test_memory_of_results_is_used_again_once_they_are_gone() -> None:
    from octavo.ops.native_capture import MAX_KEPT_BYTES, MIN_KEPT_BYTES, Results

    results, width = Results(), MIN_KEPT_BYTES // 16
    first = results.take(4, width)
    part = first[1:, 5]  # a view of a view
    address = first.ctypes.data
    second = results.take(4, width)
    del first
    assert not np.shares_memory(part, second)
    del second
    third = results.take(4, width)
    assert not np.shares_memory(part, third)
    kept = third.ctypes.data
    del third
    fourth = results.take(4, width)
    assert fourth.ctypes.data == kept != address
    assert not np.shares_memory(results.take(2, 3), fourth)
    assert results.take(MAX_KEPT_BYTES // 16 + 1, 4).shape == (MAX_KEPT_BYTES // 16 + 1, 4)
    assert sum(memory.nbytes for memory in results._kept) <= MAX_KEPT_BYTES


def test_several_stores_take_turns_and_are_let_go(model: Model) -> None:
    stores = [model.new_kv(4, PAGE, "float32") for _ in range(2)]
    batch, step = make_batch([[1, 2, 3]], [0], [[0]]), make_batch([[4]], [3], [[0]])
    other = replace(batch, tokens=np.array([9, 8, 7], np.int32))
    alone = [model.new_kv(4, PAGE, "float32") for _ in range(2)]
    want = []
    for kv, first in zip(alone, (batch, other), strict=True):
        model.forward(first, kv)
        want.append(model.forward(step, kv))
    for kv, first in zip(stores, (batch, other), strict=True):
        model.forward(first, kv)
    for kv, expected in zip(stores, want, strict=True):
        assert np.array_equal(model.forward(step, kv), expected)
    array = weakref.ref(stores[0].k[0])
    del kv, stores
    gc.collect()
    assert array() is None


def test_a_program_holds_its_weights_and_the_model_can_go() -> None:
    ops, x = native.NativeOps(2), random_tensor("F32", 20, 64)

    def capture():
        w = ops.pack([random_tensor("Q8_0", 48, 64)])
        norm = Norm(np.random.default_rng(1).standard_normal(64).astype(np.float32), 1e-6)
        step = lambda o, batch, kv: o.linear(o.embedding(x, batch.tokens), w, norm=norm)  # noqa: E731
        return ops.capture(step), step

    run, step = capture()
    batch, kv = make_batch([[3, 1, 19]], [0], [[0]]), KVStore(1, 1, 16, 1, 16, "float32")
    want = step(ops, batch, kv)
    del step
    gc.collect()
    spare = [np.full((48, 64), np.nan, np.float32) for _ in range(50)]  # takes memory that was given back
    assert np.array_equal(run(batch, kv), want)
    del spare


def test_a_model_is_freed_without_the_collector(tiny_gguf: Tiny) -> None:
    gc.collect()
    gc.disable()
    try:
        for backend in ("native", "reference"):
            model = load_tiny(tiny_gguf("llama"), backend)
            gone = weakref.ref(model)
            del model
            assert gone() is None, backend
    finally:
        gc.enable()


def test_bad_batches_are_refused_before_anything_is_written(model: Model) -> None:
    kv = model.new_kv(2, PAGE, "float32")
    with pytest.raises(InvalidParameterError, match=r"token id -1 is outside the vocabulary \(0\.\.319\)"):
        model.forward(make_batch([[1, -1]], [0], [[0]]), kv)
    with pytest.raises(InvalidParameterError, match=r"token id 320 is outside"):
        model.forward(make_batch([[1, VOCAB]], [0], [[0]]), kv)
    with pytest.raises(ContextLengthError, match=r"position 512 .* max_model_len"):
        model.forward(make_batch([[1]], [512], [[0] * 33]), kv)
    with pytest.raises(ValueError, match="logit row out of range"):
        model.forward(make_batch([[1, 2]], [0], [[0]], logit_rows=[2]), kv)
    with pytest.raises(ValueError, match="page number out of range"):
        model.forward(make_batch([[1, 2]], [0], [[2]]), kv)
    spec = model.decoder.layers[0].attention
    wrong = KVStore(model.config.layers, 2, PAGE, spec.kv_heads + 1, spec.head_dim, "float32")
    with pytest.raises(ValueError, match="another model's shape"):
        model.forward(make_batch([[1, 2]], [0], [[0]]), wrong)
    few = KVStore(1, 2, PAGE, spec.kv_heads, spec.head_dim, "float32")
    with pytest.raises(ValueError, match="too few layers"):
        model.forward(make_batch([[1, 2]], [0], [[0]]), few)
    assert not any(array.any() for array in (*kv.k, *kv.v, *wrong.k, *few.k))


def test_nothing_to_do(model: Model) -> None:
    kv = model.new_kv(1, PAGE, "float32")
    assert model.forward(make_batch([[]], [0], [[0]]), kv).shape == (0, VOCAB)
    assert model.hidden(make_batch([[]], [0], [[0]]), kv).shape == (0, model.config.hidden)
    assert model.forward(make_batch([[1, 2]], [0], [[0]], logit_rows=[]), kv).shape == (0, VOCAB)
    assert kv.k[0].any()


def test_what_cannot_be_recorded_is_refused() -> None:
    ops, table = native.NativeOps(1), random_tensor("F32", 20, 64)
    w, head = ops.pack([random_tensor("F32", 48, 64)]), AttentionSpec(2, 2, 20, 1.0)
    with pytest.raises(UnsupportedModelError, match="a multiple of 16"):
        ops.capture(lambda o, batch, kv: o.attention(o.embedding(table, batch.tokens), kv, 0, batch, head))
    with pytest.raises(ValueError, match="number of columns"):
        ops.capture(lambda o, batch, kv: o.linear(o.linear(o.embedding(table, batch.tokens), w), w))
    with pytest.raises(ValueError, match="residual has the wrong shape"):
        ops.capture(lambda o, batch, kv: _residual(o, o.embedding(table, batch.tokens), w))
    with pytest.raises(AssertionError, match="what the ops return"):
        ops.capture(lambda o, batch, kv: o.linear(np.zeros((1, 64), np.float32), w))


def _residual(o, x, w):
    return o.linear(x, w, residual=x)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 511, 512, 513, 16384, 16385, 49152])
def test_argmax(backend: str, width: int) -> None:
    from octavo.ops import make_ops

    ops = make_ops(backend, 2 if backend == "native" else None)
    rng = np.random.default_rng(width)
    x = rng.integers(-50, 50, (24, width)).astype(np.float32)  # many ties
    x[1], x[2] = -np.inf, 0
    x[3, rng.integers(width)] = np.inf
    x[4, rng.integers(width)] = np.nan
    x[5, rng.integers(width, size=5)] = np.nan
    x[6, :], x[6, -1] = np.inf, np.nan
    x[7, :], x[7, -1] = -np.inf, -3e38
    for row in x[8:]:
        row[rng.integers(width)] = 50
    ids, values = ops.argmax(x)
    want = x.argmax(axis=1)
    assert ids.dtype == np.int32
    assert ids.tolist() == want.tolist()
    assert np.array_equal(values, x[np.arange(24), want], equal_nan=True)
    assert [a.shape for a in ops.argmax(x[:0])] == [(0,), (0,)]
