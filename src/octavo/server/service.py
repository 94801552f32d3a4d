"""What all routes share: configuration, models, what runs now, and who is told when a request has ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from octavo.server.config import ServerConfig
from octavo.server.meters import Meters
from octavo.server.models import ModelRegistry
from octavo.server.openai.response_store import ResponseStore
from octavo.server.record import Observer, Record

__all__ = ["Service"]


class Service:
    """The server behind its routes. Lives in one event loop.

    observers: told each request that has ended. active: those under way. draining: no new work is taken.
    meters: what they and the engines have measured. responses: of the Responses API.
    """

    def __init__(self, config: ServerConfig, registry: ModelRegistry) -> None:
        self.config = config
        self.registry = registry
        self.responses = ResponseStore(config.max_stored_responses)
        self.meters = Meters(registry)
        self.observers: list[Observer] = [self.meters.end]
        self.active: dict[str, Record] = {}
        self.answered: Counter[int] = Counter()
        self.started = time.time()
        self.draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self, record: Record) -> None:
        self.active[record.id] = record
        self._idle.clear()

    def end(self, record: Record) -> None:
        record.total_s = record.elapsed()
        self.answered[record.status] += 1
        del self.active[record.id]
        if not self.active:
            self._idle.set()
        for observer in self.observers:
            observer(record)

    async def drain(self, timeout_s: float) -> bool:
        """Take no more work, and wait until every request has been answered; whether that was within timeout_s."""
        self.draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def problem(self) -> str | None:
        """Why a request sent now would not be served; None if it would."""
        if self.draining:
            return "draining"
        for model in self.registry.models:
            if model.llm is None:
                continue
            health = model.llm.health(self.config.stall_after_s)
            if not health.ok:
                return f"{model.name}: {health.reason or health.state}"
        first = self.registry.models[0]
        if first.llm is None and first.loading is not None:
            return f"{first.name} is loading"
        return f"{first.name} could not be loaded" if first.error else None
