"""`octavo bench`: the engine or its kernels, measured beside the machine's limits."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.terminal import is_terminal, say
from octavo.core.errors import ConfigError

if TYPE_CHECKING:
    from octavo.measure.report import Report

__all__ = ["bench"]


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """ "1,4,16" -> (1, 4, 16)."""
    parts = [part.strip() for part in value.split(",")]
    if not all(map(_is_count, parts)):
        raise click.BadParameter(f"{value!r} must be whole numbers of at least 1 with commas between, as 1,4,16")
    return tuple(dict.fromkeys(map(int, parts)))


def _shape(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """ "4096x1024" -> (4096, 1024)."""
    rows, _, columns = value.lower().partition("x")
    if not (_is_count(rows) and _is_count(columns)):
        raise click.BadParameter(f"{value!r} must be outputs x inputs of a matrix, as 4096x4096")
    return int(rows), int(columns)


def _names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """ "Q4_K, Q8_0" -> ("Q4_K", "Q8_0")."""
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 7 and int(text) > 0


COUNT = click.IntRange(min=1)
THREADS = click.option("--threads", type=COUNT, help="Compute threads.  [default: the physical cores that may be used]")
JSON = click.option("--json", "target", metavar="FILE", help="Write the report to a file, or to standard output (-).")


@click.group()
def bench() -> None:
    """Measure the engine or its kernels, as fractions of what this machine can do.

    The limits (how fast memory streams, how fast int8, bf16 and f32 are multiplied) are measured in the same run, again
    and again.
    Ctrl-C ends a benchmark early; what was measured by then is still reported.
    """


@bench.command()
@click.argument("model")
@click.option("--prompt-tokens", type=COUNT, default=512, show_default=True, help="Tokens of each prompt.")
@click.option("--output-tokens", type=COUNT, default=64, show_default=True, help="Decode steps that are timed.")
@click.option(
    "--batch",
    metavar="N,N,...",
    callback=_numbers,
    default="1,4,16",
    show_default=True,
    help="Sequences at the same time.",
)
@THREADS
@click.option("--repeats", type=COUNT, default=3, show_default=True, help="Runs of each batch size, in turn.")
@click.option("--kv-cache-dtype", default="auto", help="How the KV cache is stored: auto, float16, bfloat16, float32.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random prompts.")
@JSON
def engine(model: str, target: str | None, batch: tuple[int, ...], **options: Any) -> None:
    """Prefill and decode rates of MODEL in the engine itself.

    MODEL is a short name, a .gguf file or org/repo[:file-or-quant]. Prompts are random tokens, decoding is greedy and
    does not stop early, the prefix cache is off.

    \b
    octavo bench engine smollm2
    octavo bench engine ./model.gguf --prompt-tokens 512 --output-tokens 64 --batch 1,4,16 --json report.json
    """
    _check_target(target)
    from octavo.cli.bench_tables import engine_table
    from octavo.measure.engine_bench import EngineBench, bench_engine

    wanted = EngineBench(batches=batch, **options)
    _deliver(bench_engine(model, wanted, log=_progress()), target, engine_table)


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
    callback=_numbers,
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
    _check_target(target)
    from octavo.cli.bench_tables import kernel_table
    from octavo.measure.kernel_bench import KernelBench, bench_kernels

    if not options["ops"]:
        options.pop("ops")
    wanted = KernelBench(rows=shape[0], columns=shape[1], tokens=rows, **options)
    _deliver(bench_kernels(wanted, log=_progress()), target, kernel_table)


def _check_target(target: str | None) -> None:
    """A report that cannot be written is better known before minutes of measuring."""
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
        raise ConfigError(f"cannot write the report to {target} (--json): {problem}")


def _progress() -> Callable[[str], None]:
    """Remarks on standard error for those who watch; a script's log is kept clean."""
    return say if is_terminal(sys.stderr) else lambda line: None


def _deliver(report: Report, target: str | None, table: Callable[[Report], None]) -> None:
    """Write the report where it is wanted, then end as an interrupted program if it was one."""
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
    if report.interrupted:
        say("interrupted: the report holds what was measured by then")
        raise KeyboardInterrupt
