"""What one running completion must remember for sampling: its counts, its noise position, its masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import InvalidParameterError
from octavo.core.params import SamplingParams
from octavo.sampling.noise import derive_seed

__all__ = ["SamplerState", "TokenCounts"]

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


class TokenCounts:
    """Distinct token ids, each with the number of times it was generated, as arrays that grow in place."""

    def __init__(self, prompt_ids: Sequence[int] = ()) -> None:
        """prompt_ids enter with a count of 0: they are seen, but not generated."""
        distinct = np.unique(np.asarray(prompt_ids, np.int64))
        self._ids = distinct
        self._counts = np.zeros(len(distinct), np.int64)
        self._slots = {token: slot for slot, token in enumerate(distinct.tolist())}

    def add(self, token: int) -> None:
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self._slots)
            if slot == len(self._ids):
                self._grow()
            self._ids[slot] = token
        self._counts[slot] += 1

    def copy(self) -> TokenCounts:
        other = TokenCounts()
        other._ids, other._counts, other._slots = self._ids.copy(), self._counts.copy(), dict(self._slots)
        return other

    @property
    def ids(self) -> I64:
        """i64 [n], every token seen, in order of first sight."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> I64:
        """i64 [n], how often each of `ids` was generated; 0 for those of the prompt alone."""
        return self._counts[: len(self._slots)]

    def _grow(self) -> None:
        room = max(32, len(self._ids))
        self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(room, np.int64)])


class SamplerState:
    """One completion's side of sampling. `sample` reads it; `append` moves it on by one token.

    A state holds nothing about its neighbours or about the step it runs in, so preemption and recomputation leave it
    alone: keep the state, and the next token is the one that would have come anyway.

    Attributes:
        params: as the caller gave them.
        vocab_size: V, the width of the logits.
        seed: u64, the key of the noise.
        position: number of tokens generated so far; the counter of the noise.
        stop_ids: ids that end the output, masked until params.min_tokens tokens are generated.
        counts: tokens seen, kept only where a penalty needs them, else None.
        plain: every token is the largest logit of its row as it is, and nothing else is asked about it.
    """

    __slots__ = (
        "bias",
        "bias_ids",
        "counts",
        "params",
        "plain",
        "position",
        "seed",
        "stop_array",
        "stop_ids",
        "vocab_size",
    )

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        vocab_size: int,
        stop_ids: frozenset[int],
        seed: int,
    ) -> None:
        """stop_ids: end-of-sequence ids and whatever else ends the output; params.stop_token_ids are added to them.
        seed: any integer; its low 64 bits count.

        Raises:
            InvalidParameterError: a token id of logit_bias, stop_token_ids or stop_ids, or (where repetition_penalty
                needs it) of the prompt, is not in the vocabulary.
        """
        self.params = params
        self.vocab_size = vocab_size
        self.seed = seed & 0xFFFFFFFFFFFFFFFF
        self.position = 0
        self.stop_ids = frozenset(stop_ids) | frozenset(params.stop_token_ids)
        _check_ids("logit_bias", params.logit_bias, vocab_size)
        _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
        _check_ids("stop_ids", stop_ids, vocab_size)
        self.bias_ids: I64 = np.fromiter(params.logit_bias.keys(), np.int64, len(params.logit_bias))
        self.bias: F64 = np.fromiter(params.logit_bias.values(), np.float64, len(params.logit_bias))
        self.stop_array: I64 = np.array(sorted(self.stop_ids), np.int64)
        self.counts = self._first_counts(prompt_ids)
        masks = params.min_tokens > 0 and len(self.stop_array) > 0
        self.plain = (
            params.greedy and params.logprobs is None and self.counts is None and not params.logit_bias and not masks
        )

    def _first_counts(self, prompt_ids: Sequence[int]) -> TokenCounts | None:
        params = self.params
        if params.repetition_penalty != 1.0:
            counts = TokenCounts(prompt_ids)
            _check_ids("the prompt", counts.ids[[0, -1]].tolist() if len(counts.ids) else (), self.vocab_size)  # sorted
            return counts
        return TokenCounts() if params.presence_penalty or params.frequency_penalty else None

    @property
    def masks_stop_ids(self) -> bool:
        """Whether the next token may not be one that ends the output."""
        return self.position < self.params.min_tokens and len(self.stop_array) > 0

    @property
    def has_processors(self) -> bool:
        """Whether any step before temperature changes the next row of logits."""
        penalized = self.counts is not None and len(self.counts.ids) > 0
        return penalized or len(self.bias_ids) > 0 or self.masks_stop_ids

    def append(self, token: int) -> None:
        """One more token of the output, sampled or forced."""
        self.position += 1
        if self.counts is not None:
            self.counts.add(token)

    def fork(self, index: int) -> SamplerState:
        """An independent copy for completion `index` of the same request (n > 1).

        Its seed is a function of this state's seed and `index`; index 0 keeps the seed. Fork every completion from the
        same first state, so that completion i of a seeded request is the same whatever n is.
        """
        child = SamplerState(self.params, (), self.vocab_size, self.stop_ids, derive_seed(self.seed, index))
        child.position = self.position
        child.counts = self.counts.copy() if self.counts is not None else None
        return child


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InvalidParameterError(
                f"{name} holds token id {token}; this model's vocabulary has ids 0 to {vocab_size - 1}"
            )
