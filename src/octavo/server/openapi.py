"""/openapi.json: what the server takes and answers, made from the types that it decodes and encodes (OpenAPI 3.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.server.http import EVENTS, JSON, NDJSON, Call, Endpoint, Reply
from octavo.server.openai import OPENAI

__all__ = ["describe_api", "description_route"]

_ALWAYS = (403, 500)
_OF_BODIES = (400, 408, 413)
_OF_WORK = (404, 503, 504)
_STREAMS = {EVENTS: "server-sent events, where it is streamed", NDJSON: "one JSON object a line, where it is streamed"}


def description_route(endpoints: Sequence[Endpoint], *, title: str, version: str) -> Endpoint:
    """GET /openapi.json for these endpoints; made when it is first asked for."""
    made: list[bytes] = []

    async def description(call: Call) -> Reply:
        if not made:
            needs_key = bool(call.service.config.api_keys)
            made.append(msgspec.json.encode(describe_api(endpoints, title=title, version=version, needs_key=needs_key)))
        return Reply(made[0])

    return Endpoint("/openapi.json", "GET", description, OPENAI, "This description.", reply=dict[str, Any])


def describe_api(endpoints: Sequence[Endpoint], *, title: str, version: str, needs_key: bool) -> dict[str, Any]:
    """The description of these endpoints. needs_key: whether an API key must be sent."""
    types = list(dict.fromkeys(each for endpoint in endpoints for each in _types(endpoint)))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = re.sub(r"\{(\w+):path\}", r"{\1}", endpoint.path)
        operation = _operation(endpoint, by_type, needs_key)
        methods, name = paths.setdefault(path, {}), endpoint.method.lower()
        methods[name] = _either(methods[name], operation) if name in methods else operation
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }
    if needs_key:
        described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return described


def _types(endpoint: Endpoint) -> list[Any]:
    return [each for each in (endpoint.body, endpoint.reply, endpoint.dialect.type) if each is not None]


def _operation(endpoint: Endpoint, schemas: dict[Any, Any], needs_key: bool) -> dict[str, Any]:
    problem = {"description": "why not", "content": {JSON: {"schema": schemas[endpoint.dialect.type]}}}
    statuses = {*_ALWAYS, *endpoint.statuses}
    statuses |= set(_OF_BODIES if endpoint.body is not None else ())
    statuses |= set(_OF_WORK if endpoint.working else ())
    statuses |= {401} if needs_key and not endpoint.public else set()
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {"200": _answer(endpoint, schemas), **{str(status): problem for status in sorted(statuses)}},
    }
    names = re.findall(r"\{(\w+)(?::path)?\}", endpoint.path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[endpoint.body]}}}
    if needs_key and not endpoint.public:
        operation["security"] = [{"key": []}]
    return operation


def _either(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two APIs at one path: what the first says, with schemas that allow the second's as well."""
    merged = {**second, **first}
    for name, value in first.items():
        other = second.get(name)
        if name == "schema" and other is not None and other != value:
            merged[name] = {"anyOf": [value, other]}
        elif isinstance(value, dict) and isinstance(other, dict):
            merged[name] = _either(value, other)
    return merged


def _answer(endpoint: Endpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if endpoint.reply is not None:
        content[JSON] = {"schema": schemas[endpoint.reply]}
    if endpoint.streams is not None:
        # No type: some readers check a schema here against all of the text, others against each event.
        content[endpoint.streams] = {"schema": {"description": _STREAMS[endpoint.streams]}}
    return {"description": endpoint.summary, "content": content}
