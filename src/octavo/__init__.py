"""Octavo: an LLM inference engine that is fast on an ordinary CPU.

    from octavo import LLM, SamplingParams

Names are imported when they are first used, so `import octavo` itself costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.core.errors import (
        ConfigError,
        ContextLengthError,
        DownloadError,
        EngineClosedError,
        EngineError,
        InvalidParameterError,
        MemoryPlanError,
        ModelError,
        ModelFormatError,
        ModelNotFoundError,
        OctavoError,
        QueueFullError,
        RequestError,
        SamplingError,
        UnsupportedModelError,
    )
    from octavo.core.outputs import CompletionOutput, Logprob, RequestOutput
    from octavo.core.params import SamplingParams
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.llm import LLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "ConfigError",
    "ContextLengthError",
    "DownloadError",
    "EngineClosedError",
    "EngineError",
    "InvalidParameterError",
    "Logprob",
    "MemoryPlanError",
    "ModelError",
    "ModelFormatError",
    "ModelNotFoundError",
    "OctavoError",
    "QueueFullError",
    "RequestError",
    "RequestOutput",
    "SamplingError",
    "SamplingParams",
    "UnsupportedModelError",
]

_PLACES = {
    "LLM": "octavo.engine.llm",
    "AsyncLLM": "octavo.engine.async_llm",
    "SamplingParams": "octavo.core.params",
    "CompletionOutput": "octavo.core.outputs",
    "Logprob": "octavo.core.outputs",
    "RequestOutput": "octavo.core.outputs",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    value = getattr(import_module(_PLACES.get(name, "octavo.core.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
