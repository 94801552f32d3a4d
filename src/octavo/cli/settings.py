"""The sampling settings of `octavo run`, as options and as `/set` in a chat."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

from octavo.core.errors import InvalidParameterError
from octavo.core.params import SamplingParams

__all__ = ["DEFAULT_MAX_TOKENS", "DEFAULT_MIN_P", "DEFAULT_TEMPERATURE", "Settings"]

# Some variety, and no wild tokens: a small model at temperature 1 without a filter derails within a few sentences.
DEFAULT_TEMPERATURE = 0.7
DEFAULT_MIN_P = 0.05
DEFAULT_MAX_TOKENS = 1024
_WHOLE = ("top_k", "seed", "max_tokens")


@dataclass
class Settings:
    """What to sample with. Checked by SamplingParams, whose names and ranges they have.

    seed: None draws one for each answer. max_tokens: None is DEFAULT_MAX_TOKENS, or less where the context ends.
    """

    temperature: float = DEFAULT_TEMPERATURE
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = DEFAULT_MIN_P
    seed: int | None = None
    max_tokens: int | None = None

    def params(self, prompt_tokens: int, max_model_len: int) -> SamplingParams:
        """The parameters of one answer to a prompt of so many tokens. Raises InvalidParameterError."""
        room = max(1, max_model_len - prompt_tokens)
        values: dict[str, Any] = dataclasses.asdict(self)
        if self.max_tokens is None:
            values["max_tokens"] = min(DEFAULT_MAX_TOKENS, room)
        if self.seed is None:
            values["seed"] = int.from_bytes(os.urandom(4), "little") >> 1
        return SamplingParams(**values)

    def set(self, name: str, text: str) -> None:
        """Change one setting; "none" or "auto" brings seed and max_tokens back. Raises InvalidParameterError."""
        name = name.replace("-", "_")
        names = [field.name for field in dataclasses.fields(self)]
        if name not in names:
            raise InvalidParameterError(f"there is no setting {name!r}; there are: {', '.join(names)}")
        value: float | int | None
        try:
            if name in ("seed", "max_tokens") and text.lower() in ("none", "auto"):
                value = None
            else:
                value = int(text) if name in _WHOLE else float(text)
        except ValueError:
            kind = "a whole number" if name in _WHOLE else "a number"
            raise InvalidParameterError(f"{name} must be {kind}, not {text!r}") from None
        changed = Settings(**(dataclasses.asdict(self) | {name: value}))
        changed.params(0, DEFAULT_MAX_TOKENS)  # raises if it is out of range
        setattr(self, name, value)

    def __str__(self) -> str:
        shown = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        missing = {"seed": "seed drawn for each answer", "max_tokens": f"max_tokens {DEFAULT_MAX_TOKENS}"}
        parts = [f"{name} {value:g}" for name, value in shown.items() if name not in missing]
        parts += [f"{name} {shown[name]}" if name in shown else text for name, text in missing.items()]
        return ", ".join(parts)
