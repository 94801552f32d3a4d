"""The thread that runs an engine: steps while there is work, sleep otherwise."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar
from weakref import WeakSet

from octavo.core.errors import EngineClosedError, RequestError
from octavo.engine.health import DEFAULT_STALL_AFTER_S, Health
from octavo.engine.mailbox import Courier, Mailbox
from octavo.engine.sequence import Group
from octavo.engine.step import Engine

__all__ = ["EngineLoop"]

T = TypeVar("T")
logger = logging.getLogger(__name__)

# An idle engine has pages for a disk that takes no more at the moment: it asks again after this long.
_FLUSH_PAUSE_S = 0.005
# How long the end of the interpreter waits for the steps that run then; one that hangs must not keep it.
_EXIT_WAIT_S = 10.0


class EngineLoop:
    """Owns an engine: nobody but its thread runs steps and ends requests. Its methods may be called from any thread.

    What is to be done between two steps is put into a queue that the thread empties, so that no caller waits for a
    step; some methods return a future for those who want to. The thread is a daemon, and stopped at the end of the
    interpreter.

    results: see Engine. ended: done once the thread has ended every request and itself.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine  # None once the thread has ended
        self.results = engine.results
        self._boxes: dict[Group, Mailbox] = {}  # of requests that have not ended
        self._names: dict[str, Group] = {}  # the same by id
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()  # may be filled by finalizers, at any moment
        self._gate = threading.RLock()  # of what follows; nothing that takes long is done while it is held
        self._refusal: str | None = None  # why no request is taken
        self._failed = False
        self._stopping = False
        self._drains: list[Future[None]] = []
        self.ended: Future[None] = _running_future()
        self._courier = Courier(self.abort)
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._thread.start()
        _loops.add(self)

    def add(self, box: Mailbox) -> None:
        """Queue a prepared group.

        Raises EngineClosedError, QueueFullError (see Engine.add), RequestError: its id is that of one that runs.
        """
        group, name = box.group, box.group.request.request_id
        with self._gate:
            engine = self._open()
            if self._refusal is not None:
                raise EngineClosedError(self._refusal)
            if self.find(name) is not None:
                raise RequestError(f"a request with the id {name!r} runs already; give this one another request_id")
            # First, because the thread may be done with it before `engine.add` returns.
            self._boxes[group], self._names[name] = box, group
            try:
                engine.add(group)
            except BaseException:
                self._forget(group)
                raise
        self._calls.put(_wake_up)

    def find(self, request_id: str) -> Group | None:
        """The group of that id, if it has not ended."""
        group = self._names.get(request_id)
        return None if group is None or group.finished else group

    def abort(self, group: Group) -> None:
        """End a request before the next step. Takes no lock: finalizers call it."""
        self._calls.put(partial(self._abort, [group]))

    def abort_id(self, request_id: str) -> Future[bool]:
        """The same for the request of that id; the future says whether there was one. Raises EngineClosedError."""
        return self.call(lambda engine: self._abort_id(request_id))

    def abort_all(self) -> None:
        """End all requests before the next step."""
        self._calls.put(lambda: self._abort(list(self._boxes)))

    def call(self, function: Callable[[Engine], T]) -> Future[T]:
        """Run a function on the engine between two steps. Raises EngineClosedError if there will be no more."""
        future: Future[T] = _running_future()
        with self._gate:
            self._open()
            self._calls.put(partial(self._answer, function, future))
        return future

    def drain(self) -> Future[None]:
        """Take no more requests; the future is done when those that have been taken have ended."""
        future: Future[None] = _running_future()
        with self._gate:
            if self._refusal is None:
                self._refusal = "the engine drains: it finishes the requests that it has and takes no more"
            self._drains.append(future)
            ended = self._engine is None
        if ended:
            self._end_drains()
        else:
            self._calls.put(self._end_drains)
        return future

    def stop(self) -> None:
        """End all requests and the thread, once the present step has ended; `ended` is done then."""
        self._calls.put(self._stop)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._courier.join()

    def health(self, stall_after_s: float = DEFAULT_STALL_AFTER_S) -> Health:
        """Whether it moves, or why not. Takes no lock that a step holds."""
        engine, refusal = self._engine, self._refusal
        if engine is None:
            return Health("dead" if self._failed else "closed", None, None, 0, 0, refusal)
        health = engine.health(stall_after_s)
        return replace(health, state="draining", reason=refusal) if refusal is not None and health.ok else health

    def _open(self) -> Engine:
        if self._engine is None:
            raise EngineClosedError(self._refusal)
        return self._engine

    def _run(self) -> None:
        engine, calls = self._engine, self._calls
        assert engine is not None
        reason = "the engine has been closed"
        try:
            while True:
                while not calls.empty():
                    calls.get_nowait()()
                if self._stopping:
                    break
                if engine.has_work:
                    self._tell(engine.step())
                else:
                    self._sleep(engine)
        except BaseException as error:
            logger.exception("the engine's thread has failed")
            reason, self._failed = f"the engine's thread has failed: {type(error).__name__}: {error}", True
        self._end(engine, reason)

    def _sleep(self, engine: Engine) -> None:
        pause = _FLUSH_PAUSE_S if engine.flush() else None
        with suppress(Empty):
            self._calls.get(timeout=pause)()

    def _tell(self, groups: list[Group]) -> None:
        """Wake those who wait for groups that have changed, and forget those that have ended."""
        boxes = [box for group in groups if (box := self._boxes.get(group)) is not None]
        for box in boxes:
            if box.group.unfinished == 0:
                self._forget(box.group)
        self._courier.tell(boxes)
        if self._drains:
            self._end_drains()

    def _forget(self, group: Group) -> None:
        self._boxes.pop(group, None)
        if self._names.get(group.request.request_id) is group:
            del self._names[group.request.request_id]

    def _abort(self, groups: list[Group]) -> None:
        if self._engine is not None:
            for group in groups:
                self._engine.abort(group)
            self._tell(groups)

    def _abort_id(self, request_id: str) -> bool:
        group = self.find(request_id)
        if group is not None:
            self._abort([group])
        return group is not None

    def _answer(self, function: Callable[[Engine], T], future: Future[T]) -> None:
        try:
            future.set_result(function(self._open()))
        except Exception as error:
            future.set_exception(error)

    def _end_drains(self) -> None:
        with self._gate:
            while self._drains and not self._boxes:
                self._drains.pop().set_result(None)

    def _stop(self) -> None:
        self._stopping = True

    def _end(self, engine: Engine, reason: str) -> None:
        """Nothing is taken any more; whatever has been gets its end."""
        with self._gate:
            self._refusal, self._engine = reason, None
        boxes = list(self._boxes.values())
        self._boxes.clear()
        self._names.clear()
        if self._failed:
            _bury(engine, boxes, reason)
        try:
            engine.close()
        except Exception as error:
            logger.exception("the engine could not be closed")
            _bury(engine, boxes, f"the engine could not be closed: {type(error).__name__}: {error}")
        self._courier.tell(boxes)
        self._courier.stop()
        while not self._calls.empty():
            self._calls.get_nowait()()
        self._end_drains()
        self.ended.set_result(None)


def _bury(engine: Engine, boxes: list[Mailbox], reason: str) -> None:
    """End groups whose engine cannot do it any more."""
    with engine.results:
        for group in [box.group for box in boxes if not box.group.finished]:
            group.error = reason
            for sequence in [s for s in group.sequences if not s.finished]:
                with suppress(Exception):  # its text may be what has failed
                    sequence.text.finish()
                sequence.finish_reason = "error"
            group.unfinished = 0
            group.metrics.finished_s = group.elapsed()
            group.version += 1


def _wake_up() -> None:
    """Being taken from the queue is all that it is for."""


def _running_future() -> Future[T]:
    """A future that cannot be cancelled: what it stands for happens in any case."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    return future


_loops: WeakSet[EngineLoop] = WeakSet()


@atexit.register
def _stop_all() -> None:
    """End the threads while the interpreter still stands: one that came back from a kernel later would be ended there.

    A loop whose step does not end in time is left behind; its thread is a daemon.
    """
    loops, deadline = list(_loops), time.monotonic() + _EXIT_WAIT_S
    for loop in loops:
        loop.stop()
    for loop in loops:
        loop.join(max(0.0, deadline - time.monotonic()))
