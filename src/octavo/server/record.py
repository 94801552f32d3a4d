"""What is known of one HTTP request when it has ended; the request log and metrics are made from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.core.outputs import RequestOutput

__all__ = ["CLIENT_GONE", "Observer", "Record"]

CLIENT_GONE = 499
"""Status of a request whose client left before it was answered; nobody sees it but the log."""


@dataclass
class Record:
    """One HTTP request.

    route: the pattern that matched, such as "/v1/models/{model}"; the path itself may hold anything. status: 0 until it
    is answered. traceparent: the header of W3C Trace Context, if the caller sent it. stream: whether the answer came in
    pieces. outputs: the end of every prompt that reached an engine. finish_reasons: of all completions. error: what the
    client was told. *_s: seconds since the request came, by time.monotonic(); first_byte_s: until the answer began.
    """

    id: str
    method: str
    route: str
    started: float = field(default_factory=time.monotonic)
    model: str | None = None
    user: str | None = None
    traceparent: str | None = None
    stream: bool = False
    status: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    outputs: list[RequestOutput] = field(default_factory=list)
    first_byte_s: float | None = None
    total_s: float | None = None
    error: str | None = None

    def elapsed(self) -> float:
        """Seconds since the request came."""
        return time.monotonic() - self.started


Observer = Callable[[Record], None]
"""Called with each request when it has ended, in the event loop; must not take long."""
