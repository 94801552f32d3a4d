"""What a caller may ask of one request: `SamplingParams`, named as vLLM users know them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from octavo.core.errors import InvalidParameterError

__all__ = ["SamplingParams"]

MAX_N = 128
MAX_LOGPROBS = 20
MAX_STOP = 16
MAX_LOGIT_BIAS = 1024


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to turn logits into tokens and when to stop. Numbers may be NumPy's; they become Python's.

    Attributes:
        n: number of completions of the same prompt, 1..128.
        temperature: 0 is greedy; otherwise logits are divided by it before sampling.
        top_p: nucleus mass, (0, 1].
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        min_p: keep tokens with probability >= min_p * (the largest probability), [0, 1].
        presence_penalty, frequency_penalty: subtracted from logits of generated tokens, [-2, 2] (OpenAI's definition).
        repetition_penalty: > 0; divides positive and multiplies negative logits of tokens in prompt and output (CTRL).
        seed: with it the request is reproducible on its own; without it, a seed is drawn from the engine's.
        max_tokens: most tokens to generate; None: as many as the context window holds.
        min_tokens: no stop before this many generated tokens (end-of-sequence and stop ids are masked until then).
        stop: strings that end the text (not included in it unless include_stop_str_in_output).
        stop_token_ids: token ids that end the output.
        ignore_eos: go on after end-of-sequence tokens.
        logprobs: report this many of the most likely tokens (0: the sampled one alone) per generated token, up to 20.
        prompt_logprobs: the same for every prompt token after the first.
        logit_bias: token id -> number added to its logit, up to 1024 entries, each in [-100, 100].
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the stop string in the text.

    Raises:
        InvalidParameterError: a value is out of range; the message names the field and the range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 256
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        stop: Any = self.stop  # callers may also give one string, a list or None
        set_(self, "stop", (stop,) if isinstance(stop, str) else _listed("stop", stop))
        set_(self, "stop_token_ids", tuple(map(_plain, _listed("stop_token_ids", self.stop_token_ids))))
        if not isinstance(self.logit_bias, Mapping | None):
            raise InvalidParameterError(f"logit_bias must map token ids to numbers, not {_shown(self.logit_bias)}")
        set_(self, "logit_bias", {_plain(key): _plain(value) for key, value in (self.logit_bias or {}).items()})
        for each in fields(self):
            set_(self, each.name, _plain(getattr(self, each.name)))
        if self.top_k == -1:
            set_(self, "top_k", 0)
        self._check_numbers()
        self._check_lists_and_switches()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def _check_numbers(self) -> None:
        _integer("n", self.n, 1, MAX_N)
        _number("temperature", self.temperature, 0.0, 100.0)
        _number("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _integer("top_k", self.top_k, 0, 2**31 - 1)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_open=True)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameterError(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, MAX_LOGPROBS)

    def _check_lists_and_switches(self) -> None:
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            _switch(name, getattr(self, name))
        if len(self.stop) > MAX_STOP:
            raise InvalidParameterError(f"stop has {len(self.stop)} strings; at most {MAX_STOP} are possible")
        if not all(isinstance(s, str) and s for s in self.stop):
            raise InvalidParameterError("stop must hold non-empty strings")
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0, 2**31 - 1)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidParameterError(
                f"logit_bias has {len(self.logit_bias)} entries; at most {MAX_LOGIT_BIAS} are possible"
            )
        for token, bias in self.logit_bias.items():
            _integer("logit_bias key", token, 0, 2**31 - 1)
            _number("logit_bias value", bias, -100.0, 100.0)


def _plain(value: Any) -> Any:
    """A number of another library as Python's own; anything else as it is."""
    if isinstance(value, int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple | set | frozenset | None):
        raise InvalidParameterError(f"{name} must be a list, not {_shown(value)}")
    return tuple(value or ())


def _switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidParameterError(f"{name} must be true or false, not {_shown(value)}")


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidParameterError(f"{name} must be an integer between {low} and {high}, not {_shown(value)}")


def _number(name: str, value: Any, low: float, high: float, *, low_open: bool = False) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    # NaN fails every comparison, so the range check refuses it, too.
    if not ok or not low <= value <= high or (low_open and value == low):
        bracket = "(" if low_open else "["
        raise InvalidParameterError(f"{name} must be a number in {bracket}{low}, {high}], not {_shown(value)}")


def _shown(value: object) -> str:
    """A short repr for messages; Python refuses to write integers of more than 4300 digits."""
    try:
        text = repr(value)
    except ValueError:
        return "a huge number"
    return text if len(text) <= 80 else f"{text[:76]} ..."
