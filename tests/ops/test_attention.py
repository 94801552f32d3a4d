"""Native attention and RoPE against the reference on drawn shapes, and their promise: the same bits however the work is
cut, on any number of threads, on every tier."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.trees import chain, depths, random_tree
from octavo.core.batch import RaggedBatch
from octavo.core.errors import InvalidParameterError
from octavo.ops.api import AttentionSpec, Norm, RopeTable
from octavo.ops.kv import KV_DTYPES, KVStore
from octavo.ops.reference import ReferenceOps

native = pytest.importorskip("octavo.ops.native")

reference = ReferenceOps()
OPS = {(tier, n): native.NativeOps(n, tier=tier) for tier in native.available_tiers() for n in (1, 2, 3)}
BEST = OPS[native.available_tiers()[0], 2]
HEAD_DIMS = [64, 80, 96, 128, 256]


@dataclass(frozen=True)
class Case:
    """Sequences of (tokens before, new tokens), and what attends over them."""

    spec: AttentionSpec
    dtype: str
    page_size: int
    shape: tuple[tuple[int, int], ...]
    tree: bool
    seed: int

    def batch(self) -> RaggedBatch:
        return ragged(self.shape, self.page_size, self.seed, self.tree)

    def store(self, batch: RaggedBatch) -> KVStore:
        spec = self.spec
        kv = KVStore(1, int(batch.page_tables.max()) + 1, self.page_size, spec.kv_heads, spec.head_dim, self.dtype)
        rng = np.random.default_rng(self.seed)
        for array in (*kv.k, *kv.v):
            values = rng.standard_normal(array.shape, np.float32)
            array[:] = (values.view(np.uint32) >> 16) if kv.dtype == "bfloat16" else values
        return kv

    def queries(self, batch: RaggedBatch) -> np.ndarray:
        rng = np.random.default_rng(self.seed + 1)
        return rng.standard_normal((batch.num_tokens, self.spec.heads * self.spec.head_dim), np.float32)


def ragged(shape, page_size: int, seed: int = 0, tree: bool = False) -> RaggedBatch:
    """The sequences on shuffled pages; with a tree, a random one for each."""
    rng = np.random.default_rng(seed)
    lens = np.array([past + new for past, new in shape], np.int32)
    needed = -(-lens // page_size)
    pages = iter(rng.permutation(needed.sum()))
    tables = np.full((len(shape), needed.max()), -1, np.int32)
    for row, n in zip(tables, needed, strict=True):
        row[:n] = [next(pages) for _ in range(n)]
    trees = [random_tree(new, rng) for _, new in shape] if tree else None
    new_positions = [depths(t) for t in trees] if trees else [np.arange(new) for _, new in shape]
    positions = [past + p for (past, _), p in zip(shape, new_positions, strict=True)]
    none = np.zeros(sum(new for _, new in shape), np.int32)
    return RaggedBatch(
        tokens=none,
        positions=np.concatenate(positions).astype(np.int32),
        query_starts=np.cumsum([0, *(new for _, new in shape)]).astype(np.int32),
        kv_lens=lens,
        page_tables=tables,
        logit_rows=none[:0],
        tree=np.concatenate(trees) if trees else None,
    )


@st.composite
def specs(draw: st.DrawFn) -> AttentionSpec:
    kv_heads, group, dim = draw(st.integers(1, 2)), draw(st.integers(1, 8)), draw(st.sampled_from(HEAD_DIMS))
    sinks = np.random.default_rng(draw(st.integers(0, 9))).normal(0, 3, kv_heads * group).astype(np.float32)
    return AttentionSpec(
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=dim,
        scale=dim**-0.5,
        window=draw(st.sampled_from([0, 0, 1, 37, 64, 600])),
        softcap=draw(st.sampled_from([0.0, 0.0, 20.0])),
        sinks=draw(st.sampled_from([None, sinks])),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    past = st.sampled_from([0, 1, 15, 63, 64, 130, 511, 512, 1030])
    new = st.sampled_from([1, 1, 2, 3, 7, 33, 64])
    shape = draw(st.lists(st.tuples(past, new), min_size=1, max_size=3))
    page_size = draw(st.sampled_from([16, 48, 64]))
    dtype, tree = draw(st.sampled_from(list(KV_DTYPES))), draw(st.booleans())
    return Case(draw(specs()), dtype, page_size, tuple(shape), tree, draw(st.integers(0, 99)))


def part_of(batch: RaggedBatch, sequence: int, first: int, count: int) -> RaggedBatch:
    """Some of a sequence's new tokens, in a batch of their own; what comes after them is not there yet."""
    begin, end = (int(x) for x in batch.query_starts[sequence : sequence + 2])
    length = int(batch.kv_lens[sequence]) - (end - begin) + first + count
    rows = slice(begin + first, begin + first + count)
    return RaggedBatch(
        tokens=batch.tokens[rows].copy(),
        positions=batch.positions[rows].copy(),
        query_starts=np.array([0, count], np.int32),
        kv_lens=np.array([length], np.int32),
        page_tables=batch.page_tables[sequence : sequence + 1].copy(),
        logit_rows=batch.logit_rows,
    )


