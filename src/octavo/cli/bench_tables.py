"""The reports of `octavo bench` as tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from octavo.cli.terminal import is_terminal
from octavo.core.memory import format_bytes
from octavo.measure.report import Report

__all__ = ["engine_table", "kernel_table"]

# A pipe has no width of its own; these tables need about this much.
PIPE_WIDTH = 132


def engine_table(report: Report) -> None:
    """Print a row per batch size: rates, what the limits would allow, and the share of it."""
    columns = ["batch", "prefill tok/s", "(best)", "limit", "of limit", "decode tok/s", "(best)", "limit", "of limit"]
    table = _table([*columns, "ms/step", "outside native"])
    for row in report.rows:
        split = row["split"] or {}
        table.add_row(
            str(row["batch"]),
            *_phase(row, "prefill"),
            *_phase(row, "decode"),
            _number(row["decode_step_ms"], 2),
            _percent(split.get("outside_native_fraction")),
        )
    host = report.host
    first = report.rows[0] if report.rows else {}
    title = f"{host['model']}, {format_bytes(host['stream_bytes'])} per step"
    if first:
        title += f", {first['prompt_tokens']} prompt and {first['output_tokens']} output tokens"
    _print(report, title, table)


def kernel_table(report: Report) -> None:
    """Print a row per op, format and number of rows."""
    table = _table(
        ["op", "format", "rows", "us", "GB/s", "of stream", "GMAC/s", "of dot peak", "limit", "of limit", "x"]
    )
    for row in report.rows:
        table.add_row(
            row["op"] if row.get("phase") is None else f"{row['op']} {row['phase']} {row['context']}",
            row.get("format") or row.get("kv_dtype") or "",
            str(row["tokens"]),
            _number(row["time_us"], 1),
            _number(row["gb_s"], 1),
            _percent(row["stream_fraction"]),
            _number(row["gmac_s"], 1),
            _percent(row["dot_fraction"]),
            row["limit"] or "",
            _percent(row["limit_fraction"]),
            _percent(row["limit_fraction_best"]),
            _number(row.get("relative_time"), 2),
        )
    shapes = {"x".join(map(str, row["shape"])) for row in report.rows if row["op"] == "linear"}
    _print(report, f"kernels{', matrices ' + ', '.join(sorted(shapes)) if shapes else ''}", table)


def _print(report: Report, title: str, table: Table) -> None:
    host = report.host
    console = Console(highlight=False)
    if not is_terminal(console.file):
        console.width = PIPE_WIDTH
    where = host["cpu_model"] or host["machine"]
    threads = "" if host["threads"] is None else f", {host['threads']} threads"
    console.print(f"{title}\n{where}{threads}, tier {host['tier'] or 'none (reference backend)'}", markup=False)
    console.print(f"limits: {_limits(host)}", markup=False)
    console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", markup=False)


def _limits(host: dict[str, Any]) -> str:
    parts = []
    for name, unit, key in (("stream", "GB/s", "stream_gb_s"), ("dot", "GMAC/s", "dot_gmac_s")):
        if host[key] is not None:
            parts.append(f"{name} {host[key]:.1f} {unit} (best {host[f'{key}_best']:.1f})")
    return f"{', '.join(parts) or 'not measured'}; {host['limit_samples']} samples"


def _table(headers: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number == 0 or header in ("format", "limit") else "right")
    return table


def _phase(row: dict[str, Any], name: str) -> list[str]:
    bound, limit = row[f"{name}_limit"], row[f"{name}_limit_tok_s"]
    return [
        _number(row[f"{name}_tok_s"], 1),
        _number(row[f"{name}_tok_s_best"], 1),
        "" if limit is None else f"{limit:.0f} {bound}",
        _percent(row[f"{name}_limit_fraction"]),
    ]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f}%"
