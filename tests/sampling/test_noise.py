"""The noise: known answers, a second implementation in plain integers, and statistics."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plain_sampling import chi_square_z
from octavo.sampling import noise

U64 = st.integers(0, 2**64 - 1)
LANES = st.integers(0, 2**31 - 1)


def plain_philox(seed: int, position: int, lane: int, stream: int) -> list[int]:
    key = [seed & 0xFFFFFFFF, seed >> 32]
    counter = [lane, position & 0xFFFFFFFF, position >> 32, stream]
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ key[0], b % 2**32, (a >> 32) ^ counter[3] ^ key[1], a % 2**32]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def plain_log(x: float) -> float:
    """The documented logarithm in plain Python doubles."""
    (bits,) = struct.unpack("<q", struct.pack("<d", x))
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = math.ldexp(x, -exponent)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = 1.0 / 21
    for odd in (19, 17, 15, 13, 11, 9, 7, 5, 3):
        series = series * z + 1.0 / odd
    high, low = float.fromhex("0x1.62e42fefa3800p-1"), float.fromhex("0x1.ef35793c76730p-45")
    return exponent * high + (2 * s + (2 * s * (z * series) + exponent * low))


def plain_exponential(words: list[int]) -> float:
    return -plain_log((2 * ((words[0] << 20) | (words[1] >> 12)) + 1) * 2.0**-53)


def plain_gumbel(seed: int, position: int, lane: int) -> float:
    block = (lane >> 15) * 128 + lane % 128
    words = plain_philox(seed, position, block, 1)
    least = plain_exponential(words) / 256
    if (lane >> 7) % 256 == words[2] >> 24:
        return -plain_log(least)
    return -plain_log(least + plain_exponential(plain_philox(seed, position, lane, 0)))


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, int], answer: str) -> None:
    """The published test vectors of Philox4x32-10."""
    words = noise.philox(key[0] | key[1] << 32, counter[1] | counter[2] << 32, counter[0], counter[3])
    assert " ".join(f"{int(word):08x}" for word in words) == answer


@given(U64, st.integers(0, 2**63), LANES)
def test_equal_to_plain_integers(seed: int, position: int, lane: int) -> None:
    assert [int(w) for w in noise.philox(seed, position, lane, 7)] == plain_philox(seed, position, lane, 7)
    words = plain_philox(seed, position, lane, noise.STREAM_USER)
    assert float(noise.uniform(seed, position, lane)) == (2 * (words[0] << 20 | words[1] >> 12) + 1) / 2**53
    assert float(noise.gumbel(seed, position, np.array(lane))) == plain_gumbel(seed, position, lane)


def test_extreme_words_stay_inside_the_open_interval() -> None:
    words = np.array([[0, 2**32 - 1]] * 4, np.uint64)
    low, high = noise._unit(words)
    assert low == 2.0**-53
    assert high == 1 - 2.0**-53


def test_any_selection_and_shape_gives_the_same_values() -> None:
    """Neither chunking, nor order, nor company changes a lane."""
    lanes = np.arange(10_001)
    whole = noise.gumbel(9, 4, lanes)
    some = np.array([10_000, 4096, 4095, 0, 77, 77])
    assert np.array_equal(noise.gumbel(9, 4, some), whole[some])
    assert np.array_equal(noise.gumbel(9, 4, lanes[:10_000].reshape(50, 200)).ravel(), whole[:10_000])
    seeds, positions = np.array([[9], [2**64 - 1]], np.uint64), np.array([[4], [5]], np.uint64)
    both = noise.gumbel(seeds, positions, lanes[None, :])
    assert np.array_equal(both[0], whole)
    assert np.array_equal(both[1], noise.gumbel(-1, 5, lanes))


def test_no_floating_point_or_overflow_warnings() -> None:
    with np.errstate(all="raise"):
        noise.gumbel(2**64 - 1, 2**63, np.arange(5000))
        noise.block_gumbel(2**64 - 1, 2**63, np.arange(5000))


def test_log_is_accurate() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.exp(rng.uniform(-43, 4, 50_000)), 1 - rng.uniform(0, 1e-3, 50_000), [1.0, 2.0**-61, 0.5]])
    exact = np.log(x.astype(np.longdouble))
    error = np.abs(noise.log(x) - exact) / np.spacing(np.maximum(np.abs(noise.log(x)), 1e-300))
    assert error[exact != 0].max() < 2
    assert noise.log(np.array([1.0]))[0] == 0.0


@pytest.mark.parametrize("axis", ["lane", "position", "seed"])
def test_uniform_along_each_axis(axis: str) -> None:
    """Values, and pairs of neighbours, are uniform whichever argument runs."""
    run = np.arange(400_001)
    others = {"seed": 11, "position": 3, "lane": 5}
    u = noise.uniform(**{**others, axis: run})
    count = len(u)
    assert abs(chi_square_z(np.histogram(u, 256, (0, 1))[0], np.full(256, count / 256))) < 4
    pairs = np.histogram2d(u[:-1], u[1:], 32, [(0, 1), (0, 1)])[0]
    assert abs(chi_square_z(pairs, np.full(1024, (count - 1) / 1024))) < 4
    fine = (u * 2**40 % 256).astype(int)  # low bits as well
    assert abs(chi_square_z(np.bincount(fine, minlength=256), np.full(256, count / 256))) < 4


@pytest.mark.parametrize("axis", ["lane", "position", "seed"])
def test_gumbel_along_each_axis(axis: str) -> None:
    """exp(-exp(-g)) is uniform, also for pairs: of neighbours and (lanes 128 apart) within one block."""
    run = np.arange(400_000)
    others = {"seed": 12, "position": 3, "lane": np.array(5)}
    u = np.exp(-np.exp(-noise.gumbel(**{**others, axis: run})))
    assert abs(chi_square_z(np.histogram(u, 256, (0, 1))[0], np.full(256, len(u) / 256))) < 4
    for step in (1, 128):
        pairs = np.histogram2d(u[:-step], u[step:], 32, [(0, 1), (0, 1)])[0]
        assert abs(chi_square_z(pairs, np.full(1024, (len(u) - step) / 1024))) < 4


def test_lanes_of_one_block_are_independent() -> None:
    """Three lanes of a block over many positions: the joint distribution is uniform on the cube, tails included."""
    positions = np.arange(200_000)
    lanes = [np.array(128 * member) for member in (0, 1, 200)]
    u = np.stack([np.exp(-np.exp(-noise.gumbel(1, positions, lane))) for lane in lanes], axis=1)
    cube = np.histogramdd(u, bins=8, range=[(0, 1)] * 3)[0]
    assert abs(chi_square_z(cube, np.full(512, len(u) / 512))) < 4
    high = (u > 0.99).astype(int) @ np.array([1, 2, 4])
    p = [math.prod(0.01 if case >> i & 1 else 0.99 for i in range(3)) for case in range(8)]
    assert abs(chi_square_z(np.bincount(high, minlength=8), np.array(p) * len(u))) < 4


def test_largest_of_a_block_and_its_champion() -> None:
    """block_gumbel is the true maximum, and the champion is each of the 256 lanes equally often."""
    blocks = np.array([0, 1, 127, 128, 300])
    lanes = noise.block_lanes(blocks)
    assert np.array_equal(noise.block_of(lanes), np.repeat(blocks[:, None], 256, axis=1))
    for position in range(20):
        values = noise.gumbel(3, position, lanes)
        top, champion = noise.block_gumbel(3, position, blocks)
        assert np.array_equal(values.max(axis=1), top)
        assert np.array_equal(lanes[np.arange(5), values.argmax(axis=1)], champion)
    champions = noise.block_gumbel(3, np.arange(100_000), np.array(0))[1] // 128
    assert abs(chi_square_z(np.bincount(champions, minlength=256), np.full(256, 100_000 / 256))) < 4


def test_blocks_share_out_the_lanes() -> None:
    lanes = noise.block_lanes(np.arange(256))
    assert np.array_equal(np.sort(lanes, axis=None), np.arange(65536))


@given(st.integers(1, 70_000))
@settings(max_examples=30)
def test_block_maxima(size: int) -> None:
    row = np.random.default_rng(size).normal(size=size).astype(np.float32)
    maxima = noise.block_maxima(row)
    plain = np.full(len(maxima), -np.inf, np.float32)
    np.maximum.at(plain, noise.block_of(np.arange(size)), row)
    assert np.array_equal(maxima, plain)


def test_block_maxima_shows_nan() -> None:
    row = np.zeros(40_000, np.float32)
    row[39_999] = np.nan
    assert np.isnan(noise.block_maxima(row).max())


def test_avalanche() -> None:
    """Flipping any one bit of seed, position or lane flips each output bit half of the time."""
    rng = np.random.default_rng(5)
    count = 2000
    seed, position = (rng.integers(0, 2**64, count, dtype=np.uint64) for _ in range(2))
    lane = rng.integers(0, 2**32, count, dtype=np.uint64)
    base = noise.philox(seed, position, lane, 0)
    for name, bits in (("seed", 64), ("position", 64), ("lane", 32)):
        for bit in range(bits):
            arguments = {"seed": seed, "position": position, "lane": lane}
            arguments[name] = arguments[name] ^ np.uint64(1 << bit)
            changed = base ^ noise.philox(**arguments, stream=0)
            share = np.stack([(changed >> np.uint64(b)) & np.uint64(1) for b in range(32)]).mean(axis=-1)
            assert np.abs(share - 0.5).max() < 5.5 * 0.5 / math.sqrt(count), (name, bit)


def test_streams_differ() -> None:
    lanes = np.arange(1000)
    values = [noise.uniform(1, 2, lanes, stream) for stream in range(5)]
    assert len(np.unique(np.concatenate(values))) == 5000


def test_derived_seeds() -> None:
    assert noise.derive_seed(42, 0) == 42
    assert noise.derive_seed(-1, 0) == 2**64 - 1
    seeds = {noise.derive_seed(seed, index) for seed in range(10) for index in range(128)}
    assert len(seeds) == 10 * 128
    assert noise.derive_seed(42, 3) == noise.derive_seed(42, 3)
    assert all(0 <= seed < 2**64 for seed in seeds)