@given(cases(), st.sampled_from(sorted(OPS)))
def test_attention_is_the_reference(case: Case, which: tuple[str, int]) -> None:
    batch = case.batch()
    kv, q = case.store(batch), case.queries(batch)
    got, want = (o.attention(q, kv, 0, batch, case.spec) for o in (OPS[which], reference))
    assert np.abs(got - want).max() < 2e-5


@given(cases())
@settings(max_examples=40)
def test_every_tier_and_number_of_threads_gives_the_same_bits(case: Case) -> None:
    batch = case.batch()
    kv, q = case.store(batch), case.queries(batch)
    want = BEST.attention(q, kv, 0, batch, case.spec)
    for which, ops in OPS.items():
        assert np.array_equal(ops.attention(q, kv, 0, batch, case.spec), want), which


@given(cases(), st.data())
def test_a_row_is_the_same_alone_in_a_chunk_and_in_a_batch(case: Case, data: st.DataObject) -> None:
    case = replace(case, tree=False)
    batch = case.batch()
    kv, q = case.store(batch), case.queries(batch)
    want = BEST.attention(q, kv, 0, batch, case.spec)
    sequence = data.draw(st.integers(0, batch.num_sequences - 1))
    begin, end = (int(x) for x in batch.query_starts[sequence : sequence + 2])
    first = data.draw(st.integers(0, end - begin - 1))
    count = data.draw(st.integers(1, end - begin - first))
    rows = slice(begin + first, begin + first + count)
    got = BEST.attention(q[rows].copy(), kv, 0, part_of(batch, sequence, first, count), case.spec)
    assert np.array_equal(got, want[rows])


@given(cases())
def test_a_tree_that_is_a_chain_changes_no_bit(case: Case) -> None:
    case = replace(case, tree=False)
    batch = case.batch()
    kv, q = case.store(batch), case.queries(batch)
    chained = replace(batch, tree=np.concatenate([chain(new) for _, new in case.shape]))
    for ops in (BEST, reference):
        plain, tree = (ops.attention(q, kv, 0, b, case.spec) for b in (batch, chained))
        assert np.array_equal(plain, tree)


@pytest.mark.parametrize("tokens", [200, 700])
@pytest.mark.parametrize("group", [1, 7])
def test_a_long_prompt_is_the_same_in_any_chunks(tokens: int, group: int) -> None:
    spec = AttentionSpec(group, 1, 96, 0.1)
    case = Case(spec, "float16", 16, ((0, tokens),), False, 3)
    batch = case.batch()
    kv, q = case.store(batch), case.queries(batch)
    want = BEST.attention(q, kv, 0, batch, spec)
    assert np.abs(want - reference.attention(q, kv, 0, batch, spec)).max() < 2e-5
    for chunk in (tokens - 1, 129, 65):
        for first in range(0, tokens, chunk):
            count = min(chunk, tokens - first)
            got = BEST.attention(q[first : first + count].copy(), kv, 0, part_of(batch, 0, first, count), spec)
            assert np.array_equal(got, want[first : first + count]), (chunk, first)


