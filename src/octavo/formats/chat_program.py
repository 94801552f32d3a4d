"""A chat template compiled: what it reads, and its text for a chat.

Apart from chat.py because the template engine takes 40 ms to import, which a start without a chat need not spend.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import meta
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError

from octavo.core.errors import ModelFormatError, RequestError
from octavo.formats.chat_sandbox import MAX_CHARACTERS, Budget, ChatEnvironment, TemplateRaised

__all__ = ["ChatProgram"]


class ChatProgram:
    """A template ready to run. Safe to share between threads.

    Attributes:
        reads: the names of the variables that it reads.
    """

    def __init__(self, source: str) -> None:
        """Raises ModelFormatError if the template is malformed."""
        environment = ChatEnvironment()
        try:
            tree = environment.parse(source)
            self.reads = frozenset(meta.find_undeclared_variables(tree))
            self._template = environment.from_string(tree)
        except TemplateSyntaxError as error:
            raise ModelFormatError(f"the chat template is malformed: line {error.lineno}: {error.message}") from None
        except (TemplateError, RecursionError, SyntaxError, ValueError, OverflowError) as error:
            raise ModelFormatError(f"the chat template cannot be compiled: {_cause(error)}") from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """Raises RequestError for what the template refuses or fails on, and if it takes too much."""
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(**variables, **Budget().variables()):
                parts.append(part)
                size += len(part)
                if size > MAX_CHARACTERS:
                    raise SecurityError(f"it makes a text of more than {MAX_CHARACTERS} characters")
        except TemplateRaised as error:
            raise RequestError(f"the model's chat template refuses this chat: {_cause(error)}") from None
        except SecurityError as error:
            raise RequestError(f"the model's chat template was stopped: {_cause(error)}") from None
        except Exception as error:  # a template can fail in any way that an expression can
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise RequestError(f"the model's chat template fails on this chat: {kind}{_cause(error)}") from error
        return "".join(parts)


def _cause(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
