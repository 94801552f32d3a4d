"""The native backend against the reference, format by format, and its promises: any rows, any threads, any tier."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from octavo.core.batch import RaggedBatch
from octavo.core.errors import ConfigError, UnsupportedModelError
from octavo.formats.ggml import FORMATS
from octavo.formats.tensor import Tensor
from octavo.ops.api import AttentionSpec, Norm, RopeTable
from octavo.ops.kv import KV_DTYPES, KVStore
from octavo.ops.reference import ReferenceOps

native = pytest.importorskip("octavo.ops.native")

QUANTIZED = [name for name, f in FORMATS.items() if f.block_elements > 1]
FLOATS = ["F32", "F16", "BF16"]
reference = ReferenceOps()


def f32(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# Byte offsets of the f16 scales in a block; random bytes elsewhere are all valid.
SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip


def weights(dtype: str, rows: int, columns: int, seed: int = 0) -> Tensor:
    """Random blocks with scales that give weights of about 0.05."""
    rng = np.random.default_rng(seed)
    if dtype in FLOATS:
        values = (rng.standard_normal((rows, columns)) * 0.05).astype(np.float32)
        raw = {
            "F32": values,
            "F16": values.astype(np.float16),
            "BF16": (values.view(np.uint32) >> 16).astype(np.uint16),
        }[dtype]
        return Tensor("w", dtype, (rows, columns), np.ascontiguousarray(raw).view(np.uint8).reshape(rows, -1))
    f = FORMATS[dtype]
    blocks = rng.integers(0, 256, (rows, columns // f.block_elements, f.block_bytes), dtype=np.uint8)
    if dtype == "MXFP4":
        blocks[..., 0] = rng.integers(118, 124, blocks.shape[:-1])
    for at in SCALES.get(dtype, ()):
        scale = rng.uniform(0.0005, 0.002, blocks.shape[:-1]) * (0.05 if f.block_elements == 256 else 1)
        blocks[..., at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    return Tensor("w", dtype, (rows, columns), blocks.reshape(rows, -1))


def rounded(x: np.ndarray) -> np.ndarray:
    """What quantized formats see of activations: int8 with a scale per 256, outliers (past 4.5 rms of the row) as they are."""
    rms = np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True))
    outliers = np.abs(x) > 4.5 * rms
    small, kept = np.where(outliers, np.float32(0), x), x.copy()
    for k in range(0, x.shape[1], 256):
        chunk = small[:, k : k + 256]
        top = np.abs(chunk).max(axis=1, keepdims=True)
        inverse = np.where(top > 0, np.float32(127) / np.where(top > 0, top, 1), 0).astype(np.float32)
        kept[:, k : k + 256] = np.rint(chunk * inverse) * (top / np.float32(127))
    return np.where(outliers, x, kept)


def bf16(x: np.ndarray) -> np.ndarray:
    """x rounded to bf16, to nearest even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def seen(x: np.ndarray, dtype: str, tier: str) -> np.ndarray:
    """Activations as a format's kernel multiplies them."""
    if dtype.startswith(("BF16", "FP8")):
        return bf16(x) if tier == "avx512_bf16" else x
    return x if dtype in FLOATS else rounded(x)