@given(specs(), st.sampled_from(sorted(OPS)), st.integers(0, 40), st.integers(0, 99))
@settings(max_examples=30)
def test_a_branch_of_a_tree_is_the_sequence_it_spells(
    spec: AttentionSpec, which: tuple[str, int], past: int, seed: int
) -> None:
    """Keys rotated by depth and written to the tree's slots give a leaf what its own line of tokens would."""
    ops, page, new = OPS[which], 16, 9
    tree_batch = ragged([(past, new)], page, seed, tree=True)
    assert tree_batch.tree is not None
    leaf = int(np.argmax(tree_batch.positions))
    line = [j for j in range(new) if int(tree_batch.tree[leaf]) >> j & 1]
    line_batch = ragged([(past, len(line))], page, seed)
    rng = np.random.default_rng(seed)
    width = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    before, qkv = rng.standard_normal((past, width), np.float32), rng.standard_normal((new, width), np.float32)
    rope = angles(64, spec.head_dim, interleaved=False)
    results = []
    for batch, rows in ((tree_batch, qkv), (line_batch, qkv[line])):
        kv = KVStore(1, batch.page_tables.shape[1], page, spec.kv_heads, spec.head_dim, "float32")
        if past:
            first = replace(ragged([(0, past)], page), page_tables=batch.page_tables)
            ops.rope_kv_write(before, kv, 0, first, spec, rope)
        q = ops.rope_kv_write(np.ascontiguousarray(rows), kv, 0, batch, spec, rope)
        results.append(ops.attention(q, kv, 0, batch, spec))
    assert np.abs(results[0][leaf] - results[1][-1]).max() < 1e-5


def test_a_sink_takes_its_share_and_a_huge_one_takes_all() -> None:
    spec = AttentionSpec(3, 1, 64, 0.125, sinks=np.array([-1e9, 1.0, 1e9], np.float32))
    case = Case(spec, "float32", 16, ((600, 1), (0, 5)), False, 0)
    batch = case.batch()
    kv, q = case.store(batch), case.queries(batch)
    for ops in (BEST, reference):
        got, plain = (ops.attention(q, kv, 0, batch, s) for s in (spec, replace(spec, sinks=None)))
        none, some, all_ = np.split(got, 3, axis=1)
        assert np.allclose(none, plain[:, :64], atol=1e-6)
        assert (np.abs(some) < np.abs(plain[:, 64:128])).all()
        assert np.abs(all_).max() < 1e-30


def test_sinks_of_another_length_are_refused() -> None:
    batch, spec = ragged([(0, 1)], 16), AttentionSpec(2, 2, 16, 1.0, sinks=np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="one number per head"):
        BEST.attention(np.zeros((1, 32), np.float32), KVStore(1, 1, 16, 2, 16, "float32"), 0, batch, spec)


