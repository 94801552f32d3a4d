"""The engine: schedule, run, sample, commit, once per step."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from octavo.cache.manager import CacheManager
from octavo.cache.radix import Namespace
from octavo.core.config import EngineConfig
from octavo.core.errors import (
    ContextLengthError,
    InvalidParameterError,
    OctavoError,
    QueueFullError,
    RequestError,
    SamplingError,
)
from octavo.core.outputs import FinishReason
from octavo.core.params import SamplingParams
from octavo.core.request import Request
from octavo.engine.contracts import EngineStats, Executor, Vocabulary
from octavo.engine.health import DEFAULT_STALL_AFTER_S, Health, health_of
from octavo.engine.output import TextBuilder, assemble_logprobs
from octavo.engine.plan import SteadyPlan, StepPlan
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Group, Sequence
from octavo.engine.swap import SwapSpace
from octavo.sampling.sampler import Sampled, SamplerState, plain_tokens, prompt_logprobs, sample

if TYPE_CHECKING:
    from octavo.cache.tier import Tier

__all__ = ["Engine", "EngineStats", "Executor", "Vocabulary"]

F32 = NDArray[np.float32]
logger = logging.getLogger(__name__)

# A step that has nothing but pages on their way from disk looks again after this long for aborts and new requests.
_LOADING_WAIT_S = 0.02
# Cached pages copied for the disk after each step: a memcpy of 0.2 ms.
_PUMP_BYTES = 2 << 20
# Bytes a second that a disk gives at the least, for deciding whether reading beats computing.
_DISK_RATE = 200e6


class Engine:
    """Many requests, one model. Its methods may be called from several threads; steps run one at a time.

    A request ends with a reason whatever happens: an exception in a step fails the requests in that step, with its
    text, and the engine goes on with the others.

    results: held while what callers see of groups changes, for microseconds; who holds it sees them between two steps.
    step_started, step_ended: by time.monotonic(), of the step that runs (None between steps) and of the last one.
    """

    def __init__(
        self, executor: Executor, config: EngineConfig, vocabulary: Vocabulary, *, tier: Tier | None = None
    ) -> None:
        """tier: where cached pages go when they leave memory; closed with the engine."""
        self.config = config
        self.vocabulary = vocabulary
        caching = config.enable_prefix_caching
        cache = CacheManager(config.num_pages, config.block_size, enable_prefix_caching=caching, tier=tier)
        swap = SwapSpace(config.swap_space_bytes, executor.page_parts) if config.swap_space_bytes else None
        self.scheduler = Scheduler(config, cache, swap)
        cache.fetch_worthwhile = self._fetch_worthwhile
        # The longest sequence must find pages whatever is pinned.
        cache.pins.limit = min(cache.pins.limit, config.num_pages - cache.pages_for(config.max_model_len))
        self._executor = executor
        self._eog_ids = frozenset(vocabulary.eog_ids)
        self._groups: dict[str, Group] = {}
        self._order = itertools.count()
        self._arrivals = itertools.count()
        # Both are filled without the lock, which is held for whole steps, and emptied with it.
        self._arrived: deque[Group] = deque()
        self._aborts: deque[Group] = deque()
        self._lock = threading.Lock()
        self.results = threading.RLock()
        self.step_started: float | None = None
        self.step_ended: float | None = None
        self._steps = self._prompt_tokens = self._generated = self._refused = self._timed_out = 0
        self._seconds = [0.0, 0.0, 0.0, 0.0]

    @property
    def cache(self) -> CacheManager:
        return self.scheduler.cache

    @property
    def has_work(self) -> bool:
        return bool(self._groups or self._arrived)

    def make_request(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        cache_salt: str | None = None,
        starts_text: bool = False,
        request_id: str | None = None,
        priority: int = 0,
        queue_timeout_s: float | None = None,
    ) -> Request:
        """A checked request with what follows from the engine filled in; queues nothing.

        A request without a seed draws one from the engine's seed and its number in order of arrival. That number is
        also the id of one that has none; see Request for the rest.
        Raises RequestError (no tokens, or one outside the vocabulary), ContextLengthError (no room in the context).
        """
        room = self._check_prompt(prompt_token_ids, params)
        _check_queueing(priority, queue_timeout_s)
        number = next(self._arrivals)
        seed = params.seed
        if seed is None:
            seed = int(np.random.SeedSequence([self.config.seed % 2**64, number]).generate_state(1, np.uint64)[0])
        return Request(
            request_id=str(number) if request_id is None else request_id,
            prompt_token_ids=prompt_token_ids,
            params=params,
            seed=seed,
            max_tokens=room if params.max_tokens is None else min(room, params.max_tokens),
            prompt=prompt,
            cache_salt=cache_salt,
            priority=priority,
            queue_timeout_s=queue_timeout_s,
            starts_text=starts_text,
        )

    def _check_prompt(self, ids: list[int], params: SamplingParams) -> int:
        """How many tokens the context has left for the answer."""
        if not ids:
            raise RequestError("the prompt is empty: it has no tokens to continue from")
        size, length = self.vocabulary.known, self.config.max_model_len
        low, high = min(ids), max(ids)
        if low < 0 or high >= size:
            bad = low if low < 0 else high
            raise RequestError(f"the prompt holds token id {bad}; this model's vocabulary has ids 0 to {size - 1}")
        room = length - len(ids)
        if room < max(1, params.min_tokens):
            answer = f"{params.min_tokens} (min_tokens)" if params.min_tokens > 1 else "1"
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens and the answer needs at least {answer}, but the context window "
                f"holds {length} tokens; shorten the prompt, or load the model with a larger max_model_len"
            )
        return room

    def prepare(self, request: Request) -> Group:
        """A group ready to be queued; raises InvalidParameterError for token ids outside the vocabulary."""
        params, detokenizer = request.params, self.vocabulary.detokenizer
        group = Group(request, self.vocabulary.decode)
        eos = frozenset() if params.ignore_eos else self._eog_ids
        first = SamplerState(params, request.prompt_token_ids, self.vocabulary.size, eos, request.seed)
        for index in range(params.n):
            text = TextBuilder(
                detokenizer(request.prompt_token_ids, params.skip_special_tokens, request.starts_text),
                params.stop,
                include_stop=params.include_stop_str_in_output,
            )
            sampler = first if params.n == 1 else first.fork(index)
            Sequence(group, index, next(self._order), sampler, text, eos)
        return group

    def add(self, group: Group) -> None:
        """Queue a prepared group. Never waits for a step.

        Raises QueueFullError where max_waiting requests wait already for want of a place.
        """
        most = self.config.max_waiting
        if most is not None and self._waiting_for_a_place() >= most:
            self._refused += 1
            raise QueueFullError(
                f"{most} requests wait already, as many as max_waiting allows; try again later, or start the engine "
                "with a larger max_waiting"
            )
        self._arrived.append(group)

    def _waiting_for_a_place(self) -> int:
        """Requests in the queue beyond those for which there is a place; negative: places are left."""
        scheduler = self.scheduler
        places = max(0, self.config.max_num_seqs - len(scheduler.running))
        return len(self._arrived) + scheduler.waiting.requests - places

    def abort(self, group: Group) -> None:
        """End a request early. Its pages are free when this returns, or after the step that is running now."""
        self._aborts.append(group)
        # Never waits: a generator that is dropped in the middle of a step ends up here in the same thread.
        while self._aborts and self._lock.acquire(blocking=False):
            try:
                self._take_arrived()
                self._end_aborted()
            finally:
                self._lock.release()

    def reset_prefix_cache(self) -> int:
        """Forget every cached page that is not in use; returns how many there were."""
        with self._lock:
            return self.cache.reset()

    def close(self) -> None:
        """End every request."""
        with self._lock:
            self._take_arrived()
            for group in list(self._groups.values()):
                self._end(group, "abort")
            self.cache.close()

    def step(self) -> list[Group]:
        """Run one step; returns the groups in which something changed. Does nothing when there is no work.

        While all that could run waits for pages from disk, it waits for these a moment.
        """
        with self._lock:
            self._take_arrived()
            self._end_aborted()
            touched = self._end_expired()
            if self._groups:
                touched += self._timed_step()
            self._end_aborted()
        return touched

    def flush(self, wait_s: float = 0.0) -> bool:
        """Copy the cached pages that are to be on disk, for when there is nothing else to do; whether there are more.

        wait_s: how long to wait where the disk lags behind. Does nothing while a step runs.
        """
        if not self._lock.acquire(blocking=False):
            return True
        try:
            return self.cache.pump(None, wait_s=wait_s)
        finally:
            self._lock.release()

    def pin(self, token_ids: list[int], cache_salt: str | None = None) -> int:
        """See CacheManager.pin."""
        with self._lock:
            return self.cache.pin(token_ids, Namespace(salt=cache_salt))

    def unpin(self, token_ids: list[int], cache_salt: str | None = None) -> bool:
        """See CacheManager.unpin."""
        with self._lock:
            return self.cache.unpin(token_ids, Namespace(salt=cache_salt))

    def health(self, stall_after_s: float = DEFAULT_STALL_AFTER_S) -> Health:
        """Whether steps go on; takes no lock. stall_after_s: a step that runs for longer counts as stalled."""
        waiting = len(self.scheduler.waiting) + len(self._arrived)
        return health_of(
            self.step_started,
            self.step_ended,
            running=len(self.scheduler.running),
            waiting=waiting,
            stall_after_s=stall_after_s,
        )

    def stats(self) -> EngineStats:
        scheduler, seconds, slots = self.scheduler, self._seconds, self.scheduler.slots()
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + sum(len(group.sequences) for group in list(self._arrived)),
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated,
            preemptions=scheduler.preemptions,
            swaps=scheduler.swaps,
            refused=self._refused,
            timed_out=self._timed_out,
            schedule_s=seconds[0],
            run_s=seconds[1],
            sample_s=seconds[2],
            commit_s=seconds[3],
            used_slots=slots.used,
            allocated_slots=slots.allocated,
            cache=self.cache.usage(),
        )

    def _timed_step(self) -> list[Group]:
        self.step_started = time.monotonic()
        try:
            return self._step()
        finally:
            self.step_ended, self.step_started = time.monotonic(), None

    def _step(self) -> list[Group]:
        clock, committing = time.perf_counter, False
        try:
            start = clock()
            plan = self.scheduler.schedule()
            if not plan.sequences:
                assert self.scheduler.loading, "requests are queued, but none can run"
                self.scheduler.wait(_LOADING_WAIT_S)
                return []
            scheduled = clock()
            logits = self._executor.run(plan)
            ran = clock()
            steady = plan if isinstance(plan, SteadyPlan) and plan.plain else None
            tokens = plain_tokens(logits, self._executor.argmax) if steady else None
            if steady is not None and tokens is not None:
                drawn = clock()
                self.scheduler.observe(plan, drawn - start)
                committing = True
                with self.results:
                    touched = self._advance(steady, tokens)
            else:
                failed = self._report_prompts(plan, logits)
                sampled = self._sample(plan, logits, failed)
                drawn = clock()
                self.scheduler.observe(plan, drawn - start)
                committing = True
                with self.results:
                    touched = self._commit(plan, sampled) + failed
        except Exception as error:
            logger.debug("a step failed", exc_info=True)
            return self._fail_step(error)
        except BaseException as error:
            if committing:  # tokens may be half taken
                self._fail_step(error)
            self.scheduler.restart(self._groups.values())
            raise
        self.cache.pump(_PUMP_BYTES)
        self._count(scheduled - start, ran - scheduled, drawn - ran, clock() - drawn)
        return touched

    def _count(self, *stages: float) -> None:
        self._steps += 1
        for stage, spent in enumerate(stages):
            self._seconds[stage] += spent

    def _advance(self, plan: SteadyPlan, tokens: NDArray[np.int32]) -> list[Group]:
        """`_commit` for a plain plan, whose groups have had tokens before."""
        self._generated += len(tokens)
        touched = self.scheduler.advance(plan, tokens)
        for group in touched:
            group.version += 1
            if group.unfinished == 0:
                self._forget(group)
        return touched

    def _commit(self, plan: StepPlan, sampled: list[Sampled | None]) -> list[Group]:
        self._generated += len(sampled)
        self._prompt_tokens += plan.num_tokens - sum(plan.counts[i] == 1 for i in plan.sampling)
        touched = self.scheduler.commit(plan, sampled)
        for group in touched:
            group.version += 1
            if group.metrics.first_token_s is None:
                group.metrics.first_token_s = group.elapsed()
            if group.finished:
                self._forget(group)
        return touched

    def _sample(self, plan: StepPlan, logits: F32, failed: list[Group]) -> list[Sampled | None]:
        """A token for each index of plan.sampling. A request whose logits give none is failed, alone."""
        sequences = [plan.sequences[i] for i in plan.sampling]
        if len(logits) != len(sequences):
            ends = np.cumsum(plan.logit_counts)
            logits = logits[ends[plan.sampling] - 1]
        result: list[Sampled | None] = [None] * len(sequences)
        rows = [row for row, sequence in enumerate(sequences) if not sequence.finished]
        while rows:
            try:
                chosen = logits if len(rows) == len(logits) else logits[rows]
                tokens = sample(chosen, [sequences[row].sampler for row in rows], self._executor.argmax)
            except SamplingError as error:
                for number, reason in error.rows.items():
                    self._fail(sequences[rows[number]].group, reason, failed)
                rows = [row for row in rows if not sequences[row].finished]
                continue
            for row, token in zip(rows, tokens, strict=True):
                result[row] = token
            break
        return result

    def _report_prompts(self, plan: StepPlan, logits: F32) -> list[Group]:
        """Log-probabilities of the prompt tokens whose rows are in this step; returns groups that failed."""
        failed: list[Group] = []
        if isinstance(plan, SteadyPlan):
            return failed
        end = 0
        for sequence, rows, count in zip(plan.sequences, plan.logit_counts, plan.counts, strict=True):
            start, end = end, end + rows
            group, top = sequence.group, sequence.group.request.params.prompt_logprobs
            if top is None or group.prompt_logprobs is None or sequence.index or group.prompt_done:
                continue
            first = sequence.computed + count - rows + 1
            targets = sequence.tokens[first : min(first + rows, sequence.prompt_length)].tolist()
            try:
                ranked = prompt_logprobs(logits[start : start + len(targets)], targets, top)
            except SamplingError as error:
                self._fail(group, next(iter(error.rows.values())), failed)
                continue
            group.prompt_logprobs += [assemble_logprobs(each, group.decode) for each in ranked]
        return failed

    def _fail_step(self, error: BaseException) -> list[Group]:
        """End every request of a broken step; where there was no plan yet, whatever was to run."""
        reason = str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
        scheduler = self.scheduler
        sequences = scheduler.plan.sequences or scheduler.running or list(scheduler.waiting)
        failed: list[Group] = []
        for group in {id(s.group): s.group for s in sequences}.values():
            if group.request.request_id in self._groups:
                self._fail(group, reason, failed)
        scheduler.requeue(scheduler.plan.admitted)
        return failed

    def _take_arrived(self) -> None:
        while self._arrived:
            group = self._arrived.popleft()
            if group.request.request_id in self._groups:
                group.error = f"a request with the id {group.request.request_id!r} runs already"
                for sequence in group.sequences:
                    sequence.finish("error")
                group.metrics.finished_s = group.elapsed()
                continue
            self._groups[group.request.request_id] = group
            for sequence in group.sequences:
                self.scheduler.add(sequence)

    def _end_expired(self) -> list[Group]:
        late = self.scheduler.waiting.expired(time.monotonic())
        for group in late:
            waited = group.elapsed()
            group.error = f"the request waited {waited:.3g} s without a place, longer than queue_timeout_s allows"
            self._timed_out += 1
            self._end(group, "timeout")
        return late

    def _fetch_worthwhile(self, tokens: int, page_bytes: int) -> bool:
        """Whether so many tokens are read from disk sooner than they are computed."""
        return not self.scheduler.cost.known or self.scheduler.cost.prefill_s(tokens) > page_bytes / _DISK_RATE

    def _fail(self, group: Group, reason: str, failed: list[Group]) -> None:
        with self.results:
            group.error = reason
            self._end(group, "error")
        failed.append(group)

    def _end_aborted(self) -> None:
        while self._aborts:
            group = self._aborts.popleft()
            if self._groups.get(group.request.request_id) is group:
                self._end(group, "abort")

    def _end(self, group: Group, reason: FinishReason) -> None:
        with self.results:
            self.scheduler.end(group, reason)
            group.version += 1
            self._forget(group)

    def _forget(self, group: Group) -> None:
        group.metrics.finished_s = group.elapsed()
        self._groups.pop(group.request.request_id, None)


def _check_queueing(priority: int, queue_timeout_s: float | None) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidParameterError(f"priority must be an integer, smaller for sooner, not {priority!r}")
    if queue_timeout_s is not None and not (isinstance(queue_timeout_s, int | float) and queue_timeout_s > 0):
        raise InvalidParameterError(f"queue_timeout_s must be a number above 0, or None, not {queue_timeout_s!r}")
