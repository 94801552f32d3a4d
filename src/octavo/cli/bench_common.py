"""What the commands of `octavo bench` share: options, where a report goes, and how a table looks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from octavo.cli.terminal import is_terminal, say
from octavo.core.errors import ConfigError

if TYPE_CHECKING:
    from octavo.measure.plots import Plot
    from octavo.measure.report import Report

__all__ = [
    "COUNT",
    "JSON",
    "PLOT",
    "SEED",
    "THREADS",
    "check_target",
    "deliver",
    "is_count",
    "number",
    "numbers",
    "percent",
    "plain_table",
    "print_tables",
    "progress",
    "spread",
]

COUNT = click.IntRange(min=1)
THREADS = click.option("--threads", type=COUNT, help="Compute threads.  [default: the physical cores that may be used]")
JSON = click.option("--json", "target", metavar="FILE", help="Write the report to a file, or to standard output (-).")
PLOT = click.option("--plot", metavar="FILE", help="Draw it to a .png or .svg file (needs octavo[plots]).")
SEED = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all that is drawn at random."
)

# A pipe has no width of its own; these tables need about this much.
PIPE_WIDTH = 200
LEFT = ("format", "limit", "peak")


def check_target(target: str | None, option: str = "--json", what: str = "the report") -> None:
    """A report that cannot be written is better known before minutes of measuring. Raises ConfigError."""
    if target is None or target == "-":
        return
    path = Path(target)
    folder = path.parent
    problem = None
    if path.is_dir():
        problem = "it is a folder"
    elif not folder.is_dir():
        problem = f"there is no folder {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        problem = "no permission"
    if problem is not None:
        raise ConfigError(f"cannot write {what} to {target} ({option}): {problem}")


def numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """ "1,4,16" -> (1, 4, 16)."""
    parts = [part.strip() for part in value.split(",")]
    if not all(map(is_count, parts)):
        raise click.BadParameter(f"{value!r} must be whole numbers of at least 1 with commas between, as 1,4,16")
    return tuple(dict.fromkeys(map(int, parts)))


def is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 7 and int(text) > 0


def progress() -> Callable[[str], None]:
    """Remarks on standard error for those who watch; a script's log is kept clean."""
    return say if is_terminal(sys.stderr) else lambda line: None


def deliver(
    report: Report,
    target: str | None,
    table: Callable[[Report], None],
    *,
    draw: Plot | None = None,
    plot: str | None = None,
) -> None:
    """Write the report where it is wanted, then end as an interrupted program if it was one.

    draw: makes the file `plot` of it, if one is wanted and there is something to draw.
    """
    text = json.dumps(report.as_json(), indent=2)
    if target == "-":
        click.echo(text)
    else:
        if target is not None:
            try:
                Path(target).write_text(text + "\n", encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"cannot write the report to {target} (--json): {error.strerror}") from error
        table(report)
    if draw is not None and plot is not None and report.rows:
        draw(report, plot)
    if report.interrupted:
        say("interrupted: the report holds what was measured by then")
        raise KeyboardInterrupt


def print_tables(report: Report, title: str, *tables: Table, limits: str | None = None) -> None:
    """Title, machine, tables with an empty line between, notes. limits: a line about them under the machine's."""
    host = report.host
    console = Console(highlight=False)
    if not is_terminal(console.file):
        console.width = PIPE_WIDTH
    where = host["cpu_model"] or host["machine"]
    threads = "" if host["threads"] is None else f", {host['threads']} threads"
    tier = f", tier {host['tier'] or 'none (reference backend)'}" if "tier" in host else ""
    console.print(f"{title}\n{where}{threads}{tier}", markup=False)
    if limits is not None:
        console.print(f"limits: {limits}", markup=False)
    for count, table in enumerate(tables):
        if count:
            console.print()
        console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", markup=False)


def plain_table(headers: list[str]) -> Table:
    """A table without lines; the first column and those in LEFT are words, the others numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for count, header in enumerate(headers):
        table.add_column(header, justify="left" if count == 0 or header in LEFT else "right")
    return table


def number(value: float | None, digits: int) -> str:
    """Empty for None."""
    return "" if value is None else f"{value:.{digits}f}"


def percent(value: float | None, digits: int = 0) -> str:
    """A fraction as percent; empty for None."""
    return "" if value is None else f"{100 * value:.{digits}f}%"


def spread(value: dict[str, Any] | None, digits: int) -> str:
    """ "5.9 (5.7-6.1)" of a Spread as JSON; one number if there was one only."""
    if value is None:
        return ""
    middle, low, high = (f"{value[name]:.{digits}f}" for name in ("median", "low", "high"))
    return middle if value["count"] == 1 else f"{middle} ({low}-{high})"
