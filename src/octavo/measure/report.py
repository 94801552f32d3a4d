"""What a benchmark found, as plain types for JSON: the host, and one row for each thing measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.core.host import host_facts
from octavo.measure.limits import Rates, rates_as_json

__all__ = ["Report", "host_row", "rounded"]


@dataclass
class Report:
    """host: the machine, its limits and what ran. rows: results. notes: what a reader has to know about them.

    interrupted: it was broken off, and the rows are what there was.
    """

    host: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    def as_json(self) -> dict[str, Any]:
        """Floats have 6 significant digits."""
        whole = {"host": self.host, "rows": self.rows, "notes": self.notes, "interrupted": self.interrupted}
        result: dict[str, Any] = rounded(whole)
        return result


def host_row(*, threads: int | None, tier: str | None, samples: Sequence[Rates]) -> dict[str, Any]:
    """The machine, what else ran on it (load_average), and its limits as the samples saw them."""
    try:
        version = importlib.metadata.version("octavo")
    except importlib.metadata.PackageNotFoundError:
        version = None
    return {
        **host_facts().as_dict(),
        "octavo": version,
        "python": platform.python_version(),
        "backend": "reference" if tier is None else "native",
        "tier": tier,
        "threads": threads,
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        **rates_as_json(samples),
    }


def rounded(value: Any) -> Any:
    """Every float in a tree of dicts and lists to 6 significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value
