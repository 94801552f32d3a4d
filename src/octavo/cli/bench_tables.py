"""The reports of `octavo bench` as tables for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from octavo.cli.bench_common import number, percent, plain_table, print_tables
from octavo.core.memory import format_bytes
from octavo.measure.report import Report

__all__ = ["engine_table", "kernel_table"]


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
    table = plain_table([*columns, "ms/step", "outside native", "schedule + commit"])
    for row in report.rows:
        split = row["split"] or {}
        table.add_row(
            str(row["batch"]),
            *_phase(row, "prefill"),
            percent(row["prefill_attention_fraction"]),
            *_phase(row, "decode"),
            number(row["decode_step_ms"], 2),
            percent(split.get("outside_native_fraction")),
            percent(split.get("bookkeeping_fraction"), 1),
        )
    host = report.host
    first = report.rows[0] if report.rows else {}
    title = f"{host['model']}, {format_bytes(host['stream_bytes'])} per step"
    if first:
        title += f", {first['prompt_tokens']} prompt and {first['output_tokens']} output tokens"
    print_tables(report, title, table, limits=_limits(report.host))


def kernel_table(report: Report) -> None:
    """Print a row per op, format and number of rows, and then a line per format: the share of the limit at each."""
    table = plain_table(
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
            number(row["time_us"], 1),
            number(row["gb_s"], 1),
            percent(row["stream_fraction"]),
            number(row["gmac_s"], 1),
            percent(row["peak_fraction"]),
            row["peak"] or "",
            row["limit"] or "",
            percent(row["limit_fraction"]),
            percent(row["limit_fraction_best"]),
            number(row.get("relative_time"), 2),
        )
    shapes = {"x".join(map(str, row["shape"])) for row in report.rows if row["op"] == "linear"}
    title = f"kernels{', matrices ' + ', '.join(sorted(shapes)) if shapes else ''}"
    print_tables(report, title, table, *_summary(report), limits=_limits(report.host))


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
    table = plain_table(["linear", "bits", "packed", "peak", "of limit at", *counts, "time of", *counts])
    for name, rows in formats.items():
        bits = [number(rows[0][key], 2) for key in ("bits", "packed_bits")]
        fractions = [percent(row["limit_fraction"]) for row in rows]
        table.add_row(name, *bits, rows[0]["peak"], "", *fractions, "", *(number(r["relative_time"], 2) for r in rows))
    return [table]


def _limits(host: dict[str, Any]) -> str:
    parts = []
    for name, key in (("stream", "stream_gb_s"), ("dot", "dot_gmac_s"), ("bf16", "bf16_gmac_s"), ("f32", "f32_gmac_s")):
        if host[key] is not None:
            unit = "GB/s" if key == "stream_gb_s" else "GMAC/s"
            parts.append(f"{name} {host[key]:.1f} {unit} (best {host[f'{key}_best']:.1f})")
    return f"{', '.join(parts) or 'not measured'}; {host['limit_samples']} samples"


def _phase(row: dict[str, Any], name: str) -> list[str]:
    bound, limit = row[f"{name}_limit"], row[f"{name}_limit_tok_s"]
    return [
        number(row[f"{name}_tok_s"], 1),
        number(row[f"{name}_tok_s_best"], 1),
        "" if limit is None else f"{limit:.0f} {bound}",
        percent(row[f"{name}_limit_fraction"]),
    ]
