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
PIPE_WIDTH = 150


def engine_table(report: Report) -> None:
    """Print a row per batch size: rates, what the limits would allow, and the share of it."""
    columns = [
        "batch",
        "prefill tok/s",
        "(best)",
        "limit",
        "of limit",
        "+ attention",
        "decode tok/s",
        "(best)",
        "limit",
        "of limit",
    ]
    table = _table([*columns, "ms/step", "outside native"])
    for row in report.rows:
        split = row["split"] or {}
        table.add_row(
            str(row["batch"]),
            *_phase(row, "prefill"),
            _percent(row["prefill_attention_fraction"]),
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
    """Print a row per op, format and number of rows, and then a line per format: the share of the limit at each."""
    table = _table(
        [
            "op",
            "format",
            "rows",
            "us",
            "GB/s",
            "of stream",
            "GMAC/s",
            "of peak",
            "peak",
            "limit",
            "of limit",
            "(best)",
            "x",
        ]
    )
    for row in report.rows:
        table.add_row(
            _op(row),
            row.get("format") or row.get("kv_dtype") or "",
            str(row["tokens"]),
            _number(row["time_us"], 1),
            _number(row["gb_s"], 1),
            _percent(row["stream_fraction"]),
            _number(row["gmac_s"], 1),
            _percent(row["peak_fraction"]),
            row["peak"] or "",
            row["limit"] or "",
            _percent(row["limit_fraction"]),
            _percent(row["limit_fraction_best"]),
            _number(row.get("relative_time"), 2),
        )
    shapes = {"x".join(map(str, row["shape"])) for row in report.rows if row["op"] == "linear"}
    _print(report, f"kernels{', matrices ' + ', '.join(sorted(shapes)) if shapes else ''}", table, *_summary(report))


def _op(row: dict[str, Any]) -> str:
    if row.get("phase") is None:
        return str(row["op"])
    return f"{row['op']} {row['phase']} {row['context']}, {row['heads']}/{row['kv_heads']}x{row['head_dim']}"


def _summary(report: Report) -> list[Table]:
    """linear: a line per format; of the limit at each number of rows, and how much longer they take than the fewest."""
    formats: dict[str, list[dict[str, Any]]] = {}
    for row in report.rows:
        if row["op"] == "linear":
            formats.setdefault(row["format"], []).append(row)
    if not formats:
        return []
    counts = [str(row["tokens"]) for row in next(iter(formats.values()))]
    table = _table(["linear", "bits", "packed", "peak", "of limit at", *counts, "time of", *counts])
    for name, rows in formats.items():
        bits = [_number(rows[0][key], 2) for key in ("bits", "packed_bits")]
        fractions = [_percent(row["limit_fraction"]) for row in rows]
        table.add_row(name, *bits, rows[0]["peak"], "", *fractions, "", *(_number(r["relative_time"], 2) for r in rows))
    return [table]


def _print(report: Report, title: str, *tables: Table) -> None:
    host = report.host
    console = Console(highlight=False)
    if not is_terminal(console.file):
        console.width = PIPE_WIDTH
    where = host["cpu_model"] or host["machine"]
    threads = "" if host["threads"] is None else f", {host['threads']} threads"
    console.print(f"{title}\n{where}{threads}, tier {host['tier'] or 'none (reference backend)'}", markup=False)
    console.print(f"limits: {_limits(host)}", markup=False)
    for number, table in enumerate(tables):
        if number:
            console.print()
        console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", markup=False)


def _limits(host: dict[str, Any]) -> str:
    parts = []
    for name, key in (("stream", "stream_gb_s"), ("dot", "dot_gmac_s"), ("bf16", "bf16_gmac_s"), ("f32", "f32_gmac_s")):
        if host[key] is not None:
            unit = "GB/s" if key == "stream_gb_s" else "GMAC/s"
            parts.append(f"{name} {host[key]:.1f} {unit} (best {host[f'{key}_best']:.1f})")
    return f"{', '.join(parts) or 'not measured'}; {host['limit_samples']} samples"


def _table(headers: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number == 0 or header in ("format", "limit", "peak") else "right")
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
