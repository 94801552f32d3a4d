"""The one table of environment variables: name, kind, default, effect, and typed access to each.

    from octavo.core.env import env
    folder = env("OCTAVO_MODELS")

A value is read when it is asked for, so a program may set a variable after importing Octavo. `check_environment`
reads them all at once; programs call it at start, so that a bad value fails before any work is done.
A variable set to the empty string counts as not set. docs/environment.md is made from this table.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

from octavo.core.errors import ConfigError

__all__ = ["BACKENDS", "ISA_TIERS", "MAX_THREADS", "TABLE", "Variable", "check_environment", "env"]

PREFIX = "OCTAVO_"
BACKENDS = ("native", "reference")
ISA_TIERS = ("auto", "avx512_bf16", "avx512", "avxvnni", "avx2", "portable")
MAX_THREADS = 1024

_log = logging.getLogger("octavo")


@dataclass(frozen=True)
class Variable:
    """One row of the table.

    Attributes:
        name: with the OCTAVO_ prefix.
        kind: what values are possible, in words; error messages and the docs page use it.
        parse: text -> value; raises ValueError if the text is not possible.
        default: environment -> value when the variable is not set.
        default_text: the default in words, for the docs page.
        effect: what it changes.
    """

    name: str
    kind: str
    parse: Callable[[str], object]
    default: Callable[[Mapping[str, str]], object]
    default_text: str
    effect: str


def _folder(text: str) -> Path:
    path = Path(text).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError("not a folder")
    return path


def _threads(text: str) -> int | None:
    if text.lower() == "auto":
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or not 1 <= int(text) <= MAX_THREADS:
        raise ValueError("not a thread count")
    return int(text)


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError("not among the choices")
        return text.lower()

    return parse


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("not a switch")


def _home(*parts: str) -> Path:
    try:
        return Path.home().joinpath(*parts)
    except RuntimeError as error:
        raise ConfigError(
            "no home folder is known for this user; set OCTAVO_CACHE to the folder for models and caches"
        ) from error


TABLE: tuple[Variable, ...] = (
    Variable(
        "OCTAVO_MODELS",
        "a folder (made when first needed)",
        _folder,
        lambda environ: _folder_of("OCTAVO_CACHE", environ) / "models",
        "`$OCTAVO_CACHE/models`",
        "Where downloaded models are kept and looked for.",
    ),
    Variable(
        "OCTAVO_CACHE",
        "a folder (made when first needed)",
        _folder,
        lambda environ: _home(".cache", "octavo"),
        "`~/.cache/octavo`",
        "Where everything that can be made again is kept, such as built tokenizers.",
    ),
    Variable(
        "OCTAVO_THREADS",
        f"an integer between 1 and {MAX_THREADS}, or auto",
        _threads,
        lambda environ: None,
        "`auto`: the physical cores that affinity and the cgroup quota allow",
        "Compute threads of an engine whose `threads` argument is not given.",
    ),
    Variable(
        "OCTAVO_ISA",
        f"one of {', '.join(ISA_TIERS)}",
        _one_of(ISA_TIERS),
        lambda environ: "auto",
        "`auto`: the best that this CPU has",
        "The instruction-set tier of the native kernels. A tier that this CPU lacks is an error.",
    ),
    Variable(
        "OCTAVO_BACKEND",
        f"one of {', '.join(BACKENDS)}",
        _one_of(BACKENDS),
        lambda environ: "native",
        "`native`",
        "Which operations run: the C++ extension, or plain NumPy (slow; the oracle of the tests).",
    ),
    Variable(
        "OCTAVO_DEBUG",
        "a switch: 1, true, yes, on or 0, false, no, off",
        _flag,
        lambda environ: False,
        "`0`",
        "The command line shows the full traceback of an error instead of its one line.",
    ),
    Variable(
        "OCTAVO_TEST_MODELS",
        "a folder",
        _folder,
        lambda environ: _home(".cache", "octavo-models"),
        "`~/.cache/octavo-models`",
        "Where the test suite and `scripts/fetch_models` keep the real models; the library does not read it.",
    ),
)
"""Every variable that Octavo reads, in the order of the docs page."""

_BY_NAME = {variable.name: variable for variable in TABLE}


@overload
def env(
    name: Literal["OCTAVO_MODELS", "OCTAVO_CACHE", "OCTAVO_TEST_MODELS"], environ: Mapping[str, str] | None = None
) -> Path: ...
@overload
def env(name: Literal["OCTAVO_THREADS"], environ: Mapping[str, str] | None = None) -> int | None: ...
@overload
def env(name: Literal["OCTAVO_ISA"], environ: Mapping[str, str] | None = None) -> str: ...
@overload
def env(
    name: Literal["OCTAVO_BACKEND"], environ: Mapping[str, str] | None = None
) -> Literal["native", "reference"]: ...
@overload
def env(name: Literal["OCTAVO_DEBUG"], environ: Mapping[str, str] | None = None) -> bool: ...
def env(name: str, environ: Mapping[str, str] | None = None) -> object:
    """The value of one variable of the table, parsed; its default if it is not set.

    environ: read from here instead of the process's environment (for tests).
    Raises ConfigError if the value is not possible, KeyError if the table has no such variable.
    """
    return _read(_BY_NAME[name], os.environ if environ is None else environ)


def check_environment(environ: Mapping[str, str] | None = None) -> None:
    """Read every variable once, so that a bad value fails at start, and warn of each OCTAVO_* name not in the table.

    Raises ConfigError naming variable, value and what is possible.
    """
    environ = os.environ if environ is None else environ
    for variable in TABLE:
        if environ.get(variable.name):
            _read(variable, environ)
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in _BY_NAME:
            near = difflib.get_close_matches(name, _BY_NAME, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_BY_NAME)}"
            _log.warning("environment variable %s is set, but Octavo reads no such variable; %s", name, hint)


def _read(variable: Variable, environ: Mapping[str, str]) -> object:
    text = environ.get(variable.name, "")
    if not text.strip():
        return variable.default(environ)
    try:
        return variable.parse(text.strip())
    except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: "~user" without such a user
        raise ConfigError(f"{variable.name}={text!r} is not possible; it must be {variable.kind}") from error


def _folder_of(name: str, environ: Mapping[str, str]) -> Path:
    value = _read(_BY_NAME[name], environ)
    assert isinstance(value, Path)
    return value
