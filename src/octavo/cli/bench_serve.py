"""`octavo bench serve`: streaming chats against a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from octavo.cli.bench_common import (
    COUNT,
    JSON,
    PLOT,
    SEED,
    check_target,
    deliver,
    number,
    numbers,
    percent,
    plain_table,
    print_tables,
    progress,
    spread,
)

if TYPE_CHECKING:
    from octavo.measure.report import Report

__all__ = ["serve", "serve_tables"]


@click.command(short_help="Streaming chats against a server with OpenAI's API.")
@click.option("--url", required=True, help="Where it is, such as http://127.0.0.1:8000.")
@click.option("--model", help="As the server calls it.  [default: the first that it lists]")
@click.option("--api-key", help="Sent as a bearer token; in no report.")
@click.option(
    "--concurrency",
    metavar="N,N,...",
    callback=numbers,
    default="1,4,16",
    show_default=True,
    help="Chats at the same time, a run of each.",
)
@click.option("--requests", type=COUNT, help="Chats of each run.  [default: four for each at a time, at least 8]")
@click.option("--prompt-words", type=COUNT, help="Of each question.  [default: 40]")
@click.option("--prompt-tokens", type=COUNT, help="Of each whole prompt instead, as the server counts them.")
@click.option("--output-tokens", type=COUNT, default=64, show_default=True, help="Of each answer.")
@click.option(
    "--system-words",
    type=click.IntRange(min=0),
    default=300,
    show_default=True,
    help="Of a system text that all chats of a run share.",
)
@click.option("--repeats", type=COUNT, default=1, show_default=True, help="Runs of each, in turn.")
@click.option("--timeout", "timeout_s", type=float, default=300.0, show_default=True, help="Seconds of a chat.")
@SEED
@JSON
@PLOT
def serve(target: str | None, plot: str | None, prompt_words: int | None, **options: Any) -> None:
    """Streaming chats against any server with OpenAI's API: tokens per second, and the wait for them.

    So many chats run at the same time; when one ends, the next is sent. Each run has a system text of its own, so its
    first chats find nothing in a cache. The server must be another process.

    \b
    octavo bench serve --url http://127.0.0.1:8000
    octavo bench serve --url http://127.0.0.1:8000 --concurrency 1,2,4,8,16 --plot scaling.png
    """
    if prompt_words is not None:
        if options["prompt_tokens"] is not None:
            raise click.UsageError("--prompt-words and --prompt-tokens say the same thing; give one of them")
        options["prompt_words"] = prompt_words
    check_target(target)
    if plot is not None:
        from octavo.measure.plots import check_plot

        check_plot(plot)
        check_target(plot, "--plot", "the plot")
    from octavo.measure.plots import plot_serve
    from octavo.measure.serve_bench import ServeBench, bench_serve

    report = bench_serve(ServeBench(**options), log=progress())
    deliver(report, target, serve_tables, draw=plot_serve, plot=plot)


def serve_tables(report: Report) -> None:
    """A row for each number of chats at the same time."""
    headers = ["at once", "chats", "failed", "output tok/s", "x fewest", "prompt", "cached"]
    for name in ("TTFT ms", "TPOT ms", "next token ms"):
        headers += [f"{name} p50", "p90", "p99"]
    table = plain_table([*headers, "client cores"])
    slowest = report.rows[0]["output_tok_s"] if report.rows else None
    for row in report.rows:
        times: list[str] = []
        for name in ("ttft_ms", "tpot_ms", "inter_token_ms"):
            times += [number(value, 1) for value in (row[name] or dict.fromkeys(("p50", "p90", "p99"))).values()]
        rate, cached = row["output_tok_s"], row["cached_tokens"]
        table.add_row(
            str(row["concurrency"]),
            str(row["requests"]),
            str(sum(row["errors"].values())),
            spread(rate, 1),
            number(rate["median"] / slowest["median"], 2) if rate and slowest and slowest["median"] else "",
            number(row["prompt_tokens"], 0),
            percent(cached / row["prompt_tokens"]) if cached is not None and row["prompt_tokens"] else "",
            *times,
            number(row["client_cores"], 2),
        )
    bench = report.host["bench"]
    own = f"{bench['prompt_words']} words" if bench["prompt_tokens"] is None else f"{bench['prompt_tokens']} tokens"
    title = (
        f"{report.host['model']} at {report.host['url']}, {bench['system_words']} shared system words, "
        f"prompts of {own}, answers of {bench['output_tokens']} tokens; the client ran on"
    )
    print_tables(report, title, table)
