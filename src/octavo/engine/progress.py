"""A progress bar for many prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from octavo.engine.sequence import Group

__all__ = ["track"]


@contextmanager
def track(total: int, shown: bool) -> Iterator[Callable[[Group], None]]:
    """A function to be told of every group that a step has changed; it draws a bar on standard error if `shown`."""
    if not shown:
        yield lambda group: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("prompts"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, rate="")
        start, tokens = time.perf_counter(), 0

        def advance(group: Group) -> None:
            nonlocal tokens
            if group.finished:
                tokens += sum(len(s.tokens) - s.prompt_length for s in group.sequences)
                rate = tokens / max(1e-9, time.perf_counter() - start)
                bar.update(task, advance=1, rate=f"{rate:.0f} tok/s")

        yield advance
