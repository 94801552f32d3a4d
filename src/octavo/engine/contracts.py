"""What the engine asks of others, and what it tells about itself."""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.cache.manager import CacheUsage
from octavo.engine.output import Detokenize
from octavo.engine.plan import StepPlan

__all__ = ["EngineStats", "Executor", "Vocabulary"]

F32 = NDArray[np.float32]


class Executor(Protocol):
    """What runs a plan: the CPU runner, another device, or a simulator."""

    def run(self, plan: StepPlan) -> F32:
        """Logits f32 [plan.num_logit_rows, V], in the plan's order."""

    def argmax(self, logits: F32) -> tuple[NDArray[np.int32], F32]:
        """See Ops.argmax."""

    def page_parts(self, page: int) -> List[NDArray[Any]]:
        """Writable, C-contiguous views of what a KV page holds, in an order that is always the same."""


@dataclass(frozen=True)
class Vocabulary:
    """What the engine must know of tokens.

    size: V, columns of the logits. known: prompts may hold ids below it. eog_ids: ids that end an output.
    decode: the text of one id alone. detokenizer: makes one for a sequence, called with its prompt's ids,
    skip_special_tokens, and whether the answer starts a text of its own.
    """

    size: int
    known: int
    eog_ids: Collection[int]
    decode: Callable[[int], str]
    detokenizer: Callable[[list[int], bool, bool], Detokenize]


@dataclass(frozen=True)
class EngineStats:
    """Counts since the engine was made, and its state now.

    prompt_tokens: computed, without those taken from the cache. swaps: of the preemptions, those whose pages were kept
    aside. refused, timed_out: requests that found the queue full, or waited in it too long. *_s: seconds of all steps
    spent in each stage. used_slots: tokens in the pages that sequences hold; allocated_slots: those pages' room.
    """

    running: int
    waiting: int
    steps: int
    prompt_tokens: int
    generated_tokens: int
    preemptions: int
    swaps: int
    refused: int
    timed_out: int
    schedule_s: float
    run_s: float
    sample_s: float
    commit_s: float
    used_slots: int
    allocated_slots: int
    cache: CacheUsage

    @property
    def utilization(self) -> float:
        """Which part of the allocated slots holds a token; 1 - utilization is the internal fragmentation."""
        return self.used_slots / self.allocated_slots if self.allocated_slots else 1.0
