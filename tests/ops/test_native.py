"""What the native backend refuses, and its attention on fixed shapes (test_attention.py draws them)."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.matrices import f32, matrix
from octavo.core.batch import RaggedBatch
from octavo.core.errors import UnsupportedModelError
from octavo.formats.tensor import Tensor
from octavo.ops.api import AttentionSpec, Norm, RopeTable
from octavo.ops.kv import KV_DTYPES, KVStore
from octavo.ops.reference import ReferenceOps

native = pytest.importorskip("octavo.ops.native")

reference = ReferenceOps()


@pytest.fixture(scope="module", params=native.available_tiers())
def ops(request: pytest.FixtureRequest):
    return native.NativeOps(2, tier=request.param)


def ragged(shape: list[tuple[int, int]], page_size: int, seed: int = 0) -> RaggedBatch:
    """Sequences of (tokens already there, new tokens) on shuffled pages."""
    rng = np.random.default_rng(seed)
    lens = [past + new for past, new in shape]
    width = max(-(-n // page_size) for n in lens)
    pages = iter(rng.permutation(sum(-(-n // page_size) for n in lens)))
    tables = np.full((len(shape), width), -1, np.int32)
    for row, n in zip(tables, lens, strict=True):
        row[: -(-n // page_size)] = [next(pages) for _ in range(-(-n // page_size))]
    positions = np.concatenate([np.arange(past, past + new) for past, new in shape]).astype(np.int32)
    starts = np.cumsum([0, *(new for _, new in shape)]).astype(np.int32)
    none = np.zeros(len(positions), np.int32)
    return RaggedBatch(none, positions, starts, np.array(lens, np.int32), tables, none[:0])


def fill(kv: KVStore, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for array in (*kv.k, *kv.v):
        values = rng.standard_normal(array.shape).astype(np.float32)
        array[:] = (values.view(np.uint32) >> 16) if kv.dtype == "bfloat16" else values


SPECS = [
    AttentionSpec(heads=9, kv_heads=3, head_dim=64, scale=0.125),
    AttentionSpec(heads=14, kv_heads=2, head_dim=64, scale=0.1, window=37),
    AttentionSpec(heads=4, kv_heads=1, head_dim=256, scale=0.06, softcap=50.0),
    AttentionSpec(heads=2, kv_heads=2, head_dim=80, scale=0.11, window=600, softcap=20.0),
]


@pytest.mark.parametrize("dtype", list(KV_DTYPES))
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("page_size", [16, 48])
def test_attention(ops, dtype, spec, page_size):
    shape = [(0, 1), (3, 1), (700, 1), (63, 2), (0, 70), (500, 31)]
    batch = ragged(shape, page_size)
    kv = KVStore(1, int(batch.page_tables.max()) + 1, page_size, spec.kv_heads, spec.head_dim, dtype)
    fill(kv)
    q = f32(len(batch.positions), spec.heads * spec.head_dim)
    got, want = ops.attention(q, kv, 0, batch, spec), reference.attention(q, kv, 0, batch, spec)
    assert np.abs(got - want).max() < 2e-5


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_attention_of_a_row_is_the_same_alone_in_a_chunk_and_on_other_pages(ops, spec):
    past, new, page = 490, 90, 16
    whole = ragged([(0, past + new)], page)
    pages = int(whole.page_tables.max()) + 1
    kv = KVStore(1, 2 * pages, page, spec.kv_heads, spec.head_dim, "float16")
    fill(kv)
    q = f32(past + new, spec.heads * spec.head_dim)
    want = ops.attention(q, kv, 0, whole, spec)
    for start, count in [(past, 1), (past + new - 1, 1), (past, 2), (511, 3), (past, 7), (past, new)]:
        part = ragged([(start, count)], page)
        table = whole.page_tables[:, : part.page_tables.shape[1]].copy()
        other = table + pages  # the same contents elsewhere
        for a, b in zip(table[0], other[0], strict=True):
            kv.copy_page(int(a), int(b))
        for t in (table, other):
            batch = RaggedBatch(part.tokens, part.positions, part.query_starts, part.kv_lens, t, part.logit_rows)
            got = ops.attention(q[start : start + count].copy(), kv, 0, batch, spec)
            assert np.array_equal(got, want[start : start + count]), (start, count)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", list(KV_DTYPES))
def test_rope_and_kv_write(ops, interleaved, dtype):
    spec = AttentionSpec(heads=6, kv_heads=2, head_dim=48, scale=1)
    batch = ragged([(5, 1), (0, 20), (16, 3)], 16)
    qkv = f32(24, 10 * 48) * 4
    angle = f32(64, 16, seed=3)
    rope = RopeTable(np.cos(angle), np.sin(angle), interleaved)
    norms = {"q_norm": Norm(f32(48, seed=4), 1e-6), "k_norm": Norm(f32(48, seed=5), 1e-6)}
    for table, more in ((rope, norms), (rope, {}), (None, {})):
        stores = [KVStore(2, int(batch.page_tables.max()) + 1, 16, 2, 48, dtype) for _ in range(2)]
        got, want = (
            o.rope_kv_write(qkv, s, 1, batch, spec, table, **more)
            for o, s in zip((ops, reference), stores, strict=True)
        )
        assert np.allclose(got, want, rtol=1e-5, atol=1e-5)
        tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
        for a, b in zip((*stores[0].k, *stores[0].v), (*stores[1].k, *stores[1].v), strict=True):
            if dtype == "bfloat16":
                a, b = ((x.astype(np.uint32) << 16).view(np.float32) for x in (a, b))
            assert np.allclose(a, b, rtol=tolerance, atol=tolerance)


def test_what_does_not_fit_is_refused(ops):
    with pytest.raises(UnsupportedModelError, match="the native backend knows F32"):
        ops.pack([Tensor("w", "Q1_X", (2, 32), np.zeros((2, 32), np.uint8))])
    with pytest.raises(UnsupportedModelError, match="multiple of 256"):
        ops.pack([Tensor("w", "Q4_K", (2, 32), np.zeros((2, 18), np.uint8))])
    w = ops.pack([matrix("F32", 4, 32)])
    with pytest.raises(ValueError, match="number of columns"):
        ops.linear(f32(1, 64), w)
    with pytest.raises(ValueError, match="gated"):
        ops.linear(f32(1, 32), w, activation="silu")
    spec = AttentionSpec(heads=2, kv_heads=2, head_dim=16, scale=1)
    kv, batch = KVStore(1, 1, 16, 2, 16, "float32"), ragged([(0, 3)], 16)
    bad = RaggedBatch(
        batch.tokens, batch.positions, batch.query_starts, batch.kv_lens, batch.page_tables + 5, batch.tokens
    )
    with pytest.raises(ValueError, match="page number out of range"):
        ops.attention(f32(3, 32), kv, 0, bad, spec)
