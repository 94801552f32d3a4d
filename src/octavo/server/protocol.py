"""uvicorn's HTTP/1.1 protocol with limits on headers, which it has none of its own for: their size and their time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["LimitedProtocol"]

_ANSWER = b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"


class LimitedProtocol(HttpToolsProtocol):
    """A connection.

    max_header_bytes: of the request line and all headers of one request. header_timeout_s: how long they may take to
    come, from the opening of the connection or their first byte.
    """

    max_header_bytes = 64 * 2**10
    header_timeout_s = 60.0

    @classmethod
    def of(cls, *, max_header_bytes: int, header_timeout_s: float) -> type[LimitedProtocol]:
        """A protocol with these limits; uvicorn makes one for each connection."""
        limits: dict[str, Any] = {"max_header_bytes": max_header_bytes, "header_timeout_s": header_timeout_s}
        return type("LimitedProtocol", (cls,), limits)

    _before_body = True
    _received = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts what comes until the headers are complete; what is fed past the limit is never parsed."""
        if self._before_body:
            self._received += len(data)
        super().data_received(data)
        if self._before_body and self._received > self.max_header_bytes:
            most = self.max_header_bytes
            told = f"the headers are larger than {most} bytes, which is the most that this server takes"
            self._refuse(b"431 Request Header Fields Too Large", told)

    def on_message_begin(self) -> None:
        self._before_body = True
        self._start_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._before_body, self._received = False, 0
        self._stop_timer()
        super().on_headers_complete()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.header_timeout_s, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        told = f"the headers took longer than {self.header_timeout_s:g} s"
        self._refuse(b"408 Request Timeout", told)

    def _refuse(self, status: bytes, told: str) -> None:
        if not self.transport.is_closing():
            self.transport.write(_ANSWER % (status, len(told), told.encode()))
            self.transport.close()
