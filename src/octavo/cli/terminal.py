"""Plain text for people: dim and bold where a terminal shows them, columns, and text that must not steer a terminal.

Control codes go only to a terminal, and not with NO_COLOR set (no-color.org) or TERM=dumb.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO

__all__ = ["bold", "clear_line", "columns", "dim", "is_terminal", "printable", "say", "styled"]

_UNSAFE = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def is_terminal(stream: IO[str]) -> bool:
    """Whether a stream goes to a terminal; a closed one does not."""
    try:
        return stream.isatty()
    except ValueError:
        return False


def styled(stream: IO[str]) -> bool:
    """Whether control codes may go to this stream."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def dim(text: str, stream: IO[str] | None = None) -> str:
    """text, dim if the stream (standard error unless given) shows it."""
    return f"\033[2m{text}\033[0m" if styled(stream or sys.stderr) else text


def bold(text: str, stream: IO[str] | None = None) -> str:
    """text, bold if the stream (standard output unless given) shows it."""
    return f"\033[1m{text}\033[0m" if styled(stream or sys.stdout) else text


def say(text: str) -> None:
    """One dim line on standard error: a remark, not part of the output."""
    print(dim(text), file=sys.stderr, flush=True)


def clear_line() -> str:
    """What wipes the line that the cursor is on, for standard error."""
    return "\r\033[K" if styled(sys.stderr) else "\n"


def printable(text: str) -> str:
    """text without the control characters by which it could move the cursor or retitle a terminal."""
    return text.translate(_UNSAFE)


def columns(rows: Iterable[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Rows of cells as lines with aligned columns; those whose index is in `right` are aligned to the right."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = (
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(padded).rstrip())
    return lines
