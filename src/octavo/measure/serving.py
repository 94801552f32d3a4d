"""A client that sends a workload to an engine in this process, and what it sees: when each token came, and the state.

Open loop: a request is sent when it is due, whether or not the engine keeps up, and its latency counts from the time at
which it was due, so that a slow engine cannot hide behind a client that waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.core.errors import RequestError
from octavo.core.outputs import FinishReason, RequestMetrics
from octavo.core.params import SamplingParams
from octavo.engine.sequence import Group
from octavo.engine.step import Engine, EngineStats
from octavo.measure.workloads import Item

__all__ = ["Client", "Run", "Served", "State", "serve"]


@dataclass
class Served:
    """One request as its client saw it; seconds from the start of the run.

    token_s: when each token came, which is at the end of its step. reason, metrics: of the end; None until then.
    """

    item: Item
    token_s: list[float] = field(default_factory=list)
    reason: FinishReason | None = None
    finished_s: float | None = None
    metrics: RequestMetrics | None = None

    @property
    def ttft_s(self) -> float | None:
        """From when it was due to its first token; None if there was none."""
        return self.token_s[0] - self.item.arrival_s if self.token_s else None

    @property
    def latency_s(self) -> float | None:
        """From when it was due to its end."""
        return None if self.finished_s is None else self.finished_s - self.item.arrival_s


@dataclass(frozen=True)
class State:
    """The engine after a step.

    step_s: how long the step took. lengths: tokens of each running sequence. waiting: sequences, and requests that the
    client holds back. used_slots, allocated_slots: of KV pages, see EngineStats; used_pages: that sequences hold.
    reserved_slots: what the client's requests under way have reserved (see `serve`).
    """

    time_s: float
    step_s: float
    lengths: tuple[int, ...]
    waiting: int
    used_pages: int
    used_slots: int
    allocated_slots: int
    reserved_slots: int = 0

    @property
    def running(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class Run:
    """A workload that has been served. before, after: the engine's counts. states: after each step, if asked for."""

    requests: list[Served]
    wall_s: float
    before: EngineStats
    after: EngineStats
    states: list[State]

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, cached or not."""
        return sum(len(served.item.prompt_token_ids) for served in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(len(served.token_s) for served in self.requests)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        return sum(served.metrics.cached_prompt_tokens for served in self.requests if served.metrics)

    @property
    def bookkeeping_fraction(self) -> float:
        """Share of the steps' time that was spent in scheduling and in committing their tokens."""
        stages = ("schedule_s", "run_s", "sample_s", "commit_s")
        spent = {name: getattr(self.after, name) - getattr(self.before, name) for name in stages}
        total = sum(spent.values())
        return (spent["schedule_s"] + spent["commit_s"]) / total if total else 0.0

    @property
    def preemptions(self) -> int:
        return self.after.preemptions - self.before.preemptions

    @property
    def latencies_s(self) -> list[float]:
        return [served.latency_s for served in self.requests if served.latency_s is not None]

    @property
    def ttfts_s(self) -> list[float]:
        return [served.ttft_s for served in self.requests if served.ttft_s is not None]


class Client:
    """Sends requests and steps the engine. Requests are greedy and get exactly the tokens they ask for."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.perf_counter) -> None:
        self.engine = engine
        self._clock = clock
        self._start = clock()
        self._under_way: dict[str, tuple[Group, Served]] = {}

    @property
    def under_way(self) -> int:
        """Requests that have been sent and not ended."""
        return len(self._under_way)

    def now(self) -> float:
        """Seconds since the client was made."""
        return self._clock() - self._start

    def send(self, item: Item) -> Served:
        """Queue a request. What is returned changes as its tokens come."""
        engine = self.engine
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=item.output_tokens)
        group = engine.prepare(engine.make_request(item.prompt_token_ids, params, priority=item.priority))
        served = Served(item)
        self._under_way[group.request.request_id] = group, served
        engine.add(group)
        return served

    def step(self) -> list[Served]:
        """One step of the engine; returns the requests that ended in it. Raises RequestError if one of them failed."""
        groups = self.engine.step()
        now = self.now()
        return [ended for group in groups if (ended := self._see(group, now)) is not None]

    def abort(self) -> None:
        """End all requests that are under way."""
        for group, _ in self._under_way.values():
            self.engine.abort(group)
        self._under_way.clear()

    def _see(self, group: Group, now: float) -> Served | None:
        _, served = self._under_way[group.request.request_id]
        if group.error is not None:
            raise RequestError(f"a request of the benchmark failed: {group.error}")
        sequence = group.sequences[0]
        new = len(sequence.tokens) - sequence.prompt_length - len(served.token_s)
        served.token_s += [now] * new
        if not group.finished:
            return None
        output = group.output()  # the text is made, as for any caller
        served.reason, served.finished_s, served.metrics = output.outputs[0].finish_reason, now, output.metrics
        del self._under_way[group.request.request_id]
        return served


def serve(
    engine: Engine,
    items: Sequence[Item],
    *,
    states: bool = False,
    reserve: Callable[[Item], int] | None = None,
    reservable: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Run:
    """Send each request when it is due, and step until all have ended.

    states: keep the engine's state after each step. reserve: slots that a request holds from its start to its end; one
    is then sent, in order, only while all under way hold at most `reservable` (a cache without pages, see pool_bench).
    Raises RequestError: a request failed. What is under way is aborted when the run is broken off.
    """
    client, due = Client(engine, clock), deque(sorted(items, key=lambda item: item.arrival_s))
    requests: list[Served] = []
    seen: list[State] = []
    reserved, before = 0, engine.stats()
    try:
        while due or client.under_way:
            start = client.now()
            while due and due[0].arrival_s <= start:
                slots = reserve(due[0]) if reserve is not None else 0
                if client.under_way and reserved + slots > reservable > 0:
                    break
                reserved += slots
                requests.append(client.send(due.popleft()))
            if not client.under_way:
                sleep(due[0].arrival_s - start)
                continue
            ended = client.step()
            reserved -= sum(reserve(served.item) for served in ended) if reserve is not None else 0
            if states:
                now = client.now()
                held_back = sum(item.arrival_s <= now for item in due)
                seen.append(_state(engine, now, now - start, held_back, reserved))
        return Run(requests, client.now(), before, engine.stats(), seen)
    finally:
        client.abort()


def _state(engine: Engine, now: float, step_s: float, held_back: int, reserved: int) -> State:
    stats = engine.stats()
    return State(
        time_s=now,
        step_s=step_s,
        lengths=tuple([len(sequence.tokens) for sequence in engine.scheduler.running]),
        waiting=stats.waiting + held_back,
        used_pages=stats.cache.used_pages,
        used_slots=stats.used_slots,
        allocated_slots=stats.allocated_slots,
        reserved_slots=reserved,
    )
