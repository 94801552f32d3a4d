"""What the control groups of this process allow: CPU time and memory, for cgroup v1, v2 and hosts that mix both.

A limit may sit on any level, so every level from the process's own group up to the mount is read and the tightest
counts. Containers often see only the lower part of the tree: /proc/self/mountinfo says which part is mounted where.
Everything is read below `root`, so that a test can lay out its own /proc and /sys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["CgroupLimits", "cgroup_limits", "read_text"]

# v1 writes "no limit" as the largest page-aligned 63-bit number; no machine has 2^60 bytes.
UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True)
class CgroupLimits:
    """The tightest limits of all levels; None: no limit.

    Attributes:
        cpus: CPU quota as a number of CPUs, e.g. 1.5.
        memory_bytes: memory limit.
        memory_available_bytes: least room below a memory limit, counting page cache as free.
    """

    cpus: float | None = None
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None


def cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """Read the limits of this process; without cgroups (or on another system) all are None."""
    cpus = [_cpu_quota(level) for level in _levels(root, "cpu")]
    levels = _levels(root, "memory")
    limits = [(level, limit) for level in levels if (limit := _memory_limit(level)) is not None]
    return CgroupLimits(
        cpus=min((quota for quota in cpus if quota is not None), default=None),
        memory_bytes=min((limit for _, limit in limits), default=None),
        memory_available_bytes=min((_memory_room(level, limit) for level, limit in limits), default=None),
    )


def read_text(path: Path) -> str | None:
    """The file's text without surrounding white space; None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return None


def _levels(root: Path, controller: str) -> list[Path]:
    """Folders of the process's group for a controller and of all groups above it; v1 and v2 hierarchies alike."""
    groups = _groups(root)
    found: list[Path] = []
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        fields, tail = before.split(), after.split()
        if not separator or len(fields) < 5 or len(tail) < 3:
            continue
        kind, options = tail[0], tail[2].split(",")
        if kind == "cgroup2":
            group = groups.get("")
        elif kind == "cgroup" and controller in options:
            group = groups.get(controller)
        else:
            continue
        if group is not None:
            found += _walk(root / _unescape(fields[4]).lstrip("/"), _unescape(fields[3]), group)
    return found


def _groups(root: Path) -> dict[str, str]:
    """/proc/self/cgroup as controller -> group path; the v2 hierarchy is ""."""
    groups: dict[str, str] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            groups.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return groups


def _walk(mount: Path, mounted: str, group: str) -> list[Path]:
    """Folders from the group's up to the mount point, which shows the group `mounted` of the hierarchy."""
    try:
        below = PurePosixPath(group).relative_to(mounted)
    except ValueError:  # the mount shows another part of the tree than the path names: a namespace; its top is ours
        below = PurePosixPath()
    if ".." in below.parts:
        below = PurePosixPath()
    return [mount / below, *(mount / parent for parent in below.parents)]


def _unescape(path: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal escapes."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, char)
    return path


def _cpu_quota(level: Path) -> float | None:
    """Quota / period of one level, in CPUs."""
    text = read_text(level / "cpu.max")
    if text is not None:
        quota, period = [*text.split(), "max", "100000"][:2]
    else:
        quota = read_text(level / "cpu.cfs_quota_us") or "-1"
        period = read_text(level / "cpu.cfs_period_us") or "100000"
    try:
        cpus = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return cpus if cpus > 0 and math.isfinite(cpus) else None


def _memory_limit(level: Path) -> int | None:
    limit = _number(level / "memory.max")
    if limit is None:
        limit = _number(level / "memory.limit_in_bytes")
    return limit if limit is not None and 0 <= limit < UNLIMITED_BYTES else None


def _memory_room(level: Path, limit: int) -> int:
    """limit - use, where page cache does not count as use: the kernel drops it before it refuses memory."""
    used = _number(level / "memory.current")
    if used is None:
        used = _number(level / "memory.usage_in_bytes") or 0
    cache = 0
    fields = dict(line.split(" ", 1) for line in (read_text(level / "memory.stat") or "").splitlines() if " " in line)
    for name in ("inactive_file", "active_file"):
        value = fields.get(f"total_{name}", fields.get(name, "0"))  # v1: total_ counts the groups below, too
        cache += int(value) if value.strip().isdigit() else 0
    return max(0, limit - max(0, used - cache))


def _number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None
