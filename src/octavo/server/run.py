"""Run the server until it is told to stop: sockets, signals, a graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn

from octavo.core.errors import ConfigError
from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.models import ModelRegistry
from octavo.server.protocol import LimitedProtocol
from octavo.server.record import Observer
from octavo.server.service import Service

__all__ = ["Running", "listen", "serve"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def listen(config: ServerConfig) -> socket.socket:
    """A listening socket. Raises ConfigError: the address cannot be had."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {config.host} port {config.port}: {reason.lower()}; choose another --port (0: any that "
            "is free) or --host"
        ) from None


def serve(
    config: ServerConfig,
    registry: ModelRegistry,
    *,
    observers: Sequence[Observer] = (),
    announce: Callable[[Running], None] = lambda running: None,
) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status.

    observers: are told of every request that has ended. announce: called once the first model is loaded. Raises
    ConfigError (see `listen`), and what loading the first model raises.
    """
    sock = listen(config)
    service = Service(config, registry)
    service.observers += observers
    with contextlib.closing(sock):
        return asyncio.run(_serve(service, sock, announce))


async def _serve(service: Service, sock: socket.socket, announce: Callable[[Running], None]) -> int:
    running = Running(service, sock)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, running.stop)
    try:
        await running.start()
        if not running.stopping:
            announce(running)
        return await running.wait()
    finally:
        await running.close()


class Running:
    """A server that is up. Lives in one event loop.

    service: what its routes share. url: where it is reached.
    """

    def __init__(self, service: Service, sock: socket.socket) -> None:
        self.service = service
        self._sock = sock
        self._stops = 0
        self._stopped = asyncio.Event()
        self._cut = asyncio.Event()
        self._http = _Server(_uvicorn_config(service))
        self._task: asyncio.Task[None] | None = None

    @property
    def stopping(self) -> bool:
        return self._stops > 0

    @property
    def url(self) -> str:
        host, port = self._sock.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Answer HTTP, and load the first model meanwhile. Raises what loading raises."""
        self._task = asyncio.create_task(self._http.serve(sockets=[self._sock]))
        registry = self.service.registry
        loading = asyncio.create_task(registry.load(registry.models[0]))
        stopped = asyncio.create_task(self._stopped.wait())
        await asyncio.wait((loading, stopped, self._task), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if loading.done():
            loading.result()
        loading.cancel()

    def stop(self) -> None:
        """Begin to end: running requests are finished, new ones refused. A second time: at once."""
        self._stops += 1
        self._stopped.set()
        if self._stops > 1:
            self._cut.set()

    async def wait(self) -> int:
        """Until it has been stopped and what ran then has ended, or the grace time is over; returns the exit status."""
        await self._stopped.wait()
        drained = asyncio.create_task(self.service.drain(self.service.config.grace_s))
        cut = asyncio.create_task(self._cut.wait())
        await asyncio.wait((drained, cut), return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        drained.cancel()
        return 0

    async def close(self) -> None:
        """End what still runs, and give back models and port."""
        self.service.draining = True
        await self.service.registry.close()
        self._http.should_exit = True
        if self._task is not None:
            await self._task


class _Server(uvicorn.Server):
    """Signals are handled above."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(service: Service) -> uvicorn.Config:
    quiet: dict[str, Any] = {"log_config": None, "log_level": logging.ERROR, "access_log": False}
    return uvicorn.Config(
        create_app(service),
        http=LimitedProtocol.of(
            max_header_bytes=service.config.max_header_bytes, header_timeout_s=service.config.receive_timeout_s
        ),
        ws="none",
        lifespan="off",
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
        **quiet,
    )