def columns_of(dtype: str, wanted: int) -> int:
    block = max(FORMATS[dtype].block_elements, 4)
    return max(block, wanted // block * block)


@pytest.fixture(scope="module", params=native.available_tiers())
def ops(request: pytest.FixtureRequest):
    return native.NativeOps(2, tier=request.param)


@pytest.mark.parametrize("dtype", [*FLOATS, *QUANTIZED])
@pytest.mark.parametrize(("rows", "columns", "tokens"), [(1, 256, 1), (129, 576, 7), (40, 1280, 130), (576, 2880, 3)])
def test_linear_is_the_reference_on_rounded_activations(ops, dtype, rows, columns, tokens):
    columns = columns_of(dtype, columns)
    w, x = weights(dtype, rows, columns), f32(tokens, columns, seed=1)
    x[:, 37 % columns] *= 50  # a massive activation, as some models have
    bias = f32(rows, seed=2)
    got = ops.linear(x, ops.pack([w], bias=bias))
    want = reference.linear(seen(x, dtype, ops.tier), reference.pack([w], bias=bias))
    assert np.abs(got - want).max() <= 2e-5 * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("dtype", [*FLOATS, *QUANTIZED])
def test_rows_do_not_depend_on_their_number(ops, dtype):
    columns = columns_of(dtype, 832)
    x, w = f32(139, columns), ops.pack([weights(dtype, 53, columns)])
    spikes = np.random.default_rng(5).random(x.shape) < 0.01  # outliers, in some groups of some rows
    x[spikes] *= 40
    whole = ops.linear(x, w)
    for count in (1, 2, 3, 4, 5, 7, 9, 31, 128, 138):
        assert np.array_equal(ops.linear(x[:count].copy(), w), whole[:count]), count
    assert np.array_equal(ops.linear(x[5:6].copy(), w), whole[5:6])


@pytest.mark.parametrize("dtype", [*FLOATS, *QUANTIZED])
def test_embedding_is_the_dequantized_row(ops, dtype):
    table = weights(dtype, 50, columns_of(dtype, 768))
    tokens = np.array([3, 49, 0, 3, *range(17)], np.int32)
    assert np.allclose(ops.embedding(table, tokens, 1.5), reference.embedding(table, tokens, 1.5), rtol=1e-6, atol=1e-9)
    assert np.array_equal(ops.embedding(table, tokens[:1]), ops.embedding(table, tokens)[:1])


def test_parts_of_different_formats_are_stacked(ops):
    parts = [weights("Q4_K", 48, 512, 1), weights("Q6_K", 17, 512, 2), weights("F16", 5, 512, 3)]
    x, bias = f32(6, 512), f32(70)
    got, want = ops.linear(x, ops.pack(parts, bias=bias)), reference.linear(x, reference.pack(parts, bias=bias))
    assert got.shape == (6, 70)
    assert np.abs(got - want).max() < 0.02 * np.abs(want).max()
    assert np.abs(got[:, 65:] - want[:, 65:]).max() < 1e-4  # the float part sees unrounded activations


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_norm_gate_residual_and_post_norm(ops, activation, tokens):
    gate, up = weights("F32", 100, 192, 1), weights("F32", 100, 192, 2)
    bias, x, norm = f32(200, seed=3), f32(tokens, 192, seed=4) * 3, Norm(f32(192, seed=5), 1e-6)
    residual, post = f32(tokens, 100, seed=6), Norm(f32(100, seed=7), 1e-5)

    def run(o, **more):
        return o.linear(x, o.pack([gate, up], bias=bias, gated=True), norm=norm, activation=activation, **more)

    assert np.allclose(run(ops), run(reference), rtol=1e-4, atol=1e-5)
    assert np.allclose(run(ops, residual=residual), run(reference, residual=residual), rtol=1e-4, atol=1e-5)
    both = {"residual": residual, "post_norm": post}
    assert np.allclose(run(ops, **both), run(reference, **both), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [1, 16, 20, 576, 577])
def test_rms_norm(ops, width):
    x, norm = f32(3, width) * 7, Norm(f32(width, seed=1), 1e-5)
    assert np.allclose(ops.rms_norm(x, norm), reference.rms_norm(x, norm), rtol=1e-5, atol=1e-6)


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


def everything(o) -> list[np.ndarray]:
    """One result of every operation, on shapes that use threads and tails."""
    out = []
    for dtype in [*FLOATS, *QUANTIZED]:
        columns = columns_of(dtype, 544)
        w, x = weights(dtype, 77, columns), f32(21, columns)
        x[::2, ::50] *= 40
        out += [o.linear(x, o.pack([w])), o.embedding(w, np.arange(20, dtype=np.int32))]
    x, spec = f32(45, 192), AttentionSpec(6, 2, 32, 0.2, window=100, softcap=30.0)
    gated = o.pack([weights("F32", 100, 192, 1), weights("Q8_0", 100, 192, 2)], gated=True)
    out += [o.linear(x, gated, norm=Norm(f32(192), 1e-6), activation=a, post_norm=Norm(f32(100), 1e-6)) for a in
            ("silu", "gelu_tanh")]  # fmt: skip
    batch = ragged([(0, 40), (600, 1), (20, 4)], 16)
    for dtype in KV_DTYPES:
        kv = KVStore(1, int(batch.page_tables.max()) + 1, 16, 2, 32, dtype)
        fill(kv)
        angle = f32(700, 16)
        rope = RopeTable(np.cos(angle), np.sin(angle), False)
        q = o.rope_kv_write(f32(45, 320), kv, 0, batch, spec, rope)
        out += [q, o.attention(q, kv, 0, batch, spec), *kv.k, *kv.v]
    return out


def test_threads_and_tiers_give_the_same_bits():
    want = everything(native.NativeOps(1, tier="portable"))
    for tier in native.available_tiers():
        for threads in (1, 2, 3, 7):
            got = everything(native.NativeOps(threads, tier=tier))
            for i, (a, b) in enumerate(zip(got, want, strict=True)):
                assert np.array_equal(a, b), (tier, threads, i)


def test_logits_are_capped_and_only_of_the_rows_asked_for(ops):
    x, head, norm = f32(9, 256), [weights("F16", 300, 256)], Norm(f32(256, seed=2), 1e-6)
    rows = np.array([8, 0], np.int32)
    got = ops.logits(x, ops.pack(head), norm, rows, 3.0)
    assert got.shape == (2, 300)
    assert np.allclose(got, reference.logits(x, reference.pack(head), norm, rows, 3.0), rtol=1e-4, atol=1e-5)


def test_zero_and_huge_activations(ops):
    w = ops.pack([weights("Q4_K", 16, 256), weights("Q8_0", 16, 256)])
    assert np.array_equal(ops.linear(np.zeros((2, 256), np.float32), w), np.zeros((2, 32), np.float32))
    assert np.isfinite(ops.linear(np.full((1, 256), 1e30, np.float32), w)).all()


def test_two_engines_and_many_callers_share_a_process():
    engines = [native.NativeOps(n) for n in (2, 3)]
    x, tensor = f32(9, 512), weights("Q4_K", 320, 512)
    packed = [o.pack([tensor]) for o in engines]
    want = engines[0].linear(x, packed[0])

    def work(i: int) -> bool:
        return all(np.array_equal(engines[i % 2].linear(x, packed[i % 2]), want) for _ in range(200))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


def test_a_fork_gets_a_pool_of_its_own(ops):
    x, w = f32(40, 256), ops.pack([weights("Q8_0", 640, 256)])
    want = ops.linear(x, w)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(ops.linear(x, w), want) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(ops.linear(x, w), want)


def test_what_does_not_fit_is_refused(ops):
    with pytest.raises(ConfigError, match="possible: auto"):
        native.NativeOps(1, tier="mmx")
    for threads in (0, -1, 10**6):
        with pytest.raises(ConfigError, match="between 1 and 1024"):
            native.NativeOps(threads)
    with pytest.raises(UnsupportedModelError, match="the native backend knows F32"):
        ops.pack([Tensor("w", "Q1_X", (2, 32), np.zeros((2, 32), np.uint8))])
    with pytest.raises(UnsupportedModelError, match="multiple of 256"):
        ops.pack([Tensor("w", "Q4_K", (2, 32), np.zeros((2, 18), np.uint8))])
    w = ops.pack([weights("F32", 4, 32)])
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


def test_measured_stream_rate_is_a_rate():
    assert 0.1 < native.measure_stream(1) < 10_000
