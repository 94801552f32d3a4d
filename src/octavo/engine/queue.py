"""The waiting line: by priority, then by arrival, with a time limit for those who have not run yet."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from operator import attrgetter

from octavo.engine.sequence import Group, Sequence

__all__ = ["WaitingQueue"]

_RANK = attrgetter("rank")


class WaitingQueue:
    """Sequences in the order in which they should be admitted. No two have the same rank.

    A queue of 10,000 is one memmove of 80 kB per change, 2 us: no tree is worth its code here.
    """

    def __init__(self, sequences: Iterable[Sequence] = ()) -> None:
        self._line: list[Sequence] = sorted(sequences, key=_RANK)
        self._requests = sum(s.index == 0 for s in self._line)
        self._deadlines: list[tuple[float, int, Group]] = []  # a heap; entries of those that have run are dropped late

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._line)

    def __getitem__(self, index: int) -> Sequence:
        return self._line[index]

    @property
    def requests(self) -> int:
        """Requests whose first sequence waits."""
        return self._requests

    def add(self, sequence: Sequence) -> None:
        """Put a sequence where its rank belongs; one that has been preempted so comes before later arrivals."""
        insort(self._line, sequence, key=_RANK)
        self._requests += sequence.index == 0

    def limit(self, group: Group, timeout_s: float) -> None:
        """Let `expired` name a group that has not been given pages this many seconds after it came."""
        heapq.heappush(self._deadlines, (group.start + timeout_s, group.sequences[0].order, group))

    def remove(self, sequence: Sequence) -> bool:
        """Take a sequence out, wherever it stands; False if it does not wait."""
        at = bisect_left(self._line, sequence.rank, key=_RANK)
        if at == len(self._line) or self._line[at] is not sequence:
            return False
        del self._line[at]
        self._requests -= sequence.index == 0
        return True

    def expired(self, now: float) -> list[Group]:
        """The groups whose time was up by `now` (time.monotonic()) before they got pages; each is named once."""
        late: list[Group] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            group = heapq.heappop(self._deadlines)[2]
            if not group.finished and group.metrics.first_scheduled_s is None:
                late.append(group)
        return late
