"""How a download looks: a bar on a terminal, one line per file elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from octavo.cli.terminal import say, styled
from octavo.core.memory import format_bytes

__all__ = ["DownloadProgress"]


class DownloadProgress:
    """Shows on standard error what formats.download reports."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._total: int | None = None
        self._label = ""

    def begin(self, label: str, total_bytes: int | None) -> None:
        """A transfer starts, or goes on with its next file if the total is the same."""
        if not styled(sys.stderr):
            if total_bytes is not None:
                say(f"downloading {label} ({format_bytes(total_bytes)})")
            return
        if self._bar is None or (self._total is not None and total_bytes != self._total):
            self.end()
            self._bar = _bar()
            self._task = self._bar.add_task(label, total=total_bytes)
            self._bar.start()
        self._bar.update(self._task, description=label, total=total_bytes)
        self._total = total_bytes

    def update(self, done_bytes: int) -> None:
        """So many bytes are there."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done_bytes)

    def note(self, message: str) -> None:
        """A line above the bar."""
        if self._bar is not None:
            self._bar.console.print(message, style="dim", markup=False, highlight=False)
        else:
            say(message)

    def end(self) -> None:
        """The bar stays as it is."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = None


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
