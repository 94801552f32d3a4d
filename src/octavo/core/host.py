"""Facts about the machine: cores, instruction sets, caches, memory, NUMA; and the thread count that follows.

Everything is read from /proc and /sys below an injectable `root`, so tests lay out their own machines. What a system
does not tell (another operating system, a locked-down container) is None or empty, never an error.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from octavo.core.cgroup import cgroup_limits, read_text
from octavo.core.env import env

__all__ = ["Cache", "HostFacts", "NumaNode", "ThreadChoice", "default_threads", "host_facts", "parse_cpu_list"]

ISA_FLAGS: dict[str, str] = {
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx_vnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512vl": "avx512vl",
    "avx512vbmi": "avx512vbmi",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "amx_tile": "amx_tile",
    "amx_int8": "amx_int8",
    "amx_bf16": "amx_bf16",
    "asimd": "neon",
    "asimddp": "neon_dotprod",
    "i8mm": "neon_i8mm",
}
"""The kernel's name of a CPU feature -> ours; the features that kernels can use."""


@dataclass(frozen=True)
class Cache:
    """One cache of the first allowed CPU. kind: data, instruction or unified; shared_by: CPUs that share it."""

    level: int
    kind: str
    size_bytes: int
    shared_by: int


@dataclass(frozen=True)
class NumaNode:
    """One memory node and the CPUs next to it."""

    node: int
    cpus: tuple[int, ...]
    memory_bytes: int | None


