"""Which sequences run in the next step, with how many tokens, in which pages.

Continuous batching at the level of iterations (Yu et al., Orca, OSDI 2022), with prompts cut into chunks so that a long
one shares its steps with running answers (Agrawal et al., Sarathi-Serve, OSDI 2024, arXiv:2403.02310):

    1. requests of a better priority push out running ones of a worse, where places or pages are short;
    2. every sequence that decodes gets its one token;
    3. a budget of prompt tokens: what is left of max_num_batched_tokens, and where others decode no more than keep the
       step within max_decode_stall_ms by the cost model;
    4. waiting sequences are admitted, by priority and then arrival, while there are tokens, places and pages;
    5. the prompts under way share the budget (engine/chunks.py).

A sequence gets the pages for all its known tokens when it is admitted, so only decoding can run out of them; then the
newest sequence of the worst priority gives up its pages. They are kept in the swap space or computed again, whichever
the cost model says is cheaper. Any single sequence fits the whole pool (EngineConfig sees to it), so the first one
always moves and nothing hangs.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.manager import CacheManager
from octavo.core.config import EngineConfig
from octavo.core.outputs import FinishReason
from octavo.engine.admission import Admission
from octavo.engine.chunks import share
from octavo.engine.cost import CostModel, chunk_pairs
from octavo.engine.plan import SteadyPlan, StepPlan
from octavo.engine.queue import WaitingQueue
from octavo.engine.sequence import Group, Sequence
from octavo.engine.swap import SavedPages, SwapSpace
from octavo.sampling.sampler import Sampled

__all__ = ["Scheduler", "Slots"]

_RANK = attrgetter("rank")
# A chunk of a prompt is never cut shorter for the sake of those that decode, or it would not get on at all.
_LEAST_CHUNK = 16
# What was learnt from other steps may be wrong for prompts beside decodes: the first chunk is so long, each later one
# at most twice the one before.
_FIRST_CHUNK = 64
# Steps vary; aiming at this part of the time keeps nearly all of them within it.
_STALL_AIM = 0.75
# Chunks after which the prefix tree is told again what a page's context adds to its cost.
_GROWTH_EVERY = 32


class Slots(NamedTuple):
    """Places for keys and values: of tokens that are known, and in all pages that sequences hold."""

    used: int
    allocated: int


class Scheduler:
    """Owns the queue and the running set; `schedule` plans a step, `commit` takes its results."""

    def __init__(self, config: EngineConfig, cache: CacheManager, swap: SwapSpace | None = None) -> None:
        self.config = config
        self.cache = cache
        self.swap = swap
        self.cost = CostModel()
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []  # sorted by rank
        self.plan = StepPlan()  # of the step under way, or the last one
        self.preemptions = self.swaps = self._observed = 0
        self._admission = Admission(self)
        self._last_chunk = _FIRST_CHUNK // 2  # prompt tokens beside decodes in the last step
        self._steady: SteadyPlan | None = None  # holds as long as nothing but `advance` has happened since it was made

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind all others of its priority."""
        self.waiting.add(sequence)
        if sequence.index == 0:
            timeout = sequence.group.request.queue_timeout_s
            timeout = self.config.queue_timeout_s if timeout is None else timeout
            if timeout is not None:
                self.waiting.limit(sequence.group, timeout)

    def schedule(self) -> StepPlan:
        """The next step. A SteadyPlan is the same object each time.

        Its plan is empty when there is nothing to do, and while all that could run waits for pages from disk (`wait`).
        """
        admission = self._admission
        self.cache.copies_done()
        loaded = admission.take_loaded() if admission.loading else []
        self._steady = self._plan_steady() if admission.closed and not loaded else None
        if self._steady is not None:
            self.plan = self._steady
            return self._steady
        plan = self.plan = StepPlan()
        for sequence in loaded:
            plan.admit(sequence)
        admission.make_way()
        self._plan_decodes(plan)
        self._plan_prompts(plan)
        return plan

    def wait(self, timeout_s: float) -> None:
        """Block until pages that are being read from disk have come, or for so long."""
        self.cache.wait([s.table for s in self._admission.loading if s.table is not None], timeout_s)

    @property
    def loading(self) -> bool:
        """Whether a sequence waits for pages from disk."""
        return bool(self._admission.loading)

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Tell the cost model how long the model took for a plan that has not been committed yet."""
        if isinstance(plan, SteadyPlan):
            self.cost.observe(plan.num_tokens, plan.pairs, seconds, prompt_tokens=False)
            return
        pairs = sum(chunk_pairs(n, s.computed) for s, n in zip(plan.sequences, plan.counts, strict=True))
        prompts = any(count > 1 for count in plan.counts)
        self.cost.observe(plan.num_tokens, pairs, seconds, prompt_tokens=prompts)
        self._observed += prompts
        if prompts and self._observed % _GROWTH_EVERY == 0:
            self.cache.tree.cost_growth = self.cost.pair_growth(self.cache.page_size)

    def commit(self, plan: StepPlan, sampled: list[Sampled | None]) -> list[Group]:
        """Advance what ran. sampled: for each index of plan.sampling its token, None if it has been ended meanwhile.

        Returns the groups that got a token.
        """
        self._steady = None
        size, caching = self.cache.page_size, self.cache.enable_prefix_caching
        for sequence, count in zip(plan.sequences, plan.counts, strict=True):
            table = sequence.table
            if table is None:
                continue
            sequence.computed += count
            if caching and sequence.computed // size > table.published:
                self.cache.publish(table, sequence.tokens, sequence.computed)
        touched: dict[int, Group] = {}
        ended = False
        for index, token in zip(plan.sampling, sampled, strict=True):
            sequence = plan.sequences[index]
            if token is None or sequence.table is None:
                continue
            group = sequence.group
            if not group.prompt_done:
                self._admission.prompt_done(sequence)
            sequence.accept(token)
            touched[id(group)] = group
            if sequence.finished:
                ended = True
                self.release(sequence)
        if ended:
            self.running = [sequence for sequence in self.running if not sequence.finished]
        return list(touched.values())

    def advance(self, plan: SteadyPlan, tokens: NDArray[np.int32]) -> list[Group]:
        """`commit` for a plain plan. tokens: i32, one for each of its sequences."""
        listed = tokens.tolist()
        if plan.ends(listed):
            self.commit(plan, [Sampled(token) for token in listed])
            return plan.groups
        plan.take(listed)
        plan.tokens = tokens
        for index in plan.at_page_start(plan.step + 1):
            sequence = plan.sequences[index]
            assert sequence.table is not None
            self.cache.publish(sequence.table, sequence.tokens, sequence.computed)
        return plan.groups

    def end(self, group: Group, reason: FinishReason) -> None:
        """End all of a request's sequences that have not finished, and give back their pages at once."""
        self._steady = None
        for sequence in group.sequences:
            self.release(sequence)
            self._drop_saved(sequence)
            self.waiting.remove(sequence)
            if not sequence.finished:
                sequence.finish(reason)
        self._admission.drop_shared(group)
        self.running = [sequence for sequence in self.running if not sequence.finished]

    def requeue(self, sequences: Iterable[Sequence]) -> None:
        """Put sequences that have been admitted and not run back into the queue: their step was broken off."""
        for sequence in sequences:
            if sequence.table is not None and not sequence.finished:
                self._set_back(sequence)

    def restart(self, groups: Iterable[Group]) -> None:
        """A step was broken off at any point before `commit` (an interrupt): queue everyone again, from the cache.

        groups: all that have not finished; lists and books may have been caught half changed, so they are made anew.
        """
        self._steady = None
        live = [s for group in groups for s in group.sequences if not s.finished]
        cache = self.cache
        try:
            self._admission.drop_all_shared()
            for sequence in live:
                self.release(sequence)
            cache.check()
            usage = cache.usage()
            sound = usage.used_pages == usage.pinned_pages
        except (AssertionError, ValueError):
            sound = False
        if not sound:
            self.cache = cache.renewed()
        for sequence in live:
            sequence.table, sequence.computed, sequence.saved, sequence.group.shared = None, 0, None, None
        if self.swap is not None:
            self.swap.clear()
        self.running, self.waiting = [], WaitingQueue(live)
        self._admission = Admission(self)

    def slots(self) -> Slots:
        """How well the pages that sequences hold are filled; a token that is known counts, computed or not."""
        size = self.cache.page_size
        tables = [(s.table, len(s.tokens)) for s in list(self.running)]
        spare = sum(max(0, len(table.pages) * size - tokens) for table, tokens in tables if table is not None)
        allocated = self.cache.pool.num_used * size
        return Slots(max(0, allocated - spare), allocated)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's pages; it is admitted again as soon as its rank allows."""
        group = sequence.group
        if self._save(sequence):
            self.swaps += 1
            group.metrics.swaps += 1
        group.metrics.preemptions += 1
        self.preemptions += 1
        self._set_back(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give up a sequence's pages."""
        if sequence.table is not None:
            if sequence.table.loading is not None:
                self._admission.loading.remove(sequence)
            self.cache.free(sequence.table)
            sequence.table = None

    def bring_back(self, sequence: Sequence, saved: SavedPages) -> None:
        """Copy what the swap space has of a sequence into the pages that it has just been given."""
        assert self.swap is not None
        table = sequence.table
        assert table is not None
        sequence.saved = None
        if saved.computed <= table.cached:
            self.swap.drop(saved)
            return
        self.swap.restore(saved, table.pages, table.cached // self.cache.page_size)
        self.cache.cancel_copy(table)
        sequence.computed = saved.computed
        self.cache.publish(table, sequence.tokens, sequence.computed)

    def insert(self, sequence: Sequence) -> None:
        """Let a sequence that has got its pages run."""
        insort(self.running, sequence, key=_RANK)

    def _plan_steady(self) -> SteadyPlan | None:
        """The usual plan: all that run decode, and there are pages for it. None: something else is to be done."""
        plan = self._steady
        if plan is not None:
            plan.step += 1
            plan.turned = plan.at_page_start(plan.step)
        elif self.running and all(s.remaining == 1 and s.group.prompt_done for s in self.running):
            plan = SteadyPlan(list(self.running), self.cache.page_size)
        else:
            return None
        for index in plan.turned:
            sequence = plan.sequences[index]
            assert sequence.table is not None
            if not self.cache.extend(sequence.table, sequence.computed + 1):
                return None
        return plan

    def _plan_decodes(self, plan: StepPlan) -> None:
        index, size = 0, self.cache.page_size
        while index < len(self.running):
            sequence = self.running[index]
            table, computed = sequence.table, sequence.computed
            assert table is not None
            if len(sequence.tokens) - computed != 1 or table.loading is not None:
                index += 1
            elif computed < len(table.pages) * size or self._make_room(sequence):
                plan.add_decode(sequence)
                index += 1
            # else it was itself the last and is gone from the list

    def _plan_prompts(self, plan: StepPlan) -> None:
        prompts = [s for s in self.running if s.remaining > 1 and s.table is not None and s.table.loading is None]
        budget = self._budget(plan, prompts)
        if self.waiting:
            self._admission.admit(plan, budget, prompts)
        decodes, before = len(plan.sequences), plan.num_tokens
        for sequence, count in share(budget, prompts).items():
            count = min(count, self._rows_left(sequence, plan))
            if count > 0:
                plan.add(sequence, count)
        beside = plan.num_tokens - before if decodes else 0
        self._last_chunk = max(_FIRST_CHUNK // 2, beside)

    def _budget(self, plan: StepPlan, prompts: list[Sequence]) -> int:
        """Prompt tokens of this step."""
        most = self.config.max_num_batched_tokens - plan.num_tokens
        stall_ms = self.config.max_decode_stall_ms
        if stall_ms is None or not plan.sequences or most <= _LEAST_CHUNK or not (prompts or self.waiting):
            return most
        fits = self.cost.tokens_within(
            stall_ms / 1000 * _STALL_AIM,
            tokens=plan.num_tokens,
            pairs=sum(s.computed + 1.0 for s in plan.sequences),
            context=max((s.computed for s in prompts), default=0),
            most=most,
        )
        return max(_LEAST_CHUNK, min(fits, 2 * self._last_chunk))

    def _rows_left(self, sequence: Sequence, plan: StepPlan) -> int:
        """How many tokens of a prompt fit into what is left of the step's rows of logits."""
        rows = self.config.max_logit_rows - plan.num_logit_rows
        return rows + max(0, sequence.first_logit_row - sequence.computed)

    def _make_room(self, sequence: Sequence) -> bool:
        """Pages for one more token, taken from the last in rank if need be. False: the sequence itself had to go.

        The list is sorted and worked off from its start, so whoever is preempted is not yet in the plan.
        """
        assert sequence.table is not None
        while not self.cache.extend(sequence.table, len(sequence.tokens)):
            if self._admission.drop_latest_shared():
                continue
            victim = self.running[-1]
            if victim is self.running[0]:
                assert self.cache.settle(), "one sequence does not fit the whole KV cache"
                continue
            self.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _save(self, sequence: Sequence) -> bool:
        """Copy a sequence's pages to the swap space, if there is room and it is cheaper than computing them again."""
        table, computed = sequence.table, sequence.computed
        if self.swap is None or table is None or table.loading is not None or not computed:
            return False
        pages = self.cache.pages_for(computed)
        if self.cost.known and self.swap.copy_s(pages) >= self.cost.prefill_s(computed):
            return False
        sequence.saved = self.swap.save(table.pages[:pages], computed)
        return sequence.saved is not None

    def _set_back(self, sequence: Sequence) -> None:
        self.release(sequence)
        sequence.computed = 0
        self.running.remove(sequence)
        self.waiting.add(sequence)

    def _drop_saved(self, sequence: Sequence) -> None:
        if sequence.saved is not None and self.swap is not None:
            self.swap.drop(sequence.saved)
        sequence.saved = None
