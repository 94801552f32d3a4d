"""Counter-based noise: a pure function of (seed, position, lane), so a request depends on nothing else.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011):

    key     = (seed low 32 bits, seed high 32 bits)
    counter = (lane, position low 32 bits, position high 32 bits, stream)

What a second implementation must do to give the same bits:

* `philox`: 32-bit integers only.
* `uniform`: (2k + 1) * 2^-53, where k = (word0 << 20) | (word1 >> 12) has 52 bits. 2k + 1 < 2^53, so the conversion is
  exact, 0 and 1 never appear, and the values lie symmetrically about 1/2.
* `log`: written out below in IEEE double additions, multiplications and one division, in this order and without
  fused multiply-adds; no mathematics library is involved. So all of this module is exact, log included.

**Gumbel noise in blocks.** `gumbel` is -log(E) with E exponential of rate 1, independent for every lane, but E is made
so that the smallest E of 256 lanes is known without looking at them. Exponential variables have no memory: the least of
256 is an exponential B divided by 256, it falls on a uniformly chosen lane (the champion), and what the other 255 have
above it is again exponential, rate 1, independent. So, for a block of 256 lanes,

    E(champion) = B / 256,        E(any other lane) = B / 256 + e(lane).

B comes from words 0 and 1 and the champion from the top 8 bits of word 2 of the block's draw (stream BLOCK, the block's
number as lane), e from the lane's own draw (stream LANE). A search for the best logit + gumbel then draws once for each
block and once for each lane whose logit plus its block's largest noise reaches the best key known: about 256 lanes on
average, whatever the logits are, so for V tokens V / 256 + 256 draws instead of V.
Lane l is member (l >> 7) & 255 of block (l >> 15) * 128 + (l & 127): neighbouring lanes are in neighbouring blocks, so
that the maxima of all blocks are vertical maxima of vectors.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BLOCK_MEMBERS",
    "block_gumbel",
    "block_lanes",
    "block_maxima",
    "block_of",
    "derive_seed",
    "gumbel",
    "log",
    "philox",
    "uniform",
]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Integers = int | NDArray[np.uint64] | NDArray[np.int64]

STREAM_LANE: Final = 0
STREAM_BLOCK: Final = 1
STREAM_FORK: Final = 2
STREAM_USER: Final = 3
"""First number free for other users of `uniform` (acceptance tests of speculation, for one)."""

BLOCK_MEMBERS: Final = 256
_BLOCKS: Final = 128  # blocks side by side: 256 * 128 lanes form one slab

_MASK32 = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)
_ROUNDS: Final = 10
_CHUNK: Final = 4096  # lanes at a time: the temporaries of one chunk stay in the L2 cache


def philox(seed: Integers, position: Integers, lane: Integers, stream: Integers) -> U64:
    """Ten rounds of Philox4x32; the arguments broadcast to one shape.

    seed: u64, or a Python integer of which the low 64 bits count. position: >= 0. lane, stream: 0..2^32 - 1.
    Returns u64 [4, *shape]: the four 32-bit output words.
    """
    shape = np.broadcast_shapes(np.shape(seed), np.shape(position), np.shape(lane), np.shape(stream))
    count = math.prod(shape)
    flat = [_u64(value, shape) for value in (seed, position, lane, stream)]
    words = np.empty((4, count), np.uint64)
    for start in range(0, count, _CHUNK):
        part = slice(start, start + _CHUNK)
        _rounds(words[:, part], *(value if len(value) == 1 else value[part] for value in flat))
    return words.reshape(4, *shape)


def _u64(value: Integers, shape: tuple[Any, ...]) -> U64:
    """One element [1] for a scalar (the rounds broadcast it), else all of them [count]."""
    if isinstance(value, int):  # a seed may exceed the range of int64
        return np.array([value & 0xFFFFFFFFFFFFFFFF], np.uint64)
    array: U64 = np.asarray(value).astype(np.uint64, copy=False)
    return array.reshape(1) if array.size == 1 else np.broadcast_to(array, shape).reshape(-1)


def _rounds(out: U64, seed: U64, position: U64, lane: U64, stream: U64) -> None:
    """Fills out u64 [4, n]. No product or sum leaves 64 bits, so nothing wraps.

    even holds counter words 0 and 2, odd 1 and 3, as rows of one array: half the calls, which is what small n costs.
    """
    key = np.stack([seed & _MASK32, seed >> _S32])
    even = _rows(lane, position >> _S32)
    odd = _rows(position & _MASK32, stream)
    for turn in range(_ROUNDS):
        if turn:
            key = (key + _WEYL) & _MASK32
        product = even * _MULTIPLIERS
        even = (product >> _S32)[::-1] ^ odd ^ key
        odd = product[::-1] & _MASK32
    out[0::2], out[1::2] = even, odd


def _rows(first: U64, second: U64) -> U64:
    """The two as rows u64 [2, n]; one of them may have a single element for all."""
    rows = np.empty((2, max(len(first), len(second))), np.uint64)
    rows[0], rows[1] = first, second
    return rows


def uniform(seed: Integers, position: Integers, lane: Integers, stream: int = STREAM_USER) -> F64:
    """Uniform numbers in (0, 1): f64 of the arguments' broadcast shape; 52 random bits, exact."""
    return _unit(philox(seed, position, lane, stream))


