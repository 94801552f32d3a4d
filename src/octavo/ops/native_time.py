"""How much of a run is spent inside the C++ extension, and so how much outside it, in Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from octavo.ops.native import NativeOps

__all__ = ["NativeTime", "timed_calls"]

_CALLS = ("linear", "rope_kv_write", "attention", "embedding", "rms_norm", "softcap", "run", "argmax")


class NativeTime:
    """Calls into the extension so far, and the seconds between entering and leaving them."""

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter

        def timed(*arguments: Any) -> Any:
            start = clock()
            result = function(*arguments)
            self.seconds += clock() - start
            self.calls += 1
            return result

        return timed


class _TimedContext:
    """Stands in for a Context: the calls that compute are timed, all else is passed on."""

    def __init__(self, context: Any, into: NativeTime) -> None:
        self._plain = context
        for name in _CALLS:
            setattr(self, name, into._wrap(getattr(context, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


@contextmanager
def timed_calls(ops: NativeOps) -> Iterator[NativeTime]:
    """Time every call of this instance into the extension while the context lasts.

    Each call then takes about 0.2 us more of Python, which counts as time outside the extension.
    """
    plain, spent = ops._context, NativeTime()
    timed: Any = _TimedContext(plain, spent)
    ops._context = timed
    try:
        yield spent
    finally:
        ops._context = plain