def angles(positions: int, rotary: int, interleaved: bool) -> RopeTable:
    angle = np.random.default_rng(5).uniform(0, 6, (positions, rotary // 2)).astype(np.float32)
    return RopeTable(np.cos(angle), np.sin(angle), interleaved)


@given(
    st.sampled_from([16, 48, *HEAD_DIMS]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(list(KV_DTYPES)),
)
@settings(max_examples=60)
def test_rope_and_the_write_of_keys_and_values(dim, fraction, interleaved, normed, tree, dtype) -> None:
    spec, page = AttentionSpec(6, 2, dim, 1.0), 32
    batch = ragged([(5, 1), (0, 20), (16, 3), (30, 40)], page, tree=tree)
    rng = np.random.default_rng(2)
    qkv = rng.standard_normal((batch.num_tokens, 10 * dim), np.float32) * 4
    norms = [Norm(rng.standard_normal(dim, np.float32), 1e-6) if normed else None for _ in range(2)]
    rope = angles(128, dim // fraction // 2 * 2, interleaved)

    def write(ops) -> list[np.ndarray]:
        kv = KVStore(1, int(batch.page_tables.max()) + 1, page, 2, dim, dtype)
        q = ops.rope_kv_write(qkv, kv, 0, batch, spec, rope, q_norm=norms[0], k_norm=norms[1])
        return [q, *kv.k, *kv.v]

    got, want = write(BEST), write(reference)
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    assert np.allclose(got[0], want[0], rtol=1e-5, atol=1e-5)
    for a, b in zip(got[1:], want[1:], strict=True):
        if dtype == "bfloat16":
            a, b = ((x.astype(np.uint32) << 16).view(np.float32) for x in (a, b))
        assert np.allclose(a, b, rtol=tolerance, atol=tolerance)
    for which, ops in OPS.items():
        assert all(np.array_equal(a, b) for a, b in zip(write(ops), got, strict=True)), which


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values_are_rounded_to_nearest_even_and_stay_what_they_are(dtype: str) -> None:
    odd = np.array([1e30, -1e30, np.nan, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, -0.0], np.float32)
    qkv = np.concatenate([np.zeros(32), np.tile(odd, 2)]).astype(np.float32)[None]
    spec, batch = AttentionSpec(1, 1, 16, 1.0), ragged([(0, 1)], 16)
    for which, ops in OPS.items():
        kv = KVStore(1, 1, 16, 1, 16, dtype)
        ops.rope_kv_write(qkv, kv, 0, batch, spec, None)
        got = kv.v[0][0, 0, 0, :8]
        if dtype == "float16":
            want = np.clip(odd, -65504, 65504).astype(np.float16)
            assert np.array_equal(got, want, equal_nan=True), which
        else:
            wide = (got.astype(np.uint32) << 16).view(np.float32)
            assert np.isnan(wide[2]), which
            assert np.allclose(np.delete(wide, 2), np.delete(odd, 2), rtol=2**-8), which
            assert wide[3:5].tolist() == [1.0, 1 + 2**-6], which


def bad(**change: object) -> None:
    replace(ragged([(3, 2), (0, 2)], 16, tree=True), **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tree": np.ones(3, np.uint64)}, "one mask for each token"),
        ({"tree": np.ones(4, np.int64)}, "not int64"),
        ({"tree": np.array([1, 1, 1, 3], np.uint64)}, "token 1 of the tree does not see itself"),
        ({"tree": np.array([1, 2, 1, 6], np.uint64)}, "token 3 of the tree sees a token that is not there"),
        ({"positions": np.array([2, 3, 0, 0], np.int32)}, "token 0 of the tree is at position 2"),
        ({"positions": np.array([3, 3, 0, 2], np.int32)}, "token 3 of the tree is at position 2"),
    ],
)
def test_a_tree_that_is_none_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        bad(**change)


def test_a_tree_has_at_most_64_new_tokens() -> None:
    batch = ragged([(0, 65)], 16)
    with pytest.raises(InvalidParameterError, match="up to 64"):
        replace(batch, tree=np.ones(65, np.uint64))
    ragged([(0, 64)], 16, tree=True)


def test_plans_kept_for_a_step_serve_each_layer_and_each_batch() -> None:
    """A program runs layers of different windows, then batches of another shape: as op by op."""
    full = AttentionSpec(6, 2, 64, 0.125, sinks=np.linspace(-1, 1, 6, dtype=np.float32))
    near = replace(full, window=40, sinks=None)
    table = np.random.default_rng(1).standard_normal((50, 10 * 64), np.float32)
    rope = angles(1200, 64, interleaved=True)
    context, program = native._native.Context(2, "auto"), native._native.Program()
    x = program.embedding("F32", table.view(np.uint8), 640, 1.0)
    q = program.rope_kv_write(x, 0, 6, 2, 64, rope.cos, rope.sin, True, None, 0.0, None, 0.0)
    for spec in (full, near, full):
        q = program.attention(q, 0, 6, 2, 64, spec.scale, spec.window, 0.0, spec.sinks)
    program.finish(q)
    kv, other = (KVStore(1, 300, 16, 2, 64, "float16") for _ in range(2))
    bound = native._native.BoundKv(kv.k, kv.v, "float16")
    for seed, shape in enumerate([[(0, 700), (3, 1)], [(700, 1), (4, 1)], [(701, 1), (5, 1)], [(40, 9)]]):
        for tree in (False, True) if seed else (False,):
            batch = ragged(shape, 16, 0, tree)
            tokens = np.random.default_rng(seed).integers(0, 50, batch.num_tokens).astype(np.int32)
            arrays = (batch.positions, batch.query_starts, batch.kv_lens, batch.page_tables)
            got = np.empty((batch.num_tokens, 6 * 64), np.float32)
            context.run(program, bound, tokens, *arrays, tokens[:0], got, batch.tree)
            want = BEST.rope_kv_write(table[tokens], other, 0, batch, full, rope)
            for spec in (full, near, full):
                want = BEST.attention(want, other, 0, batch, spec)
            assert np.array_equal(got, want), (shape, tree)
