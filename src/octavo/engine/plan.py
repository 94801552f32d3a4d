"""What a step does: a plan made for one step, or one that holds until something other than decoding is to be done."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.engine.sequence import Sequence

__all__ = ["SteadyPlan", "StepPlan"]


@dataclass
class StepPlan:
    """One step. Entry i of the lists belongs to sequences[i].

    counts: new tokens. logit_counts: how many of the last of these rows need logits (0: a chunk that ends before the
    prompt does). sampling: indices of sequences that get a token after their last row. copies: (source, target) pages
    to copy before anything is computed, in this order. admitted: sequences that have just got their pages, some of
    which may not be in `sequences` yet.
    """

    sequences: list[Sequence] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    logit_counts: list[int] = field(default_factory=list)
    sampling: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    num_tokens: int = 0
    num_logit_rows: int = 0

    def admit(self, sequence: Sequence) -> None:
        """A sequence has got its pages, one of which may have to be copied."""
        assert sequence.table is not None
        if sequence.table.copy is not None:
            self.copies.append(sequence.table.copy)
        self.admitted.append(sequence)

    def add(self, sequence: Sequence, count: int) -> None:
        end = sequence.computed + count
        rows = min(count, max(0, end - sequence.first_logit_row))
        if end == len(sequence.tokens):
            self.sampling.append(len(self.sequences))
        self.sequences.append(sequence)
        self.counts.append(count)
        self.logit_counts.append(rows)
        self.num_tokens += count
        self.num_logit_rows += rows

    def add_decode(self, sequence: Sequence) -> None:
        """The same as add(sequence, 1) for the usual case of one token that is not computed."""
        self.sampling.append(len(self.sequences))
        self.sequences.append(sequence)
        self.counts.append(1)
        self.logit_counts.append(1)
        self.num_tokens += 1
        self.num_logit_rows += 1


class SteadyPlan(StepPlan):
    """One token for each of the same sequences, all past their prompts, step after step: most steps of an engine.

    What the steps have in common is worked out once; what remains per step is a token for each sequence, and new pages
    for those few whose last one is full.

    step: counts the steps, from 0. tokens: i32, of each sequence the one that is to be computed. turned: indices of
    sequences whose pages may have changed since the step before. groups: of the sequences, each once.
    plain: all sequences are plain, so that one argmax gives their tokens.
    """

    def __init__(self, sequences: list[Sequence], page_size: int) -> None:
        count = len(sequences)
        ones, indices = [1] * count, list(range(count))
        super().__init__(sequences, ones, ones, indices, [], [], count, count)
        self.step = 0
        self.tokens: NDArray[np.int32] = np.array([s.tokens[-1] for s in sequences], np.int32)
        self.turned = indices
        self.groups = list(dict.fromkeys([s.group for s in sequences]))
        self.plain = all(s.plain for s in sequences)
        self._first_pairs = sum([s.computed + 1 for s in sequences])
        self._stop_ids = frozenset[int]().union(*[s.sampler.stop_ids for s in sequences])
        self._room = min(s.max_length - len(s.tokens) for s in sequences)
        self._phases: list[list[int]] = [[] for _ in range(page_size)]
        for index, sequence in enumerate(sequences):
            self._phases[-sequence.computed % page_size].append(index)

    @property
    def pairs(self) -> int:
        """(query, key) pairs of this step's attention."""
        return self._first_pairs + self.step * self.num_tokens

    def at_page_start(self, step: int) -> list[int]:
        """Indices of the sequences whose token of that step is the first of a page."""
        return self._phases[step % len(self._phases)]

    def ends(self, tokens: list[int]) -> bool:
        """Whether one of the plain sequences ends with its next token."""
        return self.step + 1 >= self._room or not self._stop_ids.isdisjoint(tokens)

    def take(self, tokens: list[int]) -> None:
        """Commit the step with the next token of each sequence, none of which ends by it."""
        for sequence, token in zip(self.sequences, tokens, strict=True):
            sequence.take(token)
