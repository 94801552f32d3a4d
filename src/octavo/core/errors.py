"""The exception tree of Octavo.

    OctavoError
     ├─ ModelError
     │   ├─ ModelNotFoundError      no such file, name or repository; says what was looked for and where
     │   ├─ ModelFormatError        a file is malformed or truncated; names the key or tensor
     │   └─ UnsupportedModelError   a sound file that holds something this version cannot run
     ├─ DownloadError               a registry or hub cannot be reached, or what came is not what was asked
     ├─ ConfigError                 a flag, field or environment variable has a value that cannot work
     │   └─ MemoryPlanError         the plan does not fit; says needed, available and what to lower
     ├─ EngineError                 the engine cannot take a request now, whatever it asks
     │   ├─ QueueFullError          max_waiting requests wait already
     │   └─ EngineClosedError       it drains, has been closed, or its thread has ended
     └─ RequestError                one request cannot be served; the engine goes on
         ├─ InvalidParameterError   a sampling parameter is out of range
         ├─ SamplingError           logits from which no token can be drawn; names the rows
         └─ ContextLengthError      prompt and answer do not fit the context window

Every message says what was asked, what is possible, and the flag or field that changes it, in one line.
"""

__all__ = [
    "ConfigError",
    "ContextLengthError",
    "DownloadError",
    "EngineClosedError",
    "EngineError",
    "InvalidParameterError",
    "MemoryPlanError",
    "ModelError",
    "ModelFormatError",
    "ModelNotFoundError",
    "OctavoError",
    "QueueFullError",
    "RequestError",
    "SamplingError",
    "UnsupportedModelError",
]


class OctavoError(Exception):
    """Root of every error that Octavo raises on purpose."""


class ModelError(OctavoError):
    """Something is wrong with a model or its file."""


class ModelNotFoundError(ModelError):
    """No model by this name or path."""


class ModelFormatError(ModelError):
    """A model file is malformed; the message names the key or tensor."""


class UnsupportedModelError(ModelError):
    """The file is sound, but this version cannot run what it holds."""


class DownloadError(OctavoError):
    """A download failed, or its content is not what was expected."""


class ConfigError(OctavoError, ValueError):
    """A flag, field or environment variable has a value that cannot work."""


class MemoryPlanError(ConfigError):
    """Weights, KV cache and buffers do not fit into the memory allowed."""


class EngineError(OctavoError):
    """The engine cannot take a request now; the same request may be taken later or by another engine."""


class QueueFullError(EngineError):
    """As many requests wait as max_waiting allows."""


class EngineClosedError(EngineError):
    """The engine drains, has been closed, or its thread has ended; the message says which."""


class RequestError(OctavoError, ValueError):
    """One request cannot be served as asked; other requests are untouched."""


class InvalidParameterError(RequestError):
    """A sampling parameter is out of its range."""


class SamplingError(RequestError):
    """Rows of logits from which no token can be drawn: NaN, +infinity, or -infinity everywhere.

    rows: row index -> reason. The other rows of the batch are sound and can be sampled without these.
    """

    def __init__(self, rows: dict[int, str]) -> None:
        super().__init__("; ".join(f"row {row}: {reason}" for row, reason in rows.items()))
        self.rows = rows


class ContextLengthError(RequestError):
    """The prompt (with the tokens to generate) is longer than the context window."""
