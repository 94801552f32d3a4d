"""The commands of `octavo bench` that serve requests in several ways by turns: what parts of the engine are worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from octavo.cli.bench_common import COUNT, JSON, PLOT, SEED, THREADS, check_target, deliver, progress

__all__ = ["batching", "pool", "prefix", "stall", "tiers"]

BLOCK_SIZE = click.option("--block-size", type=COUNT, default=32, show_default=True, help="Tokens of a KV page.")


def _repeats(default: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--repeats", type=COUNT, default=default, show_default=True, help="Runs of each, in turn.")


def _check(target: str | None, plot: str | None = None) -> None:
    """Files that could not be written are better known before minutes of measuring. Raises ConfigError."""
    check_target(target)
    if plot is not None:
        from octavo.measure.plots import check_plot

        check_plot(plot)
        check_target(plot, "--plot", "the plot")


@click.command(short_help="Pages and time saved by sharing a prefix.")
@click.argument("model")
@click.option("--requests", type=COUNT, default=32, show_default=True, help="Requests of a wave, all sent at once.")
@click.option("--shared-tokens", type=COUNT, default=2000, show_default=True, help="That all prompts begin with.")
@click.option("--own-tokens", type=COUNT, default=200, show_default=True, help="Of each prompt after these.")
@click.option("--output-tokens", type=COUNT, default=32, show_default=True, help="Of each answer.")
@BLOCK_SIZE
@_repeats(2)
@THREADS
@SEED
@JSON
def prefix(model: str, target: str | None, **options: Any) -> None:
    """Pages and time that requests of MODEL save by sharing a prefix.

    Waves of requests with the prefix cache off, with an empty one (cold), and with the prefix in it (warm); then single
    requests, new and fully cached.

    \b
    octavo bench prefix smollm2
    octavo bench prefix smollm2 --requests 8 --shared-tokens 500 --block-size 16
    """
    _check(target)
    from octavo.cli.bench_serving_tables import prefix_tables
    from octavo.measure.prefix_bench import PrefixBench, bench_prefix

    deliver(bench_prefix(model, PrefixBench(**options), log=progress()), target, prefix_tables)


@click.command(short_help="How much of the KV cache holds tokens, against contiguous memory.")
@click.argument("model")
@click.option("--requests", type=COUNT, default=48, show_default=True, help="Requests of each run, all sent at once.")
@click.option("--max-model-len", type=COUNT, default=2048, show_default=True, help="Most tokens of a request.")
@click.option("--pool-tokens", type=COUNT, default=8192, show_default=True, help="Tokens that the KV cache holds.")
@BLOCK_SIZE
@_repeats(2)
@THREADS
@SEED
@JSON
@PLOT
def pool(model: str, target: str | None, plot: str | None, **options: Any) -> None:
    """How much of the KV cache of MODEL holds tokens, against contiguous memory for each request.

    Prompts and answers have lognormal lengths. The same requests run with pages, with contiguous memory of their true
    final length, and of --max-model-len.

    \b
    octavo bench pool smollm2 --plot pool.png
    """
    _check(target, plot)
    from octavo.cli.bench_serving_tables import pool_tables
    from octavo.measure.plots import plot_pool
    from octavo.measure.pool_bench import PoolBench, bench_pool

    report = bench_pool(model, PoolBench(**options), log=progress())
    deliver(report, target, pool_tables, draw=plot_pool, plot=plot)


@click.command(short_help="Continuous against static batching.")
@click.argument("model")
@click.option("--requests", type=COUNT, default=128, show_default=True, help="Requests of each run.")
@click.option("--batch", type=COUNT, default=16, show_default=True, help="Sequences at the same time.")
@click.option("--rate", type=float, help="Arrivals per second, as a Poisson process.  [default: all at the start]")
@click.option("--median-tokens", type=COUNT, default=48, show_default=True, help="Of the answers, lognormal.")
@click.option("--sigma", type=float, default=1.0, show_default=True, help="Of the logarithm of their lengths.")
@click.option("--max-tokens", type=COUNT, default=512, show_default=True, help="Of an answer.")
@_repeats(3)
@THREADS
@SEED
@JSON
@PLOT
def batching(model: str, target: str | None, plot: str | None, **options: Any) -> None:
    """Continuous against static batching of MODEL, on answers whose lengths have a long tail.

    \b
    octavo bench batching smollm2
    octavo bench batching smollm2 --rate 10 --plot latency.svg
    """
    _check(target, plot)
    from octavo.cli.bench_serving_tables import batching_tables
    from octavo.measure.batching_bench import BatchingBench, bench_batching
    from octavo.measure.plots import plot_batching

    report = bench_batching(model, BatchingBench(**options), log=progress())
    deliver(report, target, batching_tables, draw=plot_batching, plot=plot)


@click.command(short_help="Time between tokens while a long prompt is computed.")
@click.argument("model")
@click.option("--prompt-tokens", type=COUNT, default=4000, show_default=True, help="Of the prompt that arrives.")
@click.option("--decodes", type=COUNT, default=8, show_default=True, help="Answers that are running.")
@click.option("--stall-ms", type=float, default=50.0, show_default=True, help="max_decode_stall_ms of the first way.")
@click.option("--arrivals", type=COUNT, default=2, show_default=True, help="Long prompts of each run.")
@_repeats(3)
@THREADS
@SEED
@JSON
@PLOT
def stall(model: str, target: str | None, plot: str | None, **options: Any) -> None:
    """What running answers of MODEL feel of a long prompt: the time between their tokens while it is computed.

    The prompt is computed in chunks within --stall-ms, in chunks of a fixed number of tokens, and all at once.

    \b
    octavo bench stall smollm2 --plot stall.png
    """
    _check(target, plot)
    from octavo.cli.bench_serving_tables import stall_tables
    from octavo.measure.plots import plot_stall
    from octavo.measure.stall_bench import StallBench, bench_stall

    report = bench_stall(model, StallBench(**options), log=progress())
    deliver(report, target, stall_tables, draw=plot_stall, plot=plot)


@click.command(short_help="First token of a long prompt: computed, in memory, on disk.")
@click.argument("model")
@click.option("--prompt-tokens", type=COUNT, default=4000, show_default=True, help="Of the prompt.")
@click.option("--dir", metavar="DIR", help="A folder on the disk to measure.  [default: that of temporary files]")
@BLOCK_SIZE
@_repeats(3)
@THREADS
@SEED
@JSON
def tiers(model: str, target: str | None, **options: Any) -> None:
    """The wait for the first token of a long prompt of MODEL: computed, cached in memory, and on disk after a restart.

    What is on disk is read twice, with its files still in memory and without. They are made in a new folder of --dir
    and deleted.

    \b
    octavo bench tiers smollm2 --dir /var/tmp
    """
    _check(target)
    from octavo.cli.bench_serving_tables import tiers_tables
    from octavo.measure.tiers_bench import TiersBench, bench_tiers

    deliver(bench_tiers(model, TiersBench(**options), log=progress()), target, tiers_tables)
