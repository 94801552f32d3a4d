"""How the memory that models may take is divided among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from octavo.core.env import env
from octavo.core.errors import OctavoError
from octavo.core.host import host_facts
from octavo.formats.gguf import GGUFFile
from octavo.formats.references import resolve
from octavo.models.loader import estimate_weight_bytes
from octavo.server.config import ModelSpec

__all__ = ["Share", "default_budget", "share_for", "weight_bytes"]

_USABLE = 0.9
"""Part of the usable memory that models get: the rest is for the requests themselves."""
_KV_PART = 0.85
"""Part of a model's room that its KV cache gets: buffers of a step and swap space need some."""


@dataclass(frozen=True)
class Share:
    """What one model will take. weight_bytes: an estimate. kv_cache_bytes: given, or what is left for it."""

    weight_bytes: int
    kv_cache_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_cache_bytes


def default_budget() -> int | None:
    """Bytes for all models together; None: the system does not tell."""
    usable = host_facts().usable_memory_bytes
    return None if usable is None else int(usable * _USABLE)


def weight_bytes(spec: ModelSpec, *, download: bool) -> int:
    """About what a model's weights take, from its file. Raises ModelError, DownloadError."""
    path = resolve(spec.reference, download=download)
    with GGUFFile.open(path) as file:
        return estimate_weight_bytes(file, spec.options.get("backend") or env("OCTAVO_BACKEND"))


def share_for(spec: ModelSpec, others: Sequence[ModelSpec], free_bytes: int) -> Share:
    """What a model will take of the free memory, if the others are to be loaded beside it later.

    Raises ModelError, DownloadError: the model cannot be found.
    """
    weights = weight_bytes(spec, download=True)
    given = _given(spec.options)
    if given is not None:
        return Share(weights, given)
    waiting = 0
    for other in others:
        with suppress(OctavoError):  # not downloaded: it is reckoned with when it is there
            waiting += weight_bytes(other, download=False)
    left = (free_bytes - weights - waiting) / (1 + len(others))
    if left <= 0:  # not all at a time
        left = free_bytes - weights
    return Share(weights, max(0, int(left * _KV_PART)))


def _given(options: Mapping[str, Any]) -> int | None:
    value = options.get("kv_cache_bytes")
    return None if value is None else int(value)
