"""Which waiting sequences get pages: by rank, past those that had better wait, and back from the swap space."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING

from octavo.cache.radix import Namespace
from octavo.core.outputs import CacheMiss
from octavo.engine.chunks import may_join
from octavo.engine.plan import StepPlan
from octavo.engine.sequence import Group, Sequence

if TYPE_CHECKING:
    from octavo.engine.scheduler import Scheduler

__all__ = ["Admission", "namespace_of"]

_RANK = attrgetter("rank")
# A step looks past this many waiting sequences that would only repeat a prefix being computed right now.
_MAX_DEFERRED = 64
# So many later ones may take pages that are too few for the first in line; then all wait until it has its own.
_MAX_OVERTAKEN = 32


class Admission:
    """The scheduler's door. loading: running sequences that wait for pages from disk."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.loading: list[Sequence] = []
        self._sharing: list[Group] = []  # groups whose prompt pages are held for siblings
        self._overtaken: tuple[Sequence, int] | None = None  # who waits for pages, how many have passed it

    @property
    def closed(self) -> bool:
        """Nobody can be admitted now whatever pages there are."""
        scheduler = self._scheduler
        waiting, running = scheduler.waiting, scheduler.running
        if not len(waiting):
            return True
        if scheduler.config.scheduling_policy == "static":
            return bool(running)
        full = len(running) >= scheduler.config.max_num_seqs
        return full and not _outranks(waiting[0], running[-1])

    def make_way(self) -> None:
        """Preempt running sequences of a worse priority than the first in line, while it lacks a place or pages."""
        scheduler = self._scheduler
        waiting, running = scheduler.waiting, scheduler.running
        if scheduler.config.scheduling_policy == "static":
            return
        while len(waiting) and running and _outranks(waiting[0], running[-1]):
            first = waiting[0]
            if self._must_wait(first, self._keys_under_way()):
                break
            if len(running) < scheduler.config.max_num_seqs and scheduler.cache.fits(
                first.tokens, limit=_cacheable(first), namespace=namespace_of(first), headroom=self._headroom()
            ):
                break
            if not self.drop_latest_shared():
                scheduler.preempt(running[-1])

    def admit(self, plan: StepPlan, budget: int, prompts: list[Sequence]) -> None:
        """Let waiting sequences run. prompts: those under way, by rank; the new ones join them."""
        scheduler = self._scheduler
        waiting, config = scheduler.waiting, scheduler.config
        continuous = config.scheduling_policy == "continuous"
        if not continuous and scheduler.running:
            return
        computing = self._keys_under_way()
        at = deferred = 0
        while at < len(waiting) and len(scheduler.running) < config.max_num_seqs and deferred < _MAX_DEFERRED:
            sequence = waiting[at]
            if continuous and not may_join(budget, _tokens_left(sequence), prompts):
                break
            if self._must_wait(sequence, computing):
                at, deferred = at + 1, deferred + 1
            elif self._start(sequence, plan):
                waiting.remove(sequence)
                self._join(sequence, prompts, computing)
            elif not scheduler.running and (self.drop_latest_shared() or scheduler.cache.settle()):
                continue
            elif self._may_be_overtaken(sequence):
                at, deferred = at + 1, deferred + 1
            else:
                break

    def take_loaded(self) -> list[Sequence]:
        """Let those run whose pages have come from disk."""
        cache = self._scheduler.cache
        loaded = [s for s in self.loading if s.table is not None and cache.poll(s.table)]
        for sequence in loaded:
            assert sequence.table is not None
            self.loading.remove(sequence)
            sequence.computed = sequence.table.cached
            self._first_admission(sequence)
        return loaded

    def prompt_done(self, leader: Sequence) -> None:
        """The first sequence of a group has computed the prompt: its siblings can use those pages."""
        group = leader.group
        group.prompt_done = True
        if group.unadmitted:
            assert leader.table is not None
            group.shared = self._scheduler.cache.share(leader.table, leader.prompt_length)
            self._sharing.append(group)

    def drop_shared(self, group: Group) -> None:
        """Let go of the prompt pages held for siblings."""
        if group.shared is not None:
            self._scheduler.cache.free(group.shared)
            group.shared = None
            self._sharing.remove(group)

    def drop_latest_shared(self) -> bool:
        """The same for the group that came last; False if none is left."""
        if not self._sharing:
            return False
        self.drop_shared(self._sharing[-1])
        return True

    def drop_all_shared(self) -> None:
        """The same for all groups."""
        for group in list(self._sharing):
            self.drop_shared(group)

    def _start(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Give a waiting sequence its pages; False if there are too few."""
        scheduler, saved = self._scheduler, sequence.saved
        table = scheduler.cache.begin(
            sequence.tokens,
            limit=_cacheable(sequence),
            namespace=namespace_of(sequence),
            shared=sequence.group.shared,
            headroom=self._headroom(),
            fetch=saved is None,
        )
        if table is None:
            return False
        sequence.table, sequence.computed = table, table.cached
        if saved is not None:
            scheduler.bring_back(sequence, saved)
        scheduler.insert(sequence)
        plan.admit(sequence)
        if table.loading is not None:
            self.loading.append(sequence)
        else:
            self._first_admission(sequence)
        return True

    def _join(self, sequence: Sequence, prompts: list[Sequence], computing: set[tuple[int, bytes]]) -> None:
        """A sequence has been admitted: it shares the step's tokens, and others may wait for its pages."""
        cache, table = self._scheduler.cache, sequence.table
        assert table is not None
        if table.loading is None:
            insort(prompts, sequence, key=_RANK)
        key = cache.next_page_key(table, sequence.tokens, sequence.computed)
        if key is not None:
            computing.add(key)
        if self._overtaken is not None and self._overtaken[0].rank < sequence.rank:
            self._overtaken = self._overtaken[0], self._overtaken[1] + 1

    def _may_be_overtaken(self, sequence: Sequence) -> bool:
        """Whether others may pass a sequence for which there are too few pages: so many, and only while some run."""
        if self._overtaken is None or self._overtaken[0].table is not None or self._overtaken[0].finished:
            self._overtaken = sequence, 0
        return bool(self._scheduler.running) and self._overtaken[1] < _MAX_OVERTAKEN

    def _headroom(self) -> int:
        """Spare pages for those that run; without them the new one would be preempted in the next steps."""
        return min(len(self._scheduler.running), max(1, self._scheduler.config.num_pages // 64))

    def _keys_under_way(self) -> set[tuple[int, bytes]]:
        """The pages that running prompts will fill next."""
        cache = self._scheduler.cache
        if not cache.enable_prefix_caching:
            return set()
        return {
            key
            for s in self._scheduler.running
            if s.remaining > 1
            and s.table is not None
            and (key := cache.next_page_key(s.table, s.tokens, s.computed)) is not None
        }

    def _must_wait(self, sequence: Sequence, computing: set[tuple[int, bytes]]) -> bool:
        """Whether what it needs first is being computed already, and can be shared then."""
        if sequence.index > 0 and not sequence.group.prompt_done:
            return True
        if not computing or sequence.group.shared is not None or sequence.saved is not None:
            return False
        limit = _cacheable(sequence)
        key = self._scheduler.cache.first_missing_key(sequence.tokens, limit, namespace_of(sequence))
        return limit > 0 and key in computing

    def _first_admission(self, sequence: Sequence) -> None:
        group, table = sequence.group, sequence.table
        assert table is not None
        metrics = group.metrics
        if metrics.first_scheduled_s is None:
            metrics.first_scheduled_s = group.elapsed()
            metrics.cached_prompt_tokens, metrics.disk_prompt_tokens = table.cached, table.disk
            metrics.cache_miss = self._explain(sequence, table.cached)
        if not sequence.admitted:
            sequence.admitted = True
            group.unadmitted -= 1
            if group.unadmitted == 0:
                self.drop_shared(group)

    def _explain(self, sequence: Sequence, cached: int) -> CacheMiss | None:
        """Why no more of the prompt came from the cache."""
        most, limit, tokens = sequence.prompt_length - 1, _cacheable(sequence), sequence.tokens
        if cached >= most:
            return None
        cache = self._scheduler.cache
        if not cache.enable_prefix_caching:
            return CacheMiss("off", 0, tokens[0])
        if cached >= limit:
            return CacheMiss("logprobs", cached, tokens[cached])
        return cache.explain(tokens, limit, namespace_of(sequence), cached)


def namespace_of(sequence: Sequence) -> Namespace:
    """Sequences share cached pages within one namespace only."""
    return Namespace(salt=sequence.group.request.cache_salt)


def _cacheable(sequence: Sequence) -> int:
    """How many leading tokens may come from the cache: none whose logits are needed."""
    return min(len(sequence.tokens) - 1, sequence.first_logit_row)


def _outranks(first: Sequence, second: Sequence) -> bool:
    return first.rank[0] < second.rank[0]


def _tokens_left(sequence: Sequence) -> int:
    """What a waiting sequence has to compute, at most."""
    return len(sequence.tokens) - (0 if sequence.saved is None else sequence.saved.computed)
