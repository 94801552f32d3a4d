"""Who may call: API keys, and the Host and Origin of requests that a browser made."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from octavo.server.config import ServerConfig
from octavo.server.errors import ApiError

__all__ = ["LOOPBACK", "check_key", "check_place"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_key(headers: Mapping[str, str], keys: tuple[str, ...]) -> str:
    """The key that came, as a bearer token or in x-api-key, as Anthropic's clients send it; "" if none is needed.

    All keys are compared, each in constant time. Raises ApiError 401.
    """
    if not keys:
        return ""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    fits = [hmac.compare_digest(given.encode(), key.encode()) for key in keys]
    if not any(fits):
        told = "wrong API key" if given else "no API key"
        raise ApiError(401, f"{told}; send it in the header Authorization: Bearer KEY", code="invalid_api_key")
    return given


def check_place(headers: Mapping[str, str], config: ServerConfig) -> str | None:
    """The foreign origin that was let in; None where a request has none, or that of this server.

    A page of any site can make a browser send requests to a server on this machine, directly or by a name of its own
    that it lets point here (DNS rebinding): so both headers are looked at. Raises ApiError 403.
    """
    host = headers.get("host", "")
    name = _host_name(host)
    allowed = config.allowed_hosts
    if allowed is None and config.host in LOOPBACK:
        allowed = LOOPBACK
    if allowed is not None and name not in (*allowed, config.host):
        raise ApiError(403, f"requests for the host {name[:100]!r} are not served; --allow-host lets it in")
    origin = headers.get("origin")
    if origin is None or origin.partition("://")[2] == host:
        return None
    if origin in config.allowed_origins or "*" in config.allowed_origins:
        return origin
    raise ApiError(403, f"pages of {origin[:100]!r} may not use this server; --allow-origin lets them in")


def _host_name(host: str) -> str:
    """Without the port: "[::1]:8000" -> "::1"."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
