"""Which sequences run in the next step, with how many tokens, in which pages.

Continuous batching at the level of iterations (Yu et al., Orca, OSDI 2022), with prompts cut into chunks so that a long
one shares its steps with running answers (Agrawal et al., Sarathi-Serve, OSDI 2024, arXiv:2403.02310):

    1. every sequence that decodes gets its one token;
    2. prompts under way get chunks from what is left of max_num_batched_tokens;
    3. waiting sequences are admitted, first come first served, while there are tokens, places and pages.

A sequence gets the pages for all its known tokens when it is admitted, so only decoding can run out of them; then the
newest sequence gives up its pages and waits to be computed again. Any single sequence fits the whole pool
(EngineConfig sees to it), so the oldest one always moves and nothing hangs.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from octavo.cache.manager import CacheManager
from octavo.core.config import EngineConfig
from octavo.core.outputs import FinishReason
from octavo.engine.plan import SteadyPlan, StepPlan
from octavo.engine.sequence import Group, Sequence
from octavo.sampling.sampler import Sampled

__all__ = ["Scheduler"]

_ORDER = attrgetter("order")


class Scheduler:
    """Owns the queue and the running set; `schedule` plans a step, `commit` takes its results."""

    # A step looks past this many waiting sequences that would only repeat a prefix being computed right now.
    _MAX_DEFERRED = 64

    def __init__(self, config: EngineConfig, cache: CacheManager) -> None:
        self.config = config
        self.cache = cache
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # sorted by order
        self.plan = StepPlan()  # of the step under way, or the last one
        self.preemptions = 0
        self._sharing: list[Group] = []
        self._steady: SteadyPlan | None = None  # holds as long as nothing but `advance` has happened since it was made

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind all others."""
        self.waiting.append(sequence)

    def schedule(self) -> StepPlan:
        """The next step; its plan is empty when there is nothing to do. A SteadyPlan is the same object each time."""
        closed = not self.waiting or len(self.running) >= self.config.max_num_seqs
        self._steady = self._plan_steady() if closed else None
        if self._steady is not None:
            self.plan = self._steady
            return self._steady
        plan = self.plan = StepPlan()
        self._plan_decodes(plan)
        if len(plan.sequences) < len(self.running):
            for sequence in self.running:
                if sequence.remaining > 1 and (count := self._chunk(sequence, plan)):
                    plan.add(sequence, count)
        if self.waiting:
            self._admit(plan)
        return plan

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
                self._prompt_done(sequence)
            sequence.accept(token)
            touched[id(group)] = group
            if sequence.finished:
                ended = True
                self._release(sequence)
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
            self._release(sequence)
            if not sequence.finished:
                sequence.finish(reason)
        self._drop_shared(group)
        self.running = [sequence for sequence in self.running if not sequence.finished]
        # Those in the queue are finished, and dropped when they come to its front.

    def restart(self, groups: Iterable[Group]) -> None:
        """A step was broken off at any point before `commit` (an interrupt): queue everyone again, from the cache.

        groups: all that have not finished; lists and books may have been caught half changed, so they are made anew.
        """
        self._steady = None
        live = sorted((s for group in groups for s in group.sequences if not s.finished), key=_ORDER)
        cache = self.cache
        try:
            for group in list(self._sharing):
                self._drop_shared(group)
            for sequence in live:
                self._release(sequence)
            cache.check()
            sound = cache.usage().used_pages == 0
        except (AssertionError, ValueError):
            sound = False
        if not sound:
            pages, caching = cache.pool.num_pages, cache.enable_prefix_caching
            self.cache = CacheManager(pages, cache.page_size, enable_prefix_caching=caching)
        for sequence in live:
            sequence.table, sequence.computed, sequence.group.shared = None, 0, None
        self.running, self.waiting, self._sharing = [], deque(live), []

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
            if len(sequence.tokens) - computed != 1:
                index += 1
            elif computed < len(table.pages) * size or self._make_room(sequence):
                plan.add_decode(sequence)
                index += 1
            # else it was itself the newest and is gone from the list

    def _make_room(self, sequence: Sequence) -> bool:
        """Pages for one more token, taken from the newest if need be. False: the sequence itself had to go.

        The list is sorted and worked off from the oldest, so whoever is preempted is not yet in the plan.
        """
        assert sequence.table is not None
        while not self.cache.extend(sequence.table, len(sequence.tokens)):
            if self._sharing:
                self._drop_shared(self._sharing[-1])
                continue
            victim = self.running[-1]
            assert victim is not self.running[0], "one sequence does not fit the whole KV cache"
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.computed = 0
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)
        sequence.group.metrics.preemptions += 1
        self.preemptions += 1

    def _chunk(self, sequence: Sequence, plan: StepPlan) -> int:
        """How many tokens of a prompt fit into what is left of the step's tokens and rows of logits."""
        count = min(sequence.remaining, self.config.max_num_batched_tokens - plan.num_tokens)
        rows = self.config.max_logit_rows - plan.num_logit_rows
        return max(0, min(count, rows + max(0, sequence.first_logit_row - sequence.computed)))

    def _admit(self, plan: StepPlan) -> None:
        config = self.config
        deferred: list[Sequence] = []
        computing = self._keys_under_way()
        while (
            self.waiting
            and len(self.running) < config.max_num_seqs
            and plan.num_tokens < config.max_num_batched_tokens
            and plan.num_logit_rows < config.max_logit_rows
            and len(deferred) < self._MAX_DEFERRED
        ):
            sequence = self.waiting[0]
            if sequence.finished:
                self.waiting.popleft()
            elif self._should_wait(sequence, computing):
                deferred.append(self.waiting.popleft())
            elif self._start(sequence, plan):
                self.waiting.popleft()
                assert sequence.table is not None
                key = self.cache.next_page_key(sequence.table, sequence.tokens, sequence.computed)
                if key is not None:
                    computing.add(key)
            elif not self.running and self._sharing:
                self._drop_shared(self._sharing[-1])
            else:
                break  # nobody overtakes a sequence that waits for pages
        self.waiting.extendleft(reversed(deferred))

    def _keys_under_way(self) -> set[tuple[int, bytes]]:
        """The pages that running prompts will fill next."""
        if not self.cache.enable_prefix_caching:
            return set()
        return {
            key
            for s in self.running
            if s.remaining > 1
            and s.table is not None
            and (key := self.cache.next_page_key(s.table, s.tokens, s.computed)) is not None
        }

    def _should_wait(self, sequence: Sequence, computing: set[tuple[int, bytes]]) -> bool:
        """Whether what it needs first is being computed in this very step, and can be shared after it."""
        if sequence.index > 0 and not sequence.group.prompt_done:
            return True
        if not computing or sequence.group.shared is not None:
            return False
        limit = min(len(sequence.tokens) - 1, sequence.first_logit_row)
        return limit > 0 and self.cache.first_missing_key(sequence.tokens, limit, _namespace(sequence)) in computing

    def _start(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Give a waiting sequence its pages and its first chunk; False if there are too few pages."""
        running, group = len(self.running), sequence.group
        # Without spare pages for those that run, the new one would be preempted in the next steps.
        headroom = min(running, max(1, self.config.num_pages // 64))
        limit = min(len(sequence.tokens) - 1, sequence.first_logit_row)
        table = self.cache.begin(
            sequence.tokens, limit=limit, namespace=_namespace(sequence), shared=group.shared, headroom=headroom
        )
        if table is None:
            return False
        sequence.table, sequence.computed = table, table.cached
        if table.copy is not None:
            plan.copies.append(table.copy)
        insort(self.running, sequence, key=_ORDER)
        plan.add(sequence, self._chunk(sequence, plan))
        self._first_admission(sequence)
        return True

    def _first_admission(self, sequence: Sequence) -> None:
        group = sequence.group
        if group.metrics.first_scheduled_s is None:
            group.metrics.first_scheduled_s = group.elapsed()
            group.metrics.cached_prompt_tokens = sequence.computed
        if not sequence.admitted:
            sequence.admitted = True
            group.unadmitted -= 1
            if group.unadmitted == 0:
                self._drop_shared(group)

    def _prompt_done(self, leader: Sequence) -> None:
        group = leader.group
        group.prompt_done = True
        if group.unadmitted:
            assert leader.table is not None
            group.shared = self.cache.share(leader.table, leader.prompt_length)
            self._sharing.append(group)

    def _drop_shared(self, group: Group) -> None:
        if group.shared is not None:
            self.cache.free(group.shared)
            group.shared = None
            self._sharing.remove(group)

    def _release(self, sequence: Sequence) -> None:
        if sequence.table is not None:
            self.cache.free(sequence.table)
            sequence.table = None


def _namespace(sequence: Sequence) -> str | None:
    """Sequences share cached pages within one namespace only."""
    return sequence.group.request.cache_salt
