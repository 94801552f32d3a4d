"""Tokens into what the caller sees: text without half characters or stop strings, and log-probabilities."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from octavo.core.outputs import Logprob, TokenLogprobs

__all__ = ["Detokenize", "StopStrings", "TextBuilder", "assemble_logprobs"]


class Detokenize(Protocol):
    """What turns ids into text piece by piece (see formats/detokenizer.py)."""

    def append(self, token: int, /) -> str:
        """The text that this token completes; "" while a character is incomplete."""

    def flush(self) -> str:
        """What is left, incomplete characters as U+FFFD."""


class StopStrings:
    """Finds stop strings in text that arrives in pieces, and holds back what may become one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops = stops

    def find(self, text: str) -> tuple[int, str] | None:
        """(start, string) of the occurrence that starts first; of two that start together, the one listed first."""
        found = [(at, i) for i, stop in enumerate(self.stops) if (at := text.find(stop)) >= 0]
        if not found:
            return None
        at, index = min(found)
        return at, self.stops[index]

    def held(self, text: str) -> int:
        """How many characters at the end of `text` are the start of a stop string."""
        longest = 0
        for stop in self.stops:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest


class TextBuilder:
    """The text of one completion.

    Text that may turn out to be the start of a stop string is held back, so `text` only ever grows.
    Without stop strings, tokens become text when somebody looks: a step then pays nothing for text that nobody streams.
    One thread appends; any thread may read. pending: tokens that are not text yet; without stop strings, `append` only
    adds to them.
    """

    __slots__ = ("_detokenizer", "_held", "_include_stop", "_length", "_lock", "_parts", "_stops", "pending")

    def __init__(self, detokenizer: Detokenize, stops: tuple[str, ...] = (), *, include_stop: bool = False) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops) if stops else None
        self._include_stop = include_stop
        self.pending: list[int] = []
        self._parts: list[str] = []
        self._length = 0  # of all parts
        self._held = ""
        self._lock = threading.Lock()  # of the parts; a token joins `pending` without it

    @property
    def text(self) -> str:
        """What can be shown."""
        with self._lock:
            self._decode_pending()
            if len(self._parts) > 1:
                self._parts = ["".join(self._parts)]
            return self._parts[0] if self._parts else ""

    def since(self, start: int) -> str:
        """What can be shown from character `start` on; costs no more than that is long."""
        with self._lock:
            self._decode_pending()
            first, surplus = len(self._parts), start - self._length
            while surplus < 0:
                first -= 1
                surplus += len(self._parts[first])
            return "".join(self._parts[first:])[surplus:]

    def append(self, token: int, *, may_stop: bool = True) -> str | None:
        """Add a token; returns the stop string that it completes, if any. The text then ends there.

        may_stop: False while min_tokens forbids to stop; a stop string completed then is ordinary text.
        """
        if self._stops is None:
            self.pending.append(token)
            return None
        with self._lock:
            return self._append(token, self._stops, may_stop)

    def finish(self) -> None:
        """No more tokens: show what was held back and what is left of an incomplete character."""
        with self._lock:
            self._decode_pending()
            self._show(self._held + self._detokenizer.flush())
            self._held = ""

    def _append(self, token: int, stops: StopStrings, may_stop: bool) -> str | None:
        piece = self._detokenizer.append(token)
        pending = self._held + piece
        found = stops.find(pending) if may_stop and piece else None
        if found is not None:
            at, stop = found
            self._emit(pending, at + len(stop) if self._include_stop else at)
            self._held = ""
            return stop
        self._emit(pending, len(pending) - stops.held(pending))
        return None

    def _decode_pending(self) -> None:
        tokens = self.pending[:]
        if tokens:
            del self.pending[: len(tokens)]  # others may have joined since
            self._show("".join(map(self._detokenizer.append, tokens)))

    def _emit(self, pending: str, size: int) -> None:
        self._show(pending[:size])
        self._held = pending[size:]

    def _show(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self._length += len(text)


def assemble_logprobs(ranked: Iterable[tuple[int, float, int]], decode: Callable[[int], str]) -> TokenLogprobs:
    """(id, log-probability, rank), the sampled or given token first -> the dict that callers know."""
    return {token: Logprob(logprob, rank, decode(token)) for token, logprob, rank in ranked}
