#!/usr/bin/env python3
"""What HTTP costs: 16 streaming chats through `octavo serve` against the same chats in AsyncLLM alone, in turn.

    python benchmarks/server_overhead.py MODEL --streams 16 --output-tokens 256 --pairs 5

Both have the model loaded all the time, and one of them works at a time. All prompts are in the prefix cache after the
first run of each, which is not counted, so that tokens are what is compared. The server is a process of its own; its
client, which takes from the same cores, only writes down what comes (octavo.measure.http_stream). Printed is the median
of the ratios of pairs; which goes first changes from pair to pair.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from octavo import AsyncLLM, SamplingParams
from octavo.core.host import default_threads, host_facts
from octavo.formats.references import resolve
from octavo.measure.chat_load import Texts, run_load
from octavo.measure.http_stream import Site

CONTEXT = 1024


class Pair(NamedTuple):
    """tok/s alone and through the server; cores that the client took meanwhile."""

    alone: float
    served: float
    client_cores: float

    def __str__(self) -> str:
        return f"alone {self.alone:.1f} tok/s, served {self.served:.1f} tok/s, client {self.client_cores:.3f} cores"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=default_threads().threads)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there, too")
    options = parser.parse_args()
    model = str(resolve(options.model).absolute())
    chats = Texts(words=20, system_words=20).messages(0, options.streams)
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", "0", "--no-log-requests"]
    command += ["--max-model-len", str(CONTEXT), "--threads", str(options.threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            site = Site.of(_url(server))
            pairs = asyncio.run(compare(options, model, site, chats))
        finally:
            server.terminate()
    report(options, model, pairs)
    return 0


def _url(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("serving"):
            return f"{line.split()[-1]}/v1"
    raise SystemExit("octavo serve did not start")


async def compare(options: argparse.Namespace, model: str, site: Site, chats: list[Any]) -> list[Pair]:
    llm = await AsyncLLM.load(model, max_model_len=CONTEXT, threads=options.threads)
    pairs = []
    async with llm:
        for number in range(options.pairs + 1):
            if number % 2:
                alone, served = await run_alone(llm, chats, options), await run_served(site, chats, options)
            else:
                served, alone = await run_served(site, chats, options), await run_alone(llm, chats, options)
            if number:
                pairs.append(Pair(alone, *served))
                print(f"pair {number} of {options.pairs}: {pairs[-1]}", file=sys.stderr)
    return pairs


async def run_alone(llm: AsyncLLM, chats: list[Any], options: argparse.Namespace) -> float:
    params = SamplingParams(temperature=0, max_tokens=options.output_tokens, ignore_eos=True)

    async def one(messages: list[dict[str, str]]) -> int:
        return sum([len(out.outputs[0].token_ids) async for out in llm.chat(messages, params, output_kind="delta")])

    start = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(one, chats)))
    return tokens / (time.perf_counter() - start)


async def run_served(site: Site, chats: list[Any], options: argparse.Namespace) -> tuple[float, float]:
    """tok/s, and the cores that the client took."""
    body = {"max_tokens": options.output_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body |= {"stream_options": {"include_usage": True}}
    requests = [site.request("POST", "/chat/completions", {**body, "messages": each}) for each in chats]
    load = await asyncio.to_thread(run_load, site, requests, concurrency=len(requests), timeout_s=300)
    done = load.chats()
    failed = [chat.error for chat in done if chat.error is not None]
    if failed:
        raise SystemExit(f"a chat failed: {failed[0]}")
    return sum(chat.output_tokens for chat in done) / load.wall_s, load.client_s / load.wall_s


def report(options: argparse.Namespace, model: str, pairs: list[Pair]) -> None:
    ratios = [pair.served / pair.alone for pair in pairs]
    facts = host_facts()
    print(f"{Path(model).name} on {facts.cpu_model or facts.machine}, {options.threads} threads, ", end="")
    print(f"{options.streams} streams of {options.output_tokens} tokens")
    alone, served, client = (median(each) for each in zip(*pairs, strict=True))
    print(f"AsyncLLM alone {alone:.1f} tok/s, octavo serve {served:.1f} tok/s; its client took {client:.3f} cores")
    print(f"ratio {median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f} of {len(ratios)} pairs): ", end="")
    print(f"the server costs {100 * (1 - median(ratios)):.1f} % of the throughput")
    if options.json is not None:
        whole = {"host": facts.as_dict(), "model": Path(model).name, "pairs": pairs, "ratios": ratios}
        options.json.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