@dataclass(frozen=True)
class HostFacts:
    """What is known of this machine; None: the system does not tell.

    Attributes:
        cpu_model: as the CPU names itself.
        cpus: logical CPUs that are online.
        allowed_cpus: logical CPUs that the affinity mask of this process allows.
        allowed_cores: physical cores among them (hardware threads of one core count once).
        cpu_quota: CPU time that the cgroups allow, in CPUs.
        isa: features among ISA_FLAGS.
        memory_total_bytes, memory_available_bytes: of the machine; available counts page cache as free.
        memory_limit_bytes: the tightest cgroup limit.
        memory_limit_available_bytes: least room below a cgroup limit.
        page_bytes: of an ordinary memory page; huge_page_bytes: of a huge one.
        huge_pages_free: huge pages reserved and not in use; transparent_huge_pages: always, madvise or never.
    """

    system: str
    machine: str
    cpu_model: str | None
    cpus: int
    allowed_cpus: int
    allowed_cores: int
    cpu_quota: float | None
    isa: tuple[str, ...]
    caches: tuple[Cache, ...]
    numa: tuple[NumaNode, ...]
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    memory_limit_bytes: int | None
    memory_limit_available_bytes: int | None
    page_bytes: int | None
    huge_page_bytes: int | None
    huge_pages_free: int | None
    transparent_huge_pages: str | None

    @property
    def usable_memory_bytes(self) -> int | None:
        """What this process may still take: free memory of the machine or room below the cgroup limit, the less."""
        known = [n for n in (self.memory_available_bytes, self.memory_limit_available_bytes) if n is not None]
        return min(known, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Plain types, ready for JSON."""
        return {**asdict(self), "usable_memory_bytes": self.usable_memory_bytes}


class ThreadChoice(NamedTuple):
    """How many compute threads, and why."""

    threads: int
    reason: str


def host_facts(root: Path = Path("/"), affinity: Iterable[int] | None = None) -> HostFacts:
    """Read the facts. affinity: the CPUs allowed; None asks the system."""
    online = parse_cpu_list(read_text(root / "sys/devices/system/cpu/online") or "")
    allowed = sorted(set(affinity)) if affinity is not None else _affinity(online)
    cpuinfo = _cpuinfo(root)
    meminfo = _meminfo(root / "proc/meminfo")
    limits = cgroup_limits(root)
    return HostFacts(
        system=platform.system(),
        machine=platform.machine(),
        cpu_model=cpuinfo.get("model name") or cpuinfo.get("Model") or platform.processor() or None,
        cpus=len(online) or len(allowed),
        allowed_cpus=len(allowed),
        allowed_cores=_physical_cores(root, allowed),
        cpu_quota=limits.cpus,
        isa=_isa(cpuinfo),
        caches=_caches(root, allowed[0]),
        numa=_numa(root),
        memory_total_bytes=meminfo.get("MemTotal") or _total_from_sysconf(root),
        memory_available_bytes=meminfo.get("MemAvailable"),
        memory_limit_bytes=limits.memory_bytes,
        memory_limit_available_bytes=limits.memory_available_bytes,
        page_bytes=_sysconf("SC_PAGE_SIZE"),
        huge_page_bytes=meminfo.get("Hugepagesize"),
        huge_pages_free=meminfo.get("HugePages_Free"),
        transparent_huge_pages=_bracketed(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
    )


def default_threads(facts: HostFacts | None = None, environ: Mapping[str, str] | None = None) -> ThreadChoice:
    """Threads of an engine that was given no `threads`: OCTAVO_THREADS, else the physical cores we may use.

    Two threads on one core share its vector units and its path to memory, so hardware threads gain nothing.
    A quota of 1.5 CPUs rounds up to 2: the half is used, and the scheduler takes back what is too much.
    Raises ConfigError if OCTAVO_THREADS is not possible.
    """
    facts = facts or host_facts()
    cores = _count(facts.allowed_cores, "physical core")
    if facts.allowed_cpus < facts.cpus:
        cores += f" (affinity allows {facts.allowed_cpus} of {facts.cpus} CPUs)"
    wanted = env("OCTAVO_THREADS", environ)
    if wanted is not None:
        more = f", more than the {cores} allowed" if wanted > facts.allowed_cores else ""
        return ThreadChoice(wanted, f"OCTAVO_THREADS={wanted}{more}")
    if facts.cpu_quota is not None and math.ceil(facts.cpu_quota) < facts.allowed_cores:
        return ThreadChoice(
            max(1, math.ceil(facts.cpu_quota)), f"cgroup quota of {facts.cpu_quota:g} CPUs, below the {cores}"
        )
    return ThreadChoice(facts.allowed_cores, cores)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The kernel's list format: "0-2,8" -> (0, 1, 2, 8). Parts that are no numbers are left out."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        last = last or first
        if first.isdigit() and last.isdigit() and int(last) - int(first) < 1 << 16:
            cpus.update(range(int(first), int(last) + 1))
    return tuple(sorted(cpus))


def _affinity(online: tuple[int, ...]) -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(online) or list(range(os.cpu_count() or 1))


def _physical_cores(root: Path, allowed: list[int]) -> int:
    """Cores that own at least one allowed CPU; a CPU of unknown topology counts as a core of its own."""
    cores = set()
    for cpu in allowed:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list") or ""
        cores.add(parse_cpu_list(siblings) or (cpu,))
    return max(1, len(cores))


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first CPU's fields of /proc/cpuinfo (ARM puts "Model" in a last block of its own)."""
    fields: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _isa(cpuinfo: dict[str, str]) -> tuple[str, ...]:
    present = set((cpuinfo.get("flags") or cpuinfo.get("Features") or "").split())
    return tuple(ours for theirs, ours in ISA_FLAGS.items() if theirs in present)


def _caches(root: Path, cpu: int) -> tuple[Cache, ...]:
    found = []
    for folder in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        level, size = read_text(folder / "level") or "", _kernel_size(read_text(folder / "size") or "")
        if level.isdigit() and size:
            shared = len(parse_cpu_list(read_text(folder / "shared_cpu_list") or "")) or 1
            found.append(Cache(int(level), (read_text(folder / "type") or "unified").lower(), size, shared))
    return tuple(sorted(found, key=lambda cache: (cache.level, cache.kind)))


def _kernel_size(text: str) -> int:
    """ "32K" -> 32768; 0 if it is no size."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    digits = text[:-1] if factor > 1 else text
    return int(digits) * factor if digits.isdigit() else 0


def _numa(root: Path) -> tuple[NumaNode, ...]:
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        number = folder.name.removeprefix("node")
        if number.isdigit():
            memory = _meminfo(folder / "meminfo").get("MemTotal")
            nodes.append(NumaNode(int(number), parse_cpu_list(read_text(folder / "cpulist") or ""), memory))
    return tuple(sorted(nodes, key=lambda node: node.node))


def _meminfo(path: Path) -> dict[str, int]:
    """/proc/meminfo, or a node's with its "Node 0" in front; kB become bytes, counts stay counts."""
    values: dict[str, int] = {}
    for line in (read_text(path) or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit() and name.split():
            values[name.split()[-1]] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return values


def _total_from_sysconf(root: Path) -> int | None:
    """Installed memory where there is no /proc; a fake root must not see the real machine."""
    pages, size = _sysconf("SC_PHYS_PAGES"), _sysconf("SC_PAGE_SIZE")
    return pages * size if root == Path("/") and pages and size else None


def _sysconf(name: str) -> int | None:
    try:
        value = os.sysconf(name)
    except (AttributeError, ValueError, OSError):
        return None
    return value if value > 0 else None


def _bracketed(text: str | None) -> str | None:
    """ "always [madvise] never" -> "madvise"."""
    chosen = [word.strip("[]") for word in (text or "").split() if word.startswith("[")]
    return chosen[0] if chosen else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
