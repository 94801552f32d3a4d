"""The draw itself: argmax of scaled logit + Gumbel noise over the tokens that are left (the Gumbel-max trick).

The noise belongs to (seed, position, token id), so which token wins among a set does not depend on what the set was cut
from; two distributions that share it agree as often as they can, which coupled speculation builds on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo.sampling.filters import Survivors, scale
from octavo.sampling.noise import block_gumbel, block_lanes, block_maxima, gumbel

__all__ = ["Draw", "draw_tokens"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Number = TypeVar("Number", np.float64, np.int64)

_DIRECT = 1024
"""Up to this many survivors, noise for each costs less than a search by blocks."""
_FIRST_BLOCKS = 8
_FIRST_TOKENS = 64
_SLACK = 1e-9
"""Far above the rounding of one key (about 1e-14 at this scale): no block that could win is dropped."""


@dataclass(frozen=True)
class Draw:
    """One row to draw from.

    row f32 [V] after processors, its block maxima f32 [blocks], survivors or None for all tokens.
    """

    row: F32
    maxima: F32
    survivors: Survivors | None
    temperature: float
    seed: int
    position: int

    @property
    def top(self) -> np.float32:
        return np.float32(self.maxima.max())


def draw_tokens(draws: Sequence[Draw]) -> list[int]:
    """One token id per draw. Rows share calls of the noise function, never values."""
    if not draws:
        return []
    candidates: list[I64] = [np.empty(0, np.int64)] * len(draws)
    wide: list[int] = []
    for index, draw in enumerate(draws):
        ids = np.arange(len(draw.row)) if draw.survivors is None else draw.survivors.ids
        if len(ids) <= _DIRECT:
            candidates[index] = ids
        else:
            wide.append(index)
    if wide:
        for index, ids in zip(wide, _search([_whole(draws[index]) for index in wide]), strict=True):
            candidates[index] = ids
    return [int(ids[keys.argmax()]) for ids, keys in zip(candidates, _keys(draws, candidates), strict=True)]


def _whole(draw: Draw) -> Draw:
    """The same draw with its survivors written into the row, all else at -inf."""
    if draw.survivors is None:
        return draw
    row = np.full_like(draw.row, -np.inf)
    row[draw.survivors.ids] = draw.row[draw.survivors.ids]
    return Draw(row, block_maxima(row), None, draw.temperature, draw.seed, draw.position)


def _search(draws: Sequence[Draw]) -> list[I64]:
    """For each draw over all tokens: ids among which the winner is for certain, a few hundred as a rule.

    A block's bound is its largest scaled logit plus its largest noise; a token's is its own logit plus the latter. Keys
    that are cheap to have (those of the champions, and of the tokens with the best bounds) give a value that the winner
    must reach; tokens whose bound stays below it are out.
    """
    blocks = [np.flatnonzero(draw.maxima > -np.inf) for draw in draws]
    flat_noise, flat_champions = block_gumbel(*_lanes(draws, blocks))
    noise, champions = _split(flat_noise, blocks), _split(flat_champions, blocks)
    bounds = [scale(d.maxima[b], d.top, d.temperature) + n for d, b, n in zip(draws, blocks, noise, strict=True)]
    first = []
    for draw, block, extra, bound in zip(draws, blocks, noise, bounds, strict=True):
        best = _largest(bound, _FIRST_BLOCKS)
        ids, reach = _tokens(draw, block[best], extra[best])
        first.append(ids[_largest(reach, _FIRST_TOKENS)])
    rest = []
    for index, keys in enumerate(_keys(draws, first)):
        draw, extra = draws[index], noise[index]
        least = max(keys.max(), _champion_key(draw, champions[index], extra)) - _SLACK
        near = bounds[index] >= least
        ids, reach = _tokens(draw, blocks[index][near], extra[near])
        rest.append(ids[reach >= least])
    return rest


def _champion_key(draw: Draw, champions: I64, noise: F64) -> float:
    """The best key among the lanes that have their block's largest noise; -inf if none is a token."""
    real = champions < len(draw.row)
    keys = scale(draw.row[champions[real]], draw.top, draw.temperature) + noise[real]
    return float(keys.max(initial=-np.inf))


def _largest(values: F64, count: int) -> I64:
    """Indices of `count` of the largest values, in no order."""
    return np.argpartition(values, -count)[-count:] if count < len(values) else np.arange(len(values))


def _tokens(draw: Draw, blocks: I64, noise: F64) -> tuple[I64, F64]:
    """(ids of the tokens in the blocks, each one's scaled logit + its block's largest noise)."""
    lanes = block_lanes(blocks)
    inside = lanes < len(draw.row)
    ids = lanes[inside]
    reach = np.broadcast_to(noise[:, None], lanes.shape)[inside]
    return ids, scale(draw.row[ids], draw.top, draw.temperature) + reach


def _keys(draws: Sequence[Draw], ids: Sequence[I64]) -> list[F64]:
    """Scaled logit + noise for the ids of each draw, in float64."""
    noise = _split(gumbel(*_lanes(draws, ids)), ids)
    return [scale(d.row[i], d.top, d.temperature) + n for d, i, n in zip(draws, ids, noise, strict=True)]


def _lanes(draws: Sequence[Draw], lanes: Sequence[I64]) -> tuple[U64, U64, I64]:
    """Seeds, positions and lanes of all draws end to end."""
    lengths = [len(part) for part in lanes]
    seeds = np.array([draw.seed for draw in draws], np.uint64)
    positions = np.array([draw.position for draw in draws], np.uint64)
    if len(draws) == 1:
        return seeds, positions, lanes[0]
    return np.repeat(seeds, lengths), np.repeat(positions, lengths), np.concatenate(lanes)


def _split(values: NDArray[Number], like: Sequence[I64]) -> list[NDArray[Number]]:
    return np.split(values, np.cumsum([len(part) for part in like])[:-1])
