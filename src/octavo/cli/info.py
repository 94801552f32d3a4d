"""`octavo info`: what this machine is, how many threads an engine will use here and why, how fast memory streams."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from dataclasses import dataclass
from typing import Any

import click

from octavo.core.env import env
from octavo.core.host import Cache, HostFacts, ThreadChoice, default_threads, host_facts
from octavo.core.memory import format_bytes

__all__ = ["info"]

LABEL_WIDTH = 14


@dataclass(frozen=True)
class Native:
    """The C++ extension. tier: in use, None if it cannot be imported (problem says why); tiers: all that can run here,
    best first; stream_gb_s: None if not measured."""

    tier: str | None = None
    tiers: tuple[str, ...] = ()
    stream_gb_s: float | None = None
    problem: str | None = None


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--no-measure", is_flag=True, help="Do not measure the memory stream rate (it takes about a second).")
def info(as_json: bool, no_measure: bool) -> None:
    """Show cores, instruction sets, caches, memory and the measured stream rate of this machine."""
    facts = host_facts()
    choice = default_threads(facts)
    native = _native(choice.threads, measure=not no_measure)
    if as_json:
        click.echo(json.dumps(_as_json(facts, choice, native), indent=2))
        return
    for label, value in _rows(facts, choice, native):
        click.echo(click.style(label.ljust(LABEL_WIDTH), bold=True) + value)


def _native(threads: int, *, measure: bool) -> Native:
    try:
        from octavo.ops.native import NativeOps, available_tiers, measure_stream
    except ImportError as error:
        return Native(problem=f"not available ({error})")
    return Native(NativeOps(1).tier, tuple(available_tiers()), measure_stream(threads) if measure else None)


def _version() -> str:
    try:
        return importlib.metadata.version("octavo")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


def _as_json(facts: HostFacts, choice: ThreadChoice, native: Native) -> dict[str, Any]:
    return {
        "version": _version(),
        "python": platform.python_version(),
        "backend": env("OCTAVO_BACKEND"),
        "native": {"tier": native.tier, "tiers": native.tiers, "problem": native.problem},
        "threads": {"count": choice.threads, "reason": choice.reason},
        "stream_gb_s": native.stream_gb_s,
        "models": str(env("OCTAVO_MODELS")),
        "host": facts.as_dict(),
    }


def _rows(facts: HostFacts, choice: ThreadChoice, native: Native) -> list[tuple[str, str]]:
    """The listing, label and value; rows that this system tells nothing about are left out."""
    rows = [
        ("octavo", f"{_version()}, Python {platform.python_version()}, {facts.system} {facts.machine}"),
        ("kernels", _kernels(native)),
        ("cpu", facts.cpu_model or "unknown"),
        ("cores", _cores(facts)),
        ("threads", f"{choice.threads} ({choice.reason})"),
        ("instructions", " ".join(facts.isa) or "none that kernels use, or unknown"),
        ("caches", ", ".join(map(_cache, facts.caches))),
        ("memory", _memory(facts)),
        ("stream rate", _stream(choice, native)),
        ("numa", _numa(facts)),
        ("pages", _pages(facts)),
        ("models", str(env("OCTAVO_MODELS"))),
    ]
    return [(label, value) for label, value in rows if value]


def _kernels(native: Native) -> str:
    text = f"C++ extension {native.problem}"
    if native.tier:
        chosen = f" of {', '.join(native.tiers)}" if len(native.tiers) > 1 else ""
        text = f"C++ extension, tier {native.tier}{chosen}"
    return text if env("OCTAVO_BACKEND") == "native" else f"{text}; OCTAVO_BACKEND={env('OCTAVO_BACKEND')} is in use"


def _cores(facts: HostFacts) -> str:
    text = f"{facts.allowed_cores} physical, {facts.allowed_cpus} of {facts.cpus} CPUs allowed"
    return text + (", no CPU quota" if facts.cpu_quota is None else f", quota {facts.cpu_quota:g} CPUs")


def _cache(cache: Cache) -> str:
    letter = {"data": "d", "instruction": "i"}.get(cache.kind, "")
    shared = f" (shared by {cache.shared_by} CPUs)" if cache.shared_by > 1 else ""
    return f"L{cache.level}{letter} {_binary(cache.size_bytes)}{shared}"


def _memory(facts: HostFacts) -> str:
    def size(value: int | None) -> str:
        return "unknown" if value is None else format_bytes(value)

    text = f"{size(facts.usable_memory_bytes)} available of {size(facts.memory_total_bytes)}"
    limit = facts.memory_limit_bytes
    return text + (", no cgroup limit" if limit is None else f", cgroup limit {format_bytes(limit)}")


def _stream(choice: ThreadChoice, native: Native) -> str:
    if native.stream_gb_s is None:
        return "not measured"
    plural = "" if choice.threads == 1 else "s"
    return f"{native.stream_gb_s:.1f} GB/s read with {choice.threads} thread{plural}"


def _numa(facts: HostFacts) -> str:
    if not facts.numa:
        return ""
    nodes = [f"node {node.node}: {len(node.cpus)} CPUs" for node in facts.numa]
    return f"{len(nodes)} node{'s' if len(nodes) > 1 else ''} ({', '.join(nodes)})"


def _pages(facts: HostFacts) -> str:
    parts = []
    if facts.page_bytes:
        parts.append(_binary(facts.page_bytes))
    if facts.huge_page_bytes:
        parts.append(f"huge {_binary(facts.huge_page_bytes)} ({facts.huge_pages_free or 0} reserved and free)")
    if facts.transparent_huge_pages:
        parts.append(f"transparent huge pages: {facts.transparent_huge_pages}")
    return ", ".join(parts)


def _binary(size: int) -> str:
    """Caches and pages are powers of two: 32768 -> "32 KiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"
