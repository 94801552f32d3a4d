"""Pages for people: a chat at / and a live view at /dashboard, in plain HTML, CSS and JavaScript.

They load nothing from elsewhere and need no build. They hold no data, so they are served without an API key and ask for
one when the server refuses what they request; a policy in their headers forbids everything that they do not need.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import PurePosixPath

from octavo.server.errors import ApiError
from octavo.server.http import Call, Endpoint, Reply
from octavo.server.openai import OPENAI
from octavo.server.web.stats import stats_routes

__all__ = ["web_routes"]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_RUNNING = b"Ollama is running"


def web_routes() -> list[Endpoint]:
    return [
        Endpoint("/", "GET", root, OPENAI, "The chat page, for browsers.", public=True),
        Endpoint("/dashboard", "GET", dashboard, OPENAI, "A live view of the server, for browsers.", public=True),
        Endpoint("/web/{file}", "GET", file, OPENAI, "What the pages are made of.", public=True, statuses=(404,)),
        *stats_routes(),
    ]


async def root(call: Call) -> Reply:
    """Ollama's clients look here whether a server is there; browsers say that they want HTML."""
    if "text/html" not in call.headers.get("accept", ""):
        return Reply(_RUNNING, media_type="text/plain; charset=utf-8", headers=(("vary", "accept"),))
    return _file(call, "chat.html")


async def dashboard(call: Call) -> Reply:
    return _file(call, "dashboard.html")


async def file(call: Call) -> Reply:
    name = call.path["file"]
    if name not in _FILES:
        raise ApiError(404, "there is no such file", code="not_found")
    return _file(call, name)


def _file(call: Call, name: str) -> Reply:
    """It is asked for again each time, and sent again only if it is another one."""
    content, tag = _FILES[name]
    headers = (
        ("content-security-policy", _POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
        ("vary", "accept"),
        ("etag", tag),
    )
    media_type = _TYPES[PurePosixPath(name).suffix]
    if call.headers.get("if-none-match") == tag:
        return Reply(b"", 304, media_type, headers)
    return Reply(content, media_type=media_type, headers=headers)


def _load() -> dict[str, tuple[bytes, str]]:
    """Content and entity tag of every file."""
    contents = {each.name: each.read_bytes() for each in files(__package__).joinpath("static").iterdir()}
    return {name: (content, f'"{hashlib.sha256(content).hexdigest()[:16]}"') for name, content in contents.items()}


_FILES = _load()
