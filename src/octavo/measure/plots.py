"""Pictures of reports whose shape says more than a table: matplotlib, by way of the extra [plots].

Every function draws a report to a file, PNG or SVG by its suffix. Figures are made without pyplot, which keeps state.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.errors import ConfigError
from octavo.measure.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Plot", "check_plot", "plot_batching", "plot_pool", "plot_serve", "plot_stall"]

Plot = Callable[[Report, "str | PathLike[str]"], None]
SUFFIXES = (".png", ".svg")
# Three colours that stay apart for colour-blind readers and in grey (Okabe and Ito).
COLORS = ("#0072B2", "#E69F00", "#CC3311")


def check_plot(path: str | PathLike[str]) -> None:
    """Raises ConfigError when no plot could be written to this path: another suffix, or no matplotlib."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ConfigError(f"cannot draw to {fspath(path)}: its name must end in {' or '.join(SUFFIXES)} (--plot)")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'octavo[plots]', or leave out --plot") from None


def plot_batching(report: Report, path: str | PathLike[str]) -> None:
    """The share of requests that have ended within a time, for each policy."""
    figure, (axes,) = _figure(1, "Latency of requests by batching policy", report)
    for row, color in zip(report.rows, COLORS, strict=False):
        latencies = row["latencies_s"]
        shares = [100 * (number + 1) / len(latencies) for number in range(len(latencies))]
        label = f"{row['policy']}, {row['output_tok_s']:.0f} tokens/s"
        axes.plot([0, *latencies], [0, *shares], color=color, label=label, drawstyle="steps-post")
    axes.set(xlabel="seconds from arrival to last token", ylabel="requests ended (%)", xlim=(0, None), ylim=(0, 101))
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path)


def plot_stall(report: Report, path: str | PathLike[str]) -> None:
    """The time between tokens of one running answer around the arrival of a long prompt, for each way to compute it."""
    bench = report.host["bench"]
    title = f"A prompt of {bench['prompt_tokens']} tokens arrives among {bench['decodes']} running answers"
    figure, (axes,) = _figure(1, title, report)
    labels = {
        "budget": f"chunks within {bench['stall_ms']:g} ms",
        "chunks": "chunks of {max_num_batched_tokens} tokens",
        "whole": "the whole prompt in one step",
    }
    for row, color in zip(report.rows, COLORS, strict=False):
        line, label = row["timeline"], labels[row["way"]].format(**row)
        axes.plot(line["time_s"], line["gap_ms"], color=color, label=label, linewidth=1.2, drawstyle="steps-pre")
    axes.axhline(bench["stall_ms"], color="grey", linewidth=0.8, linestyle="--")
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set(yscale="log", xlabel="seconds since the prompt came", ylabel="time since the answer's last token (ms)")
    axes.yaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path)


def plot_pool(report: Report, path: str | PathLike[str]) -> None:
    """Slots of the KV cache over time, allocated and used, for each allocator."""
    labels = {
        "paged": "pages of {block_size} tokens",
        "exact": "contiguous, true final length",
        "whole": "contiguous, max_model_len {max_model_len}",
    }
    bench = report.host["bench"]
    figure, all_axes = _figure(len(report.rows), f"KV cache of {bench['pool_tokens']} slots, mixed lengths", report)
    longest = max((row["timeline"]["time_s"][-1] for row in report.rows), default=1)
    for axes, row in zip(all_axes, report.rows, strict=True):
        line = row["timeline"]
        # A value is that of the step which ended then.
        times = [0.0, *line["time_s"]]
        for key, color, label in (
            ("allocated_slots", "#cccccc", "allocated"),
            ("used_slots", COLORS[0], "holding tokens"),
        ):
            axes.fill_between(times, [line[key][0], *line[key]], step="pre", color=color, label=label, linewidth=0)
        name = labels[row["allocator"]].format(**bench)
        axes.set_title(f"{name}: {100 * row['utilization_mean']:.0f} % used, {row['running']:.0f} at once", fontsize=10)
        axes.set(ylim=(0, 1.05 * bench["pool_tokens"]), xlim=(0, longest), ylabel="slots")
        axes.axhline(bench["pool_tokens"], color="grey", linewidth=0.8, linestyle="--")
    if all_axes:
        all_axes[0].legend(loc="upper right", frameon=False)
        all_axes[-1].set_xlabel("seconds")
    figure.savefig(path)


def plot_serve(report: Report, path: str | PathLike[str]) -> None:
    """Throughput, time to the first token and time of each further one, by chats at the same time."""
    figure, (rate, first, later) = _figure(3, f"Streaming chats at {report.host['url']}", report)
    rows = sorted(report.rows, key=lambda row: row["concurrency"])
    counts = [row["concurrency"] for row in rows]
    rates = [row["output_tok_s"]["median"] for row in rows]
    rate.plot(counts, rates, color=COLORS[0], marker="o", label="measured")
    rate.plot(counts, [rates[0] / counts[0] * each for each in counts], color="grey", linestyle="--", linewidth=0.8)
    rate.set(ylabel="output tokens/s", ylim=(0, 1.3 * max(rates) or 1))
    for axes, key, label in ((first, "ttft_ms", "first token (ms)"), (later, "inter_token_ms", "next token (ms)")):
        for percent, color in zip(("p50", "p90", "p99"), COLORS, strict=True):
            known = [(row["concurrency"], row[key][percent]) for row in rows if row[key] is not None]
            axes.plot(*zip(*known, strict=True), color=color, marker="o", label=percent) if known else None
        axes.set(ylabel=label, ylim=(0, None))
    first.legend(loc="upper left", frameon=False)
    later.set(xlabel="chats at the same time; dashed: as many times the tokens/s of the fewest", xscale="log")
    later.set_xticks(counts, [str(each) for each in counts])
    later.minorticks_off()
    figure.savefig(path)


def _figure(count: int, title: str, report: Report) -> tuple[Figure, list[Axes]]:
    """A figure of so many axes below each other, with the model and the machine under its title."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5 if count == 1 else 1 + 2.1 * count), dpi=150, layout="constrained")
    made: Any = figure.subplots(max(1, count), 1, sharex=True, squeeze=False)
    host = report.host
    threads = "" if host["threads"] is None else f", {host['threads']} threads"
    where = f"{host['model']}, {host['cpu_model'] or host['machine']}{threads}"
    figure.suptitle(f"{title}\n{where}", fontsize=10)
    all_axes: list[Axes] = list(made[:, 0])
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    return figure, all_axes if count else []
