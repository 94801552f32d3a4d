"""uvicorn's HTTP/1.1 protocol with a limit on headers, which it has none of its own for."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["LimitedProtocol"]

_ANSWER = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b"
)


class LimitedProtocol(HttpToolsProtocol):
    """A connection. max_header_bytes: of the request line and all headers of one request."""

    max_header_bytes = 64 * 2**10

    @classmethod
    def of(cls, max_header_bytes: int) -> type[LimitedProtocol]:
        """A protocol with that limit; uvicorn makes one for each connection."""
        return type("LimitedProtocol", (cls,), {"max_header_bytes": max_header_bytes})

    _before_body = True
    _received = 0

    def data_received(self, data: bytes) -> None:
        """Counts what comes until the headers are complete; what is fed past the limit is never parsed."""
        if self._before_body:
            self._received += len(data)
        super().data_received(data)
        if self._before_body and self._received > self.max_header_bytes:
            self._refuse()

    def on_message_begin(self) -> None:
        self._before_body = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._before_body, self._received = False, 0
        super().on_headers_complete()

    def _refuse(self) -> None:
        told = b"the headers are larger than %d bytes, which is the most that this server takes" % self.max_header_bytes
        self.transport.write(_ANSWER % (len(told), told))
        self.transport.close()
