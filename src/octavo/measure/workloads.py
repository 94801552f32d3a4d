"""Workloads: requests with their tokens, lengths, times of arrival and priorities, all drawn from a seed.

    Workload(requests=64, prompt=Uniform(16, 128), output=LogNormal(64, 1.0, 1, 512), rate=8.0, seed=1).items(vocab)

Each quantity has a stream of random numbers of its own, so that a change of the rate changes no prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from octavo.core.errors import ConfigError

__all__ = ["Fixed", "Item", "Lengths", "LogNormal", "Uniform", "Workload", "random_tokens", "stream"]


@dataclass(frozen=True, kw_only=True)
class Item:
    """One request. output_tokens: exactly so many are generated. arrival_s: seconds from the start of the run."""

    prompt_token_ids: list[int]
    output_tokens: int
    arrival_s: float = 0.0
    priority: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and answer together."""
        return len(self.prompt_token_ids) + self.output_tokens


class Lengths(Protocol):
    """A distribution of lengths in tokens, each at least 1."""

    @property
    def high(self) -> int:
        """The longest that can be drawn."""

    def draw(self, rng: np.random.Generator, count: int) -> list[int]: ...


@dataclass(frozen=True)
class Fixed:
    """Always the same."""

    tokens: int

    def __post_init__(self) -> None:
        _check_range(self.tokens, self.tokens)

    @property
    def high(self) -> int:
        return self.tokens

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        return [self.tokens] * count

    def __str__(self) -> str:
        return f"{self.tokens}"


@dataclass(frozen=True)
class Uniform:
    """Every whole number from low to high, both included, equally often."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        drawn: list[int] = rng.integers(self.low, self.high, count, endpoint=True).tolist()
        return drawn

    def __str__(self) -> str:
        return f"uniform, {self.low} to {self.high}"


@dataclass(frozen=True)
class LogNormal:
    """A long tail: exp of a normal variable with mean ln(median) and standard deviation sigma, rounded.

    What is drawn outside [low, high] is moved to its end, as max_tokens cuts an answer. With sigma 1 the mean is 1.65
    times the median, and one in a hundred is longer than ten times the median.
    """

    median: float
    sigma: float
    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)
        if not (self.low <= self.median <= self.high):
            raise ConfigError(f"the median length {self.median:g} must be between {self.low} and {self.high}")
        if not 0 < self.sigma <= 5:
            raise ConfigError(f"sigma must be above 0 and at most 5, not {self.sigma:g}")

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        drawn = rng.lognormal(math.log(self.median), self.sigma, count)
        cut: list[int] = np.clip(np.rint(drawn), self.low, self.high).astype(int).tolist()
        return cut

    def __str__(self) -> str:
        return f"lognormal, median {self.median:g}, sigma {self.sigma:g}, {self.low} to {self.high}"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What to draw.

    requests: how many. prefix: tokens that all prompts begin with. prompt: own tokens after it. output: of the answers.
    rate: arrivals per second as a Poisson process, the first of them at 0; None: all are there at 0.
    priorities: one of these each, equally often.

    Raises ConfigError: there are no requests or priorities, or the rate is not above 0.
    """

    requests: int
    prompt: Lengths
    output: Lengths
    prefix: tuple[int, ...] = ()
    rate: float | None = None
    priorities: tuple[int, ...] = (0,)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ConfigError(f"requests must be at least 1, not {self.requests}")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ConfigError(f"rate must be above 0 requests per second, not {self.rate:g}")
        if not self.priorities:
            raise ConfigError("priorities must hold at least one number")
        if self.seed < 0:
            raise ConfigError(f"seed must be at least 0, not {self.seed}")

    def items(self, vocab: int) -> list[Item]:
        """The requests in order of arrival; token ids are below `vocab`."""
        tokens, prompts, outputs, arrivals, ranks = map(
            np.random.default_rng, np.random.SeedSequence(self.seed).spawn(5)
        )
        return [
            Item(
                prompt_token_ids=[*self.prefix, *random_tokens(tokens, own, vocab)],
                output_tokens=output,
                arrival_s=arrival,
                priority=priority,
            )
            for own, output, arrival, priority in zip(
                self.prompt.draw(prompts, self.requests),
                self.output.draw(outputs, self.requests),
                self._arrivals(arrivals),
                ranks.choice(self.priorities, self.requests).tolist(),
                strict=True,
            )
        ]

    @property
    def longest(self) -> int:
        """Most tokens that one request can have, prompt and answer."""
        return len(self.prefix) + self.prompt.high + self.output.high

    def _arrivals(self, rng: np.random.Generator) -> list[float]:
        if self.rate is None:
            return [0.0] * self.requests
        gaps = rng.exponential(1 / self.rate, self.requests)
        times: Sequence[float] = (np.cumsum(gaps) - gaps[0]).tolist()
        return list(times)


def stream(seed: int, *keys: int) -> np.random.Generator:
    """Random numbers of their own for each seed and sequence of keys. (A list of numbers as a seed would not do: zeros
    at its end change nothing.)
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=keys))


def random_tokens(rng: np.random.Generator, count: int, vocab: int) -> list[int]:
    """Ids from 0 to vocab - 1, equally often."""
    drawn: list[int] = rng.integers(0, vocab, count).tolist()
    return drawn


def _check_range(low: int, high: int) -> None:
    if not 1 <= low <= high:
        raise ConfigError(f"lengths must be at least 1 and in order, not {low} to {high}")
