"""The server's log: one line for each request that has ended, in logfmt, which people read and collectors parse.

    2026-03-01T12:00:00.250Z POST /v1/chat/completions status=200 model=smollm2 prompt=312 cached=304 output=64
    finish=length queue_ms=0 ttft_ms=18 total_ms=512 tok_s=129.6 stream=true id=5f0c...       (in one line)

Nothing of prompts and answers is in it. Polls that succeed (`QUIET`) leave no line.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, TextIO

from octavo.server.record import Record

__all__ = ["QUIET", "log_request", "log_to", "request_line"]

logger = logging.getLogger("octavo.server.requests")

QUIET = frozenset({"/health", "/metrics", "/load", "/dashboard/stats", "/web/{file}"})
"""Routes that are asked again and again, or beside others; only their failures are logged."""

_PLAIN = re.compile(r"[\w.:/@{}*,+-]+")
_MOST_CHARS = 300  # of one value: an error may quote what a client sent


def log_to(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Write the records of all of Octavo's loggers to a stream (None: standard error), and nowhere else."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_Formatter())
    root = logging.getLogger("octavo")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level)


def log_request(record: Record) -> None:
    """An observer (see Service) that logs the line of each request."""
    if record.status >= 400 or record.error is not None or record.route not in QUIET:
        logger.info("%s", request_line(record))


def request_line(record: Record) -> str:
    """What is known of a request, as "METHOD ROUTE name=value ..."; what is not known is left out."""
    values = {name: value for name, value in _values(record) if value is not None}
    return " ".join([record.method, record.route, *[f"{name}={_spell(value)}" for name, value in values.items()]])


def _values(record: Record) -> Iterator[tuple[str, Any]]:
    yield "status", record.status
    yield "model", record.model
    if record.prompt_tokens:
        yield "prompt", record.prompt_tokens
        yield "cached", record.cached_tokens
        yield "output", record.output_tokens
    counts = Counter(record.finish_reasons)
    yield "finish", ",".join(r if n == 1 else f"{r}*{n}" for r, n in counts.items()) or None
    metrics = [output.metrics for output in record.outputs]
    yield "queue_ms", _milliseconds(max((m.queue_s for m in metrics if m.queue_s is not None), default=None))
    yield "ttft_ms", _milliseconds(min((m.first_token_s for m in metrics if m.first_token_s), default=None))
    yield "total_ms", _milliseconds(record.total_s)
    yield "tok_s", _rate(record)
    yield "preemptions", sum(m.preemptions for m in metrics) or None
    yield "stream", True if record.stream else None
    yield "user", record.user
    yield "error", record.error
    yield "id", record.id


def _rate(record: Record) -> float | None:
    """Tokens a second after the first one of each completion, over the longest of the prompts' answers."""
    spent = max((m.decode_s for output in record.outputs if (m := output.metrics).decode_s), default=None)
    later = record.output_tokens - len(record.finish_reasons)
    return round(later / spent, 1) if spent and later > 0 else None


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _spell(value: Any) -> str:
    """A value without what would end it, or the line, early; whatever a client has sent stays inside its quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if len(text) > _MOST_CHARS:
        text = f"{text[:_MOST_CHARS]}..."
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped)
    return f'"{shown}"'


class _Formatter(logging.Formatter):
    """Time in UTC with milliseconds; a word for what is worse than information."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        if record.levelno <= logging.INFO:
            return line
        stamp, _, rest = line.partition(" ")
        return f"{stamp} {record.levelname.lower()}: {rest}"
