#!/usr/bin/env python3
"""`octavo serve` and llama.cpp's `llama-server` under the same load, in turn, as ratios.

    python benchmarks/serve_peers.py MODEL --peer FOLDER --pairs 3 --json serve_peers.json

--peer is a folder with llama-server in or below it: a build of llama.cpp. (`benchmarks/peers.py --install` leaves it
out; in a checkout, `cmake -B build -DLLAMA_OPENSSL=OFF && cmake --build build --target llama-server` makes it.)

The load is that of `octavo bench serve`: so many streaming chats at the same time, a system text that they share, and
questions of their own. A pair is one run against each, right after each other, each server freshly started with nothing
in its caches; which of the two goes first changes from pair to pair. llama-server gets a slot for each chat (-np), the
same threads, and a context for each slot as large as ours. What is printed is the median of the ratios of pairs.

Run it on a quiet machine: llama.cpp's threads spin while they wait for each other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from octavo.core.errors import OctavoError
from octavo.core.host import default_threads, host_facts
from octavo.formats.references import resolve

SERVER = "llama-server"
FIGURES = {
    "output tok/s": lambda row: row["output_tok_s"]["median"],
    "TTFT p50 ms": lambda row: row["ttft_ms"]["p50"],
    "TTFT p90 ms": lambda row: row["ttft_ms"]["p90"],
    "TTFT p99 ms": lambda row: row["ttft_ms"]["p99"],
    "TPOT p50 ms": lambda row: row["tpot_ms"]["p50"],
    "TPOT p99 ms": lambda row: row["tpot_ms"]["p99"],
}
START_S = 120


class PeerError(Exception):
    """What keeps the comparison from running, in one line."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a .gguf file, or a name that `octavo run` knows")
    parser.add_argument("--peer", type=Path, required=True, help=f"folder with {SERVER} in or below it")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--requests", type=int, default=32, help="chats of each run [32]")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--system-words", type=int, default=300)
    parser.add_argument("--prompt-words", type=int, default=40)
    parser.add_argument("--context", type=int, default=1024, help="tokens of the longest chat [1024]")
    parser.add_argument("--threads", type=int, default=default_threads().threads)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there, too")
    options = parser.parse_args()
    try:
        compare(options)
    except (OctavoError, PeerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def compare(options: argparse.Namespace) -> None:
    """Run all pairs and print what there is, after an interrupt as well."""
    model = resolve(options.model).absolute()
    commands = {"llama.cpp": peer_command(options, model), "octavo": our_command(options, model)}
    pairs: list[dict[str, dict[str, Any]]] = []
    try:
        for number in range(options.pairs):
            names = list(commands) if number % 2 == 0 else list(reversed(commands))
            pairs.append({name: run(options, commands[name]) for name in names})
            told = [f"{name} {FIGURES['output tok/s'](pairs[-1][name]):.1f} tok/s" for name in commands]
            print(f"pair {number + 1} of {options.pairs}: {', '.join(told)}", file=sys.stderr)
    finally:
        if pairs:
            report(options, model, commands, pairs)


def run(options: argparse.Namespace, command: list[str]) -> dict[str, Any]:
    """One run of the load against a freshly started server: the row of `octavo bench serve`."""
    with serving(command) as url:
        load = ["--concurrency", options.concurrency, "--requests", options.requests, "--json", "-"]
        sizes = ["--output-tokens", options.output_tokens, "--system-words", options.system_words]
        bench = [sys.executable, "-m", "octavo", "bench", "serve", "--url", url, *load, *sizes]
        words = [*bench, "--prompt-words", options.prompt_words]
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(f"`octavo bench serve` ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout)["rows"][0]
    if found["errors"]:
        raise PeerError(f"{Path(command[0]).name}: chats failed: {found['errors']}")
    return found


def peer_command(options: argparse.Namespace, model: Path) -> list[str]:
    found = sorted(path for path in options.peer.expanduser().rglob(SERVER) if path.is_file())
    if not found:
        raise PeerError(f"no {SERVER} in or below {options.peer} (--peer)")
    slots = ["-np", options.concurrency, "-c", options.concurrency * options.context]
    threads = ["-t", options.threads, "-tb", options.threads]
    return [
        *map(str, [found[0].absolute(), "-m", model, *slots, *threads, "--host", "127.0.0.1", "--port", free_port()])
    ]


def our_command(options: argparse.Namespace, model: Path) -> list[str]:
    sizes = ["--max-model-len", options.context, "--threads", options.threads]
    place = ["--port", free_port(), "--no-log-requests"]
    return [*map(str, [sys.executable, "-m", "octavo", "serve", model, *sizes, *place])]


def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def serving(command: list[str]) -> Iterator[str]:
    """The address of a server once it says that it is well; it is ended afterwards."""
    libraries = os.pathsep.join(filter(None, [str(Path(command[0]).parent), os.environ.get("LD_LIBRARY_PATH")]))
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries} if SERVER in command[0] else dict(os.environ)
    url = f"http://127.0.0.1:{command[command.index('--port') + 1]}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            end = time.monotonic() + START_S
            while not is_well(url):
                if process.poll() is not None or time.monotonic() > end:
                    raise PeerError(f"`{shlex.join(command)}` does not serve; run it to see why")
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def is_well(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def report(
    options: argparse.Namespace,
    model: Path,
    commands: dict[str, list[str]],
    pairs: list[dict[str, dict[str, Any]]],
) -> None:
    """A Markdown table and the command lines, and all figures as JSON. Ratios are ours to theirs."""
    facts = host_facts()
    print(f"\n{model.name} on {facts.cpu_model or facts.machine}, {options.threads} threads; ", end="")
    print(
        f"{options.concurrency} chats at the same time, {options.requests} in all, {options.system_words} shared ",
        end="",
    )
    print(f"system words, {options.prompt_words} own words, {options.output_tokens} output tokens\n")
    print("| | llama-server | octavo | ratio | of pairs |\n|---|---|---|---|---|")
    found = {}
    for name, figure in FIGURES.items():
        theirs, ours = ([figure(pair[who]) for pair in pairs] for who in ("llama.cpp", "octavo"))
        if not all(theirs):
            continue  # whole answers came at once, so that there is no time to compare with
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        found[name] = {"llama_cpp": theirs, "octavo": ours, "ratios": ratios}
        spread = f"{min(ratios):.2f}-{max(ratios):.2f} ({len(ratios)})"
        print(f"| {name} | {median(theirs):.1f} | {median(ours):.1f} | {median(ratios):.2f} | {spread} |")
    shown = {name: re.sub(r"--port \d+", "--port PORT", shlex.join(command)) for name, command in commands.items()}
    print("\n" + "\n".join(f"    {command}" for command in shown.values()))
    if options.json is not None:
        whole = {"host": facts.as_dict(), "model": model.name, "options": {**vars(options), "peer": None, "json": None}}
        text = json.dumps({**whole, "figures": found, "pairs": pairs, "commands": shown}, indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
