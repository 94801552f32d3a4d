"""From the engine's thread to the event loops of those who wait: one wake-up for each loop and step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from octavo.engine.sequence import Group

__all__ = ["Courier", "Mailbox"]


class Mailbox:
    """Where one caller waits for news of a request. It holds none: who is woken looks at the group.

    final: only the end is news. asleep: the event loop of a caller that waits. The caller sets it and then looks at
    `group.version` once more; the engine counts the version up before `asleep` is looked at: one sees the other.
    """

    __slots__ = ("_waiter", "asleep", "final", "group")

    def __init__(self, group: Group, *, final: bool = False) -> None:
        self.group = group
        self.final = final
        self.asleep: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None  # touched in the event loop alone

    async def wait(self, seen: int) -> None:
        """Until the group's version is another than `seen`; now and then it comes back without that being so."""
        loop = asyncio.get_running_loop()
        if self._waiter is not None:
            raise RuntimeError("two tasks wait for the output of one request; let one of them hand it on")
        self._waiter = loop.create_future()
        self.asleep = loop
        try:
            if self.group.version == seen:
                await self._waiter
        finally:
            self._waiter = self.asleep = None

    def wake(self) -> None:
        """In the event loop: let the caller look."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Courier:
    """A thread that wakes event loops, so that the engine's thread need not.

    Waking one writes to a socket, and whoever does that lets go of the GIL; the callers would take it and do all they
    have to do before the engine could go on to the next step, with idle cores meanwhile. Handing over to the courier
    keeps the GIL, and costs 2 us a request; the callers' work then runs beside the kernels of the next step.
    """

    def __init__(self, lost: Callable[[Group], None]) -> None:
        """lost: called, in the courier's thread, with groups of callers whose event loop has been closed."""
        self._lost = lost
        self._tasks: SimpleQueue[list[Mailbox] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="octavo-courier", daemon=True)
        self._thread.start()

    def tell(self, boxes: list[Mailbox]) -> None:
        """Wake those who wait for these groups, whose version has been counted up.

        Who does not wait costs nothing, and finds everything when it looks: slow callers get fewer, larger states.
        """
        waiting = [box for box in boxes if box.asleep is not None and not (box.final and box.group.unfinished)]
        if waiting:
            self._tasks.put(waiting)

    def stop(self) -> None:
        """End the thread once all that has been told is delivered."""
        self._tasks.put(None)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (boxes := self._tasks.get()) is not None:
            batches: dict[asyncio.AbstractEventLoop, list[Mailbox]] = {}
            for box in boxes:
                loop = box.asleep
                if loop is not None:
                    box.asleep = None  # a wake-up follows, so a caller that has slept again meanwhile is not forgotten
                    batches.setdefault(loop, []).append(box)
            for loop, batch in batches.items():
                try:
                    loop.call_soon_threadsafe(_wake, batch)
                except RuntimeError:  # it is closed
                    for box in batch:
                        self._lost(box.group)


def _wake(batch: list[Mailbox]) -> None:
    for box in batch:
        box.wake()
