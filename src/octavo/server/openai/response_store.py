"""Answers of the Responses API that can be asked for again, or gone on from. In memory; the oldest go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from octavo.server.errors import ApiError
from octavo.server.openai.responses_schema import Response
from octavo.server.openai.schema import ChatMessage

__all__ = ["ResponseStore", "StoredResponse"]

MAX_CHARACTERS = 64 * 2**20
"""Of all conversations together."""


@dataclass
class StoredResponse:
    """owner: whose key it was made with. conversation: all turns without instructions, the answer's once it is there.

    cancel: ends it while it runs; whether it was still running.
    """

    response: Response
    owner: str
    conversation: Sequence[ChatMessage]
    cancel: Callable[[], Awaitable[bool]] | None = None

    @property
    def characters(self) -> int:
        return sum(len(turn.content) for turn in self.conversation if isinstance(turn.content, str))


class ResponseStore:
    """most: so many are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._characters = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, stored: StoredResponse) -> None:
        """Keep one more."""
        self._kept[stored.response.id] = stored
        self._characters += stored.characters
        self._trim()

    def settle(self, name: str, conversation: Sequence[ChatMessage]) -> None:
        """One that is kept has ended; its conversation now holds the answer."""
        stored = self._kept.get(name)
        if stored is not None:
            self._characters -= stored.characters
            stored.conversation, stored.cancel = list(conversation), None
            self._characters += stored.characters
            self._trim()

    def get(self, name: str, owner: str, *, param: str | None = None) -> StoredResponse:
        """Raises ApiError 404, and 400 where it is a field (param) that names one that is not there."""
        stored = self._kept.get(name)
        if stored is None or stored.owner != owner:
            told = f"there is no response {name[:80]!r} here; it was never stored, has been deleted or was the oldest"
            code = "response_not_found" if param is None else "previous_response_not_found"
            raise ApiError(404 if param is None else 400, told, param=param, code=code)
        return stored

    def remove(self, name: str, owner: str) -> StoredResponse:
        """Raises ApiError 404."""
        stored = self.get(name, owner)
        self._drop(name)
        return stored

    def _trim(self) -> None:
        while len(self._kept) > self._most or (self._characters > MAX_CHARACTERS and len(self._kept) > 1):
            self._drop(next(iter(self._kept)))

    def _drop(self, name: str) -> None:
        self._characters -= self._kept.pop(name).characters
