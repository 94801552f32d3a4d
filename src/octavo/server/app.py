"""The server as an ASGI application: lets requests in, finds their route, keeps the books."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from octavo.server.anthropic import ANTHROPIC
from octavo.server.anthropic.routes import anthropic_routes
from octavo.server.auth import check_key, check_place
from octavo.server.errors import ApiError, Dialect, Problem
from octavo.server.http import Call, Endpoint, Receive, Send, new_record, send_problem
from octavo.server.metrics import metrics_routes
from octavo.server.ollama import OLLAMA
from octavo.server.ollama.routes import ollama_routes
from octavo.server.openai import OPENAI
from octavo.server.openai.routes import openai_routes
from octavo.server.openapi import description_route
from octavo.server.service import Service
from octavo.server.system import octavo_version, system_routes
from octavo.server.tgi import TGI
from octavo.server.tgi.routes import tgi_routes
from octavo.server.web import web_routes

__all__ = ["App", "create_app"]


def create_app(service: Service) -> App:
    """The application with all APIs."""
    apis = [*openai_routes(), *ollama_routes(), *tgi_routes(), *anthropic_routes()]
    endpoints = [*system_routes(), *apis, *metrics_routes(service), *web_routes()]
    description = description_route(endpoints, title="Octavo", version=octavo_version())
    dialects = {"/api/": OLLAMA, "/generate": TGI, "/v1/messages": ANTHROPIC}
    return App(service, [*endpoints, description], dialects)


class App:
    """endpoints: of all APIs. dialects: path prefix -> how errors are spelled where no endpoint matched."""

    def __init__(
        self, service: Service, endpoints: Iterable[Endpoint], dialects: Mapping[str, Dialect] | None = None
    ) -> None:
        self.service = service
        self.endpoints = list(endpoints)
        self._dialects = dict(dialects or {})
        self._routes: dict[str, dict[str, Endpoint]] = {}
        for endpoint in self.endpoints:
            methods = self._routes.setdefault(endpoint.path, {})
            first = methods.get(endpoint.method)
            if first is not None and endpoint.told_by is None:
                raise ValueError(f"two endpoints answer {endpoint.method} {endpoint.path}")
            methods[endpoint.method] = endpoint if first is None else replace(first, variant=endpoint)
        self._patterns = [(_pattern(path), path) for path in self._routes if "{" in path]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} connections are not served")
        route, values = self._match(scope["path"])
        record = new_record(scope["method"], route or "-")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        record.traceparent = headers.get("traceparent")
        call = Call(self.service, headers, values, scope["query_string"].decode("latin-1"), record)
        self.service.begin(record)
        try:
            await self._serve(call, scope, receive, send)
        finally:
            self.service.end(record)

    async def _serve(self, call: Call, scope: Any, receive: Receive, send: Send) -> None:
        path, method = scope["path"], call.record.method
        methods = self._routes.get(call.record.route, {})
        endpoint = methods.get("GET" if method == "HEAD" else method)
        dialect = endpoint.dialect if endpoint is not None else self._dialect(path)
        try:
            self._admit(call, endpoint, preflight=method == "OPTIONS")
        except ApiError as error:
            await send_problem(call, dialect, error.problem, send)
            return
        if endpoint is not None:
            await endpoint.run(call, receive, send)
        elif method == "OPTIONS" and methods:
            await _preflight(call, methods, send)
        elif methods:
            allowed = ", ".join(methods)
            call.extra_headers.append((b"allow", allowed.encode()))
            told = f"{method} is not possible here; {allowed} is"
            await send_problem(call, dialect, Problem(405, told, None, "method_not_allowed"), send)
        else:
            await send_problem(call, dialect, Problem(404, "there is nothing at this path", None, "not_found"), send)

    def _admit(self, call: Call, endpoint: Endpoint | None, *, preflight: bool) -> None:
        """Raises ApiError 401, 403, 431. A browser asks whether it may send a key before it sends one."""
        config = self.service.config
        size = sum(len(name) + len(value) for name, value in call.headers.items())
        if size > config.max_header_bytes:
            raise ApiError(431, f"the headers have {size} bytes; this server takes {config.max_header_bytes}")
        origin = check_place(call.headers, config)
        if origin is not None:
            call.extra_headers += [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]
        if not (preflight or (endpoint is not None and endpoint.public)):
            call.owner = check_key(call.headers, config.api_keys)

    def _match(self, path: str) -> tuple[str | None, dict[str, str]]:
        if path in self._routes:
            return path, {}
        for pattern, route in self._patterns:
            found = pattern.fullmatch(path)
            if found is not None:
                return route, found.groupdict()
        return None, {}

    def _dialect(self, path: str) -> Dialect:
        fits = [prefix for prefix in self._dialects if path.startswith(prefix)]
        return self._dialects[max(fits, key=len)] if fits else OPENAI


def _pattern(path: str) -> re.Pattern[str]:
    """ "/v1/responses/{id}/cancel" -> a pattern; {name:path} also matches slashes."""
    parts = re.split(r"\{(\w+)(:path)?\}", path)
    text = re.escape(parts[0])
    for name, deep, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        text += f"(?P<{name}>{'.+' if deep else '[^/]+'})" + re.escape(after)
    return re.compile(text, re.DOTALL)


async def _preflight(call: Call, methods: Mapping[str, Endpoint], send: Send) -> None:
    call.record.status = 204
    headers = [
        (b"access-control-allow-methods", ", ".join(methods).encode()),
        (b"access-control-allow-headers", b"authorization, content-type, x-api-key"),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": [*call.extra_headers, *headers]})
    await send({"type": "http.response.body", "body": b""})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
