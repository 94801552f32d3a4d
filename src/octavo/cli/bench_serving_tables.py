"""The reports of the benchmarks that serve requests, as tables for people."""

from __future__ import annotations

from typing import Any

from octavo.cli.bench_common import number, percent, plain_table, print_tables, spread
from octavo.core.memory import format_bytes
from octavo.measure.report import Report

__all__ = ["batching_tables", "pool_tables", "prefix_tables", "stall_tables", "tiers_tables"]


def prefix_tables(report: Report) -> None:
    """A row per wave: time and pages; then the first token of single requests."""
    bench = report.host["bench"]
    headers = ["prefix cache", "seconds", "tok/s", "x off", "hit rate", "TTFT p50 ms", "p99 ms"]
    table = plain_table([*headers, "at once", "pages", "slots", "ideal", "over ideal", "saved"])
    single = plain_table(["single request", "prompt", "cached", "TTFT ms", "x new"])
    for row in report.rows:
        if row["wave"] == "single":
            prompt = str(row["prompt_tokens"])
            single.add_row("new", prompt, "0", spread(row["new_ms"], 1), "")
            single.add_row(
                "again", prompt, str(row["cached_tokens"]), spread(row["hit_ms"], 1), spread(row["ratio"], 1)
            )
            continue
        table.add_row(
            row["wave"],
            number(row["seconds"], 2),
            number(row["tok_s"], 0),
            spread(row["speedup"], 2),
            percent(row["hit_rate"], 1),
            number(row["ttft_p50_ms"], 0),
            number(row["ttft_p99_ms"], 0),
            str(row["peak_running"]),
            str(row["peak_pages"]),
            str(row["allocated_tokens"]),
            str(row["ideal_tokens"]),
            percent(row["excess_fraction"], 1),
            percent(row["saving_fraction"], 1),
        )
    title = (
        f"{report.host['model']}, {bench['requests']} requests, {bench['shared_tokens']} shared and "
        f"{bench['own_tokens']} own prompt tokens, {bench['output_tokens']} output tokens, "
        f"pages of {bench['block_size']}"
    )
    print_tables(report, title, table, *([single] if single.row_count else []))


def pool_tables(report: Report) -> None:
    """A row per allocator: how full its memory is, how many sequences run at once, and how long it takes."""
    bench = report.host["bench"]
    names = {"paged": "pages", "exact": "contiguous, final length", "whole": "contiguous, max_model_len"}
    headers = ["KV memory", "used of allocated", "at peak", "used of pool", "at once", "most", "preempted"]
    table = plain_table([*headers, "seconds", "output tok/s", "x max_model_len"])
    for row in report.rows:
        table.add_row(
            names[row["allocator"]],
            percent(row["utilization_mean"], 1),
            percent(row["utilization_peak"], 1),
            percent(row["pool_fraction"], 1),
            number(row["running"], 1),
            str(row["running_peak"]),
            number(row["preemptions"], 0),
            number(row["seconds"], 2),
            number(row["output_tok_s"], 0),
            spread(row["speedup"], 2),
        )
    title = (
        f"{report.host['model']}, {bench['requests']} requests, a KV cache of {bench['pool_tokens']} tokens in pages "
        f"of {bench['block_size']}, max_model_len {bench['max_model_len']}"
    )
    print_tables(report, title, table)


def batching_tables(report: Report) -> None:
    """A row per policy: throughput and latency, and both against static batching."""
    headers = ["policy", "seconds", "output tok/s", "x static", "latency mean s", "x", "p50 s", "x", "p99 s", "x"]
    table = plain_table([*headers, "schedule + commit"])
    for row in report.rows:
        latencies: list[str] = []
        for name in ("mean", "p50", "p99"):
            latencies += [number(row[f"latency_{name}_s"], 2), spread(row[f"latency_{name}_ratio"], 2)]
        table.add_row(
            row["policy"],
            number(row["seconds"], 2),
            number(row["output_tok_s"], 0),
            spread(row["throughput_ratio"], 2),
            *latencies,
            percent(row["bookkeeping_fraction"], 1),
        )
    bench = report.host["bench"]
    title = f"{report.host['model']}, {bench['requests']} requests, {bench['batch']} sequences at the same time"
    print_tables(report, title, table)


def stall_tables(report: Report) -> None:
    """A row per way to compute the prompt: the gaps between tokens of the others, and its own first token."""
    bench = report.host["bench"]
    names = {"budget": f"within {bench['stall_ms']:g} ms", "chunks": "fixed chunks", "whole": "one step"}
    headers = ["long prompt", "tokens a step", "steps", "alone p50 ms", "gap p50 ms", "p99 ms", "max ms"]
    table = plain_table([*headers, f"over {bench['stall_ms']:g} ms", "TTFT of the prompt ms", "x one step"])
    for row in report.rows:
        table.add_row(
            names[row["way"]],
            str(row["max_num_batched_tokens"]),
            number(row["steps"], 0),
            number(row["alone_p50_ms"], 1),
            number(row["gap_p50_ms"], 1),
            number(row["gap_p99_ms"], 1),
            number(row["gap_max_ms"], 1),
            percent(row["over_fraction"], 1),
            spread(row["ttft_ms"], 0),
            spread(row["ttft_ratio"], 2),
        )
    title = f"{report.host['model']}, {bench['prompt_tokens']} prompt tokens arrive among {bench['decodes']} answers"
    print_tables(report, title, table)


def tiers_tables(report: Report) -> None:
    """A row per tier: the first token, where the prompt came from, and how fast."""
    names = {
        "cold": "computed",
        "ram": "in memory",
        "warm": "on disk, files in memory",
        "disk": "on disk",
    }
    table = plain_table(["prompt", "TTFT ms", "x computed", "cached", "from disk", "loaded GB/s", "files in memory"])
    title = f"{report.host['model']}, {report.host['bench']['prompt_tokens']} prompt tokens"
    for row in report.rows:
        if row["tier"] == "files":
            title += _files(row, report.host)
            continue
        table.add_row(
            names[row["tier"]],
            spread(row["ttft_ms"], 1),
            spread(row["speedup"], 1),
            number(row["cached_tokens"], 0),
            number(row["disk_tokens"], 0),
            number(row["load_gb_s"], 2),
            percent(row["resident_fraction"]),
        )
    print_tables(report, title, table)


def _files(row: dict[str, Any], host: dict[str, Any]) -> str:
    where = f" on {host['file_system']}" if host["file_system"] else ""
    size, close = format_bytes(int(row["file_bytes"])), number(row["close_s"], 2)
    return f"; {size} of files{where}, closing after writing {close} s, the disk alone reads {row['raw_gb_s']:.2f} GB/s"
