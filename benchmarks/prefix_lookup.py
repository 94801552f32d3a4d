#!/usr/bin/env python3
"""How long it takes to find a prompt's prefix in a full cache, and to say why it missed. No model, no kernels.

    python benchmarks/prefix_lookup.py
    python benchmarks/prefix_lookup.py --prefixes 100000 --tokens 500

Three caches of as many prompts each: nothing in common; groups of 100 that share their first half; one trunk of nine
tenths that all share. In each, three kinds of look-ups in random order:

    hit        a cached prompt: all its full pages are found
    part       a cached prompt with other tokens from a random place on: that place is found, the rest of its page too
    miss       a prompt of which nothing is cached

"match" is RadixTree.match, what a waiting request costs in a step that looks at it; "explain" is what it costs once
more when it is admitted. Times are microseconds of a single call. "node" is the memory of one cached page in the tree
and its books, as the process grew; "publish" is the time of one page, from begin to free of its sequence.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from array import array
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.manager import CacheManager
from octavo.cache.radix import Namespace

VOCABULARY = 50_000
GROUP = 100
SALT = Namespace()

I32 = NDArray[np.int32]
NS_PER_US = 1_000

REASONS = {"hit": (None, "short"), "part": (None, "differs", "short"), "miss": ("new", "short")}
"""What explain may say to each kind; "short" after the last full page, None where the last token differs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefixes", type=_count, default=10_000, help="cached prompts [10000]")
    parser.add_argument("--tokens", type=_count, default=2_000, help="tokens of each [2000]")
    parser.add_argument("--page", type=_count, default=32, help="tokens of a page [32]")
    parser.add_argument("--lookups", type=_count, default=3_000, help="look-ups of each kind [3000]")
    options = parser.parse_args()
    if options.tokens < options.page:
        parser.error(f"prompts of {options.tokens} tokens have no full page of {options.page}; raise --tokens")
    print(f"{options.prefixes} prompts of {options.tokens} tokens, pages of {options.page}; microseconds\n")
    print(f"{'':24}{'match':>24}{'explain':>27}")
    print(f"{'cache':<16}{'look-up':<8}" + 2 * f"{'median':>9}{'p99':>9}{'max':>9}")
    shapes = {"distinct": (0, 1), "groups": (options.tokens // 2, GROUP), "trunk": (options.tokens * 9 // 10, 0)}
    for name, (shared, group) in shapes.items():
        # In a process of its own, so that its memory is not what another one has left.
        work = (name, options, shared, group or options.prefixes)
        process = get_context("spawn").Process(target=measure, args=work)
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(1)


def make_prompts(count: int, tokens: int, shared: int, group: int) -> I32:
    """i32 [count, tokens]; the first `shared` tokens are the same in each group of so many."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, VOCABULARY, (count, tokens), np.int32)
    for start in range(0, count, group):
        prompts[start : start + group, :shared] = prompts[start, :shared]
    return prompts


def measure(name: str, options: argparse.Namespace, shared: int, group: int) -> None:
    """Fill a cache and print its rows."""
    prompts = make_prompts(options.prefixes, options.tokens, shared, group)
    page, pages = options.page, options.tokens // options.page
    before = resident_bytes()
    cache = CacheManager(len(prompts) * pages + pages + 1, page)
    empty = resident_bytes()
    start = time.perf_counter()
    for prompt in prompts:
        tokens = array("i", prompt.tobytes())
        table = cache.begin(tokens, limit=len(tokens) - 1, namespace=SALT)
        assert table is not None
        cache.copies_done()
        cache.publish(table, tokens, len(tokens))
        cache.free(table)
    seconds, nodes = time.perf_counter() - start, len(cache.tree)
    for kind in ("hit", "part", "miss"):
        times = (
            np.array([timed(cache, tokens, kind) for tokens in questions(prompts, kind, options.lookups)]) / NS_PER_US
        )
        print(f"{name:<16}{kind:<8}" + row(times[:, 0]) + row(times[:, 1]))
    print(
        f"{'':16}{nodes} nodes; node {(resident_bytes() - empty) / nodes:.0f} bytes, pool "
        f"{(empty - before) / cache.pool.num_pages:.0f} bytes a page; publish {seconds / nodes * 1e6:.1f} us a page\n"
    )


def questions(prompts: I32, kind: str, count: int) -> Iterator[array[int]]:
    """Prompts to be looked up, each with one token more than the cached ones have."""
    rng = np.random.default_rng(1)
    for index in rng.integers(0, len(prompts), count):
        tokens = array("i", prompts[index].tobytes())
        tokens.append(0)
        if kind != "hit":
            place = 0 if kind == "miss" else int(rng.integers(1, len(tokens)))
            # No cached prompt has this token, so that nothing more is shared by chance.
            tokens[place] = VOCABULARY + 1
        yield tokens


def timed(cache: CacheManager, tokens: array[int], kind: str) -> tuple[int, int]:
    """Nanoseconds of match and of explain."""
    limit, clock = len(tokens) - 1, time.perf_counter_ns
    start = clock()
    match = cache.tree.match(tokens[:limit], SALT)
    found = clock()
    cached = match.tokens + (match.partial[1] if match.partial is not None else 0)
    asked = clock()
    miss = cache.explain(tokens, limit, SALT, cached)
    told = clock()
    assert (None if miss is None else miss.reason) in REASONS[kind]
    return found - start, told - asked


def row(times: NDArray[Any]) -> str:
    return "".join(f"{value:9.1f}" for value in (np.median(times), np.percentile(times, 99), times.max()))


def resident_bytes() -> int:
    """Memory of this process, as Linux counts it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


if __name__ == "__main__":
    main()
