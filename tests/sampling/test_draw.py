"""The search for the winner against noise drawn for every token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.sampling.draw import Draw, draw_tokens
from octavo.sampling.filters import Survivors, scale
from octavo.sampling.noise import block_maxima, gumbel


def make(row: np.ndarray, seed: int, position: int, temperature: float = 1.0, ids: np.ndarray | None = None) -> Draw:
    survivors = None if ids is None else Survivors(ids, scale(row[ids], row.max(), temperature))
    return Draw(row, block_maxima(row), survivors, temperature, seed, position)


def plain(draw: Draw) -> int:
    """argmax of logit / T + noise over all tokens that are left, each with its own noise."""
    keys = (draw.row.astype(np.float64) - draw.row.max()) / draw.temperature
    keys = keys + gumbel(draw.seed, draw.position, np.arange(len(draw.row)))
    if draw.survivors is not None:
        out = np.ones(len(draw.row), bool)
        out[draw.survivors.ids] = False
        keys[out] = -np.inf
    return int(keys.argmax())


ROWS = {
    "normal": lambda rng, size: 3 * rng.normal(size=size),
    "flat": lambda rng, size: 0.01 * rng.normal(size=size),
    "equal": lambda rng, size: np.zeros(size),
    "zipf": lambda rng, size: -1.2 * np.log(rng.permutation(size) + 1),
    "peaked": lambda rng, size: np.where(np.arange(size) == size // 3, 12.0, rng.normal(size=size)),
    "masked": lambda rng, size: np.where(rng.random(size) < 0.99, -np.inf, rng.normal(size=size)),
}


@pytest.mark.parametrize("size", [1, 7, 129, 2880, 49_152, 151_936])
@pytest.mark.parametrize("shape", ROWS)
def test_search_finds_the_winner(size: int, shape: str) -> None:
    rng = np.random.default_rng(size)
    draws = []
    for position in range(12 if size < 50_000 else 4):
        row = ROWS[shape](rng, size).astype(np.float32)
        row[rng.integers(size)] = 1.0
        draws.append(make(row, int(rng.integers(2**63)), position, [0.5, 1.0, 2.0][position % 3]))
    assert draw_tokens(draws) == [plain(draw) for draw in draws]


@pytest.mark.parametrize("count", [1, 2, 1000, 1024, 1025, 30_000])
def test_survivors_few_and_many(count: int) -> None:
    rng = np.random.default_rng(count)
    row = rng.normal(size=50_000).astype(np.float32)
    draws = [
        make(row, seed, 3, 0.7, np.sort(np.append(rng.permutation(50_000)[: count - 1], row.argmax())))
        for seed in range(6)
    ]
    assert draw_tokens(draws) == [plain(draw) for draw in draws]


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=50)
)
@settings(max_examples=50)
def test_small_rows(seed: int, position: int, logits: list[float]) -> None:
    draw = make(np.array(logits, np.float32), seed, position)
    assert draw_tokens([draw]) == [plain(draw)]


def test_masked_tokens_never_win() -> None:
    row = np.full(50_000, -np.inf, np.float32)
    row[[5, 40_000]] = [-50.0, -51.0]
    assert set(draw_tokens([make(row, seed, 0) for seed in range(200)])) == {5, 40_000}


def test_tiny_temperatures_are_greedy() -> None:
    row = np.random.default_rng(0).normal(size=3000).astype(np.float32)
    draws = [make(row, seed, 0, temperature) for seed in range(5) for temperature in (5e-324, 1e-300, 1e-6)]
    assert set(draw_tokens(draws)) == {int(row.argmax())}


def test_nothing_to_draw() -> None:
    assert draw_tokens([]) == []


def test_the_search_looks_at_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """About 256 on average however flat or peaked the row; ten times that would be a broken bound."""
    from octavo.sampling import draw as module

    looked: list[int] = []

    def counting(seed: object, position: object, lane: np.ndarray) -> np.ndarray:
        looked.append(lane.size)
        return gumbel(seed, position, lane)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "gumbel", counting)
    rng = np.random.default_rng(1)
    for shape in ("normal", "flat", "zipf", "peaked"):
        looked.clear()
        draw_tokens([make(ROWS[shape](rng, 151_936).astype(np.float32), seed, 0) for seed in range(20)])
        assert sum(looked) / 20 < 2560, shape


@pytest.mark.parametrize("size", [1025, 32_768, 32_769, 50_257])
def test_the_first_and_the_last_token_can_win(size: int) -> None:
    row = np.zeros(size, np.float32)
    row[[0, -1]] = 30.0
    assert set(draw_tokens([make(row, seed, 0) for seed in range(30)])) == {0, size - 1}
