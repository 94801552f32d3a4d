"""The routes of TGI."""

from __future__ import annotations

from octavo.server.http import EVENTS, Endpoint
from octavo.server.tgi import TGI
from octavo.server.tgi.generate import generate, generate_either, generate_stream
from octavo.server.tgi.info import info, tokenize
from octavo.server.tgi.schema import (
    GENERATE_REFUSED,
    REFUSED,
    STREAM_REFUSED,
    CompatRequest,
    Generated,
    GenerateRequest,
    Info,
    TokenizedToken,
)

__all__ = ["tgi_routes"]

_STATUSES = (422, 424, 429)


def tgi_routes() -> list[Endpoint]:
    return [
        Endpoint("/info", "GET", info, TGI, "The first model, as TGI describes it.", reply=Info),
        Endpoint(
            "/generate",
            "POST",
            generate,
            TGI,
            "Continue text, as TGI has it.",
            body=GenerateRequest,
            reply=Generated,
            refused=GENERATE_REFUSED,
            working=True,
            statuses=_STATUSES,
        ),
        Endpoint(
            "/generate_stream",
            "POST",
            generate_stream,
            TGI,
            "Continue text, token by token.",
            body=GenerateRequest,
            refused=STREAM_REFUSED,
            working=True,
            streams=EVENTS,
            statuses=_STATUSES,
        ),
        Endpoint(
            "/",
            "POST",
            generate_either,
            TGI,
            "The same, whole or as a stream.",
            body=CompatRequest,
            reply=list[Generated],
            refused=REFUSED,
            working=True,
            streams=EVENTS,
            statuses=_STATUSES,
        ),
        Endpoint(
            "/tokenize",
            "POST",
            tokenize,
            TGI,
            "The tokens of inputs.",
            body=GenerateRequest,
            reply=list[TokenizedToken],
            refused=REFUSED,
            working=True,
            statuses=(422,),
            told_by="inputs",
        ),
    ]
