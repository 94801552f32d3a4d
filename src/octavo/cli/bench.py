"""`octavo bench`: the engine or its kernels beside the machine's limits, and what the engine's parts are worth."""

from __future__ import annotations

from typing import Any

import click

from octavo.cli.bench_common import COUNT, JSON, SEED, THREADS, check_target, deliver, is_count, numbers, progress
from octavo.cli.bench_serve import serve
from octavo.cli.bench_serving import batching, pool, prefix, stall, tiers

__all__ = ["bench"]


def _shape(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """ "4096x1024" -> (4096, 1024)."""
    rows, _, columns = value.lower().partition("x")
    if not (is_count(rows) and is_count(columns)):
        raise click.BadParameter(f"{value!r} must be outputs x inputs of a matrix, as 4096x4096")
    return int(rows), int(columns)


def _names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """ "Q4_K, Q8_0" -> ("Q4_K", "Q8_0")."""
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))


@click.group()
def bench() -> None:
    """Measure the engine or its kernels, as fractions of what this machine can do, or compare ways to run requests.

    engine and kernels measure the limits (how fast memory streams, how fast int8, bf16 and f32 are multiplied) in the
    same run, again and again. serve sends chats to any server with OpenAI's API. The others serve the same requests in
    several ways by turns, and tell the ratios.
    Ctrl-C ends a benchmark early; what was measured by then is still reported.
    """


@bench.command()
@click.argument("model")
@click.option("--prompt-tokens", type=COUNT, default=512, show_default=True, help="Tokens of each prompt.")
@click.option("--output-tokens", type=COUNT, default=64, show_default=True, help="Decode steps that are timed.")
@click.option(
    "--batch",
    metavar="N,N,...",
    callback=numbers,
    default="1,4,16",
    show_default=True,
    help="Sequences at the same time.",
)
@THREADS
@click.option("--repeats", type=COUNT, default=3, show_default=True, help="Runs of each batch size, in turn.")
@click.option("--kv-cache-dtype", default="auto", help="How the KV cache is stored: auto, float16, bfloat16, float32.")
@SEED
@JSON
def engine(model: str, target: str | None, batch: tuple[int, ...], **options: Any) -> None:
    """Prefill and decode rates of MODEL in the engine itself.

    MODEL is a short name, a .gguf file or org/repo[:file-or-quant]. Prompts are random tokens, decoding is greedy and
    does not stop early, the prefix cache is off.

    \b
    octavo bench engine smollm2
    octavo bench engine ./model.gguf --prompt-tokens 512 --output-tokens 64 --batch 1,4,16 --json report.json
    """
    check_target(target)
    from octavo.cli.bench_tables import engine_table
    from octavo.measure.engine_bench import EngineBench, bench_engine

    wanted = EngineBench(batches=batch, **options)
    deliver(bench_engine(model, wanted, log=progress()), target, engine_table)


@bench.command()
@click.option(
    "--formats", metavar="NAME,...", callback=_names, default="", help="Storage formats, as Q4_K,Q8_0.  [default: all]"
)
@click.option(
    "--ops",
    metavar="NAME,...",
    callback=_names,
    default="",
    help="Among linear, attention, rms_norm, embedding.  [default: all]",
)
@click.option(
    "--shape", metavar="NxK", callback=_shape, default="4096x4096", show_default=True, help="Of the weight matrices."
)
@click.option(
    "--rows",
    metavar="M,M,...",
    callback=numbers,
    default="1,2,4,8,16,128,512",
    show_default=True,
    help="Rows of the input.",
)
@THREADS
@click.option("--seconds", type=float, default=0.25, show_default=True, help="For each figure.")
@JSON
def kernels(target: str | None, shape: tuple[int, int], rows: tuple[int, ...], **options: Any) -> None:
    """Rates of the native ops, per op, storage format and number of rows.

    Weights are random and larger than the last-level cache, as a model's are. Attention has a context of 8,192 tokens,
    of which it computes the last one (decode) or all (prefill). The last table says for each format which share of the
    limit it reaches at each number of rows, and how much longer more rows take than the fewest.

    \b
    octavo bench kernels --formats Q4_K,Q8_0 --rows 1,4,16,512
    octavo bench kernels --ops attention --json -
    """
    check_target(target)
    from octavo.cli.bench_tables import kernel_table
    from octavo.measure.kernel_bench import KernelBench, bench_kernels

    if not options["ops"]:
        options.pop("ops")
    wanted = KernelBench(rows=shape[0], columns=shape[1], tokens=rows, **options)
    deliver(bench_kernels(wanted, log=progress()), target, kernel_table)


for command in (prefix, pool, batching, stall, tiers, serve):
    bench.add_command(command)
