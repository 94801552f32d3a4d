"""How much of the machine others took while something was measured: what makes a figure worth less than it looks."""

from __future__ import annotations

import os
import time
from pathlib import Path

from octavo.measure.report import Report

__all__ = ["Neighbours"]

# Above this share of the CPUs, a report says that others were there.
NOISY = 0.05

_STAT = Path("/proc/stat")
# Columns of /proc/stat that are not idle: user, nice, system, irq, softirq, and what a hypervisor took (steal).
_BUSY = (0, 1, 2, 5, 6, 7)


class Neighbours:
    """Watches from when it is made. Linux tells; elsewhere every answer is None."""

    def __init__(self, stat: Path = _STAT) -> None:
        self._stat = stat
        self._busy_s, self._own_s, self._start = _busy_s(stat), _own_s(), time.perf_counter()

    def fraction(self) -> float | None:
        """CPU time of all other processes, and of the hypervisor, over that of all CPUs since the start."""
        busy_s, own_s, seconds = _busy_s(self._stat), _own_s(), time.perf_counter() - self._start
        if busy_s is None or self._busy_s is None or seconds <= 0:
            return None
        others_s = (busy_s - self._busy_s) - (own_s - self._own_s)
        return max(0.0, min(1.0, others_s / (seconds * (os.cpu_count() or 1))))

    def tell(self, report: Report) -> None:
        """Put the fraction into the report's host (other_cpu_fraction), and a note to it if it is not small."""
        others = report.host["other_cpu_fraction"] = self.fraction()
        if others is not None and others >= NOISY:
            report.notes.append(f"other processes took {100 * others:.0f} % of the CPUs meanwhile")


def _busy_s(stat: Path) -> float | None:
    try:
        first = stat.read_text(encoding="ascii").partition("\n")[0].split()
        return sum(int(first[1 + column]) for column in _BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _own_s() -> float:
    """Of this process and its children that have ended."""
    return sum(os.times()[:4])
