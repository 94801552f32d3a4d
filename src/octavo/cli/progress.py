"""How a download looks: a bar on a terminal, one line per file elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.status import Status

from octavo.cli.terminal import say, styled
from octavo.core.memory import format_bytes

__all__ = ["DownloadProgress"]


class DownloadProgress:
    """Shows on standard error what formats.download reports."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._search: Status | None = None
        self._task = TaskID(0)
        self._total: int | None = None
        self._label = ""

    def begin(self, label: str, total_bytes: int | None) -> None:
        """A transfer is looked up (no total yet), starts, or goes on with its next file (the same total)."""
        self._label = label
        if not styled(sys.stderr):
            if total_bytes is not None:
                say(f"downloading {label} ({format_bytes(total_bytes)})")
            return
        if total_bytes is None or total_bytes != self._total:
            self.end()
        self._total = total_bytes
        if total_bytes is None:
            self._search = self._console.status(escape(label))
            self._search.start()
        elif self._bar is None:
            self._start_bar()
        else:
            self._bar.update(self._task, description=label)

    def update(self, done_bytes: int) -> None:
        """So many bytes are there."""
        if self._search is not None and done_bytes:
            self.end()
            self._start_bar()
        if self._bar is not None:
            self._bar.update(self._task, completed=done_bytes)

    def note(self, message: str) -> None:
        """A line above the bar."""
        if styled(sys.stderr):
            self._console.print(message, style="dim", markup=False, highlight=False)
        else:
            say(message)

    def end(self) -> None:
        """The bar stays as it is."""
        if self._bar is not None:
            self._bar.stop()
        if self._search is not None:
            self._search.stop()
        self._bar = self._search = None

    def _start_bar(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(self._label, total=self._total)
        self._bar.start()
