"""The Jinja environment that chat templates run in: what templates expect to find, and bounds on what they may do.

A template is a program that came with a model file. It gets no access to Python objects (Jinja's immutable sandbox),
and every loop, repetition and joined text is counted, so that a hostile or broken one ends with an error instead of
taking all time or memory. Names and filters are those that templates written for Hugging Face models rely on.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["MAX_CHARACTERS", "Budget", "ChatEnvironment", "TemplateRaised"]

MAX_CHARACTERS = 1 << 24
"""Longest text that a template may make, in characters: several times the longest context there is."""
MAX_STEPS = 1 << 21
"""Most loop rounds and calls of one rendering: about a second; a chat of a thousand turns takes some thousands."""
MAX_SECONDS = 30.0
"""Longest time of one rendering, for what takes long without many steps; an ordinary chat takes milliseconds."""

_BUDGET, _COUNTED, _CHECKED = "__octavo_budget__", "__octavo_counted__", "__octavo_checked__"
_WIDE = re.compile(r"[0-9]{6,}|\*")  # a field width that no template needs, or one taken from an argument


class TemplateRaised(TemplateError):
    """The template called `raise_exception`: its author's word to the user."""


class Budget:
    """What one rendering may still do; the functions that the compiled template calls."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._deadline = time.monotonic() + MAX_SECONDS

    def variables(self) -> dict[str, Any]:
        """Template variables to render with."""
        return {_BUDGET: self, _COUNTED: self._counted, _CHECKED: _checked}

    def spend(self, steps: int) -> None:
        """Raises SecurityError if nothing is left."""
        self._steps -= steps
        if self._steps < 0:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it runs for more than {MAX_SECONDS:.0f} seconds")

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(1)
            yield item


def _checked(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > MAX_CHARACTERS:
        raise SecurityError(f"it makes a text of more than {MAX_CHARACTERS} characters")
    return value


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's part for training; it renders as its body."""

    tags = {"generation"}  # noqa: RUF012  the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateRaised(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as a model has to see it: no HTML escapes, unlike Jinja's own filter."""
    _refuse_wide((indent,))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse_wide(arguments: Any) -> None:
    for value in arguments:
        if isinstance(value, int) and abs(value) > MAX_CHARACTERS:
            raise SecurityError(f"it calls a function with the number {value}")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates; render what it makes with the variables of a fresh `Budget`."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[LoopControls, _Generation])
        self.filters["tojson"] = _tojson
        for name in ("center", "indent", "format", "batch", "slice", "replace"):
            self.filters[name] = _bounded(self.filters[name])
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        for name in ("lipsum", "joiner", "cycler"):
            self.globals.pop(name, None)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parses, then has the rounds of each loop counted and the length of each `~` checked."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = _call(_COUNTED, loop.iter)
        _check_joins(tree)
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`+`, `*`, `**` and `%`, refused where the result would be too large to make."""
        if operator == "**" and (abs(left) > 1000 or abs(right) > 64):
            raise SecurityError(f"it computes {left} ** {right}")
        if operator == "*":
            _refuse_product(left, right)
        if operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise SecurityError("it formats a text to a width")
        return _checked(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Function calls (macros are functions too): counted, and refused with huge numbers."""
        budget = context.resolve(_BUDGET)
        budget.spend(1)
        _refuse_wide((*args, *kwargs.values()))
        result = _checked(super().call(context, function, *args, **kwargs))
        if isinstance(result, range):
            budget.spend(len(result))  # filters may walk through it uncounted
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, refused where a field is wide."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE.search(value.__self__):
            raise SecurityError("it formats a text to a width")
        return wrapped


def _refuse_product(left: Any, right: Any) -> None:
    for repeated, count in ((left, right), (right, left)):
        if isinstance(repeated, str | list | tuple) and isinstance(count, int):
            if len(repeated) * count > MAX_CHARACTERS:
                raise SecurityError(f"it repeats a text {count} times")
        elif isinstance(repeated, int) and repeated.bit_length() > 4096:
            raise SecurityError("it computes with numbers of thousands of digits")


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose numbers and result are checked; Jinja's marks on the function are kept."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        _refuse_wide((*args, *kwargs.values()))
        if function.__name__ == "do_format" and _WIDE.search(str(args[0])):
            raise SecurityError("it formats a text to a width")
        return _checked(function(*args, **kwargs))

    checked.__dict__.update(function.__dict__)
    return checked


def _check_joins(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, field, [_checked_join(child) for child in value])
        else:
            setattr(node, field, _checked_join(value))


def _checked_join(child: Any) -> Any:
    if not isinstance(child, nodes.Node):
        return child
    _check_joins(child)
    if isinstance(child, nodes.Concat):
        return _call(_CHECKED, child)
    return child


def _call(name: str, argument: nodes.Node) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load"), [argument], [], None, None, lineno=argument.lineno)