def _unit(words: U64) -> F64:
    bits = (words[0] << np.uint64(20)) | (words[1] >> np.uint64(12))
    odd = ((bits << np.uint64(1)) | np.uint64(1)).astype(np.int64)
    return np.asarray(odd.astype(np.float64) * 2.0**-53)


def gumbel(seed: Integers, position: Integers, lane: Integers) -> F64:
    """Standard Gumbel noise of each lane (token id), f64; between -3.7 and 42.3.

    argmax over tokens of logit + gumbel is a sample of softmax(logits) (Gumbel-max).
    """
    lanes = np.asarray(lane, np.int64)
    shape = np.broadcast_shapes(np.shape(seed), np.shape(position), lanes.shape)
    lanes = np.broadcast_to(lanes, shape)
    streams = np.array([STREAM_BLOCK, STREAM_LANE]).reshape(2, *(1 for _ in shape))
    words = philox(seed, position, np.stack([block_of(lanes), lanes]), streams)  # both in one call
    block_e, own = -log(_unit(words))
    least = block_e * (1.0 / BLOCK_MEMBERS)
    champion = ((lanes >> 7) & (BLOCK_MEMBERS - 1)) == (words[2, 0] >> np.uint64(24)).astype(np.int64)
    return -log(np.where(champion, least, least + own))


def block_gumbel(seed: Integers, position: Integers, block: Integers) -> tuple[F64, I64]:
    """The largest Gumbel noise in each block, and the lane (champion) that has it: (f64, i64) of the broadcast shape.

    `gumbel` of the champion equals it; `gumbel` of every other lane of the block is not above it.
    """
    blocks = np.asarray(block, np.int64)
    words = philox(seed, position, blocks, STREAM_BLOCK)
    top = -log(-log(_unit(words)) * (1.0 / BLOCK_MEMBERS))
    return top, _first_lane(blocks) + (words[2] >> np.uint64(24)).astype(np.int64) * _BLOCKS


def block_of(lane: I64) -> I64:
    """The block that each lane belongs to."""
    return np.asarray((lane >> 15) * _BLOCKS + (lane & (_BLOCKS - 1)))


def block_lanes(block: I64) -> I64:
    """i64 [n] -> i64 [n, 256]: the lanes of each block, ascending; some may lie past the end of a vocabulary."""
    return np.asarray(_first_lane(block)[:, None] + np.arange(BLOCK_MEMBERS) * _BLOCKS)


def _first_lane(block: I64) -> I64:
    return ((block >> 7) << 15) + (block & (_BLOCKS - 1))


def block_maxima(row: NDArray[np.float32]) -> NDArray[np.float32]:
    """f32 [V] -> f32 [blocks]: the largest value in each block (-inf where it has no lane; NaN where it holds one)."""
    slab = BLOCK_MEMBERS * _BLOCKS
    maxima = np.full((-(-len(row) // slab), _BLOCKS), -np.inf, np.float32)
    for number, block in enumerate(maxima):
        part = row[number * slab : (number + 1) * slab]
        whole = len(part) // _BLOCKS * _BLOCKS
        if whole:
            np.maximum.reduce(part[:whole].reshape(-1, _BLOCKS), axis=0, out=block)
        np.maximum(block[: len(part) - whole], part[whole:], out=block[: len(part) - whole])
    return maxima.reshape(-1)


def derive_seed(seed: int, index: int) -> int:
    """The seed of completion `index` of a request: `seed` itself for 0, else 64 bits of the stream FORK."""
    if index == 0:
        return seed & 0xFFFFFFFFFFFFFFFF
    words = philox(seed, 0, index, STREAM_FORK)
    return (int(words[1]) << 32) | int(words[0])


_SQRT_HALF_BITS: Final = np.int64(0x3FE6A09E667F3BCD)
_LN2_HIGH: Final = float.fromhex("0x1.62e42fefa3800p-1")  # 42 bits: e * high is exact
_LN2_LOW: Final = float.fromhex("0x1.ef35793c76730p-45")
_ATANH: Final = tuple(1.0 / odd for odd in range(21, 1, -2))  # 1/21, 1/19, ... 1/3


def log(x: F64) -> F64:
    """Natural logarithm of positive normal doubles, f64, the same bits on every machine; error below 2 ulp.

    x = 2^e * m with m in [sqrt(1/2), sqrt(2)); s = (m - 1) / (m + 1); log m = 2 atanh(s) as its series through s^21
    (|s| < 0.1716, so the first term left out is below 2^-60 of the sum).
    """
    bits = np.asarray(x, np.float64).view(np.int64)
    exponent = (bits - _SQRT_HALF_BITS) >> np.int64(52)
    m = (bits - (exponent << np.int64(52))).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = np.full_like(z, _ATANH[0])
    for coefficient in _ATANH[1:]:
        series = series * z + coefficient
    e = exponent.astype(np.float64)
    twice = s + s
    return np.asarray(e * _LN2_HIGH + (twice + (twice * (z * series) + e * _LN2_LOW)))
