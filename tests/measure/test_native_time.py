"""The clock around native calls: it counts them, adds nothing to what they do, and is gone afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.batches import make_batch
from octavo.measure.random_weights import random_tensor
from octavo.ops.api import Norm
from octavo.ops.kv import KVStore

native = pytest.importorskip("octavo.ops.native", exc_type=ImportError)


def test_calls_are_counted_while_the_context_lasts() -> None:
    from octavo.ops.native_time import timed_calls

    ops = native.NativeOps(1)
    w = ops.pack([random_tensor("Q8_0", 48, 64)])
    x = np.ones((2, 64), np.float32)
    norm = Norm(np.ones(64, np.float32), 1e-6)
    before = ops.linear(x, w, norm=norm)
    context = ops._context
    with timed_calls(ops) as spent:
        assert np.array_equal(ops.linear(x, w, norm=norm), before)
        ops.rms_norm(x, norm)
        assert ops.tier == context.tier
        assert spent.calls == 2
        assert spent.seconds > 0
    ops.rms_norm(x, norm)
    assert (spent.calls, ops._context) == (2, context)


def test_captured_steps_and_argmax_are_counted() -> None:
    from octavo.ops.native_time import timed_calls

    ops = native.NativeOps(1)
    table = random_tensor("Q8_0", 48, 64)
    run = ops.capture(lambda o, batch, kv: o.embedding(table, batch.tokens))
    kv = KVStore(1, 1, 16, 1, 16, "float32")
    batch = make_batch([[1, 2, 3]], [0], [[0]])
    with timed_calls(ops) as spent:
        ops.argmax(run(batch, kv))
    assert spent.calls == 2


def test_the_clock_is_gone_after_an_error() -> None:
    from octavo.ops.native_time import timed_calls

    ops = native.NativeOps(1)
    context = ops._context
    with pytest.raises(KeyboardInterrupt), timed_calls(ops):
        raise KeyboardInterrupt
    assert ops._context is context
