"""Start-up: from the start of a fresh process to the first token, split into its parts.

    python benchmarks/startup.py MODEL [MODEL ...] [--runs 5] [--ways run,LLM] [--json FILE]

Nothing is measured from inside: a real `octavo run -v` (or a four-line program with `LLM`) writes its log, and this
program notes when each line arrives. That is also why a line more in the log would be a line more in the table.

    imports    until the engine begins: interpreter, command line, modules
    open       model file found, header read, memory planned
    weights    weights packed, tokenizer built beside them
    first      prompt tokenized, first step run, its text written
    total      all of these: start of the process to the first text
    exit       until the process is gone
    CPU        user and system seconds of the whole process
    peak       most resident memory, file pages included

Each run is a new process and the first, which fills file caches, is not counted. Byte code is kept in a folder of its
own, as an installed package has it, even where PYTHONDONTWRITEBYTECODE is set.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["main", "measure"]

Run = dict[str, float]

COLUMNS = ("imports", "open", "weights", "first", "total", "exit", "user", "system", "peak_mb")
# The first word of a log line -> the part that it ends.
_LINES = {b"threads:": "imports", b"memory:": "open", b"loaded": "weights"}
_PROGRAM = """
import sys
from octavo import LLM, SamplingParams
llm = LLM(sys.argv[1], max_num_seqs=1, log=lambda line: print(line, file=sys.stderr, flush=True))
for output in llm.stream(sys.argv[2], SamplingParams(max_tokens=1, temperature=0)):
    print(output.outputs[0].text, flush=True)
"""


def main() -> None:
    arguments = _arguments()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as cache:
        for model in arguments.models:
            for way in arguments.ways.split(","):
                command = _command(way, model, arguments.prompt, raw=arguments.raw)
                runs = [measure(command, Path(cache)) for _ in range(arguments.runs + 1)][1:]
                results.append(summary(Path(model).stem, way, runs))
                print_table(results[-1:], header=len(results) == 1)
    text = json.dumps({"runs": arguments.runs, "cores": os.cpu_count(), "results": results}, indent=1)
    if arguments.json is None:
        print(text)
    else:
        arguments.json.write_text(text + "\n")


def measure(command: list[str], cache: Path) -> Run:
    """Run a command and return seconds (and peak_mb) by column. Raises SystemExit with its log if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(cache)
    started = time.perf_counter()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as process:  # type: ignore[call-overload]
        log, marks = _follow(process)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        marks["exit"] = time.perf_counter()
    missing = {"imports", "open", "weights", "first"} - marks.keys()
    if process.returncode or missing:
        raise SystemExit(f"{' '.join(command)}\nfailed (code {process.returncode}, no {missing}):\n{log.decode()}")
    run: Run = {}
    before = started
    for part in ("imports", "open", "weights", "first", "exit"):
        run[part], before = marks[part] - before, marks[part]
    run["total"] = marks["first"] - started
    return run | {"user": usage.ru_utime, "system": usage.ru_stime, "peak_mb": usage.ru_maxrss * 1024 / 1e6}


def _follow(process: subprocess.Popen[bytes]) -> tuple[bytes, dict[str, float]]:
    """The log of a process that runs to its end, and when each part ended."""
    assert process.stdout is not None
    assert process.stderr is not None
    log = b""
    marks: dict[str, float] = {}
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                now = time.perf_counter()
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    marks.setdefault("first", now)
                else:
                    log += data
                    for word, part in _LINES.items():
                        if log.startswith(word) or b"\n" + word in log:
                            marks.setdefault(part, now)
    return log, marks


def summary(model: str, way: str, runs: list[Run]) -> dict[str, Any]:
    """best: the run that was fastest in all, whole; median: of each column for itself."""
    best = min(runs, key=lambda run: run["total"])
    medians = {column: statistics.median(run[column] for run in runs) for column in COLUMNS}
    return {"model": model, "way": way} | {
        name: {column: round(values[column], 3) for column in COLUMNS}
        for name, values in {"best": best, "median": medians}.items()
    }


def print_table(results: list[dict[str, Any]], *, header: bool) -> None:
    if header:
        print("| model | way | | " + " | ".join(COLUMNS).replace("peak_mb", "peak MB") + " |")
        print("|" + "---|" * (3 + len(COLUMNS)))
    for result in results:
        for name in ("best", "median"):
            cells = [f"{result[name][c]:.0f}" if c == "peak_mb" else f"{result[name][c]:.2f}" for c in COLUMNS]
            print(f"| {result['model']} | {result['way']} | {name} | " + " | ".join(cells) + " |", flush=True)


def _command(way: str, model: str, prompt: str, *, raw: bool) -> list[str]:
    if way == "LLM":
        return [sys.executable, "-c", _PROGRAM, model, prompt]
    if way != "run":
        raise SystemExit(f"--ways takes run and LLM, not {way!r}")
    options = ["--max-tokens", "1", "--temperature", "0", "-v", *(["--raw"] if raw else [])]
    return [sys.executable, "-m", "octavo", "run", model, prompt, *options]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help="paths or names, as `octavo run` takes them")
    parser.add_argument("--prompt", default="Why is the sky blue?")
    parser.add_argument("--runs", type=int, default=5, help="processes of each kind, after one that is not counted")
    parser.add_argument("--ways", default="run,LLM", help="run (the command line), LLM (a program), or both")
    parser.add_argument("--raw", action="store_true", help="octavo run without the chat template")
    parser.add_argument("--json", type=Path, help="write the JSON to this file in place of standard output")
    return parser.parse_args()


if __name__ == "__main__":
    main()
