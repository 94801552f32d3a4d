"""Sizes of memory as people write them on a command line."""

from __future__ import annotations

import re

import click

__all__ = ["size"]

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def size(text: str | int) -> int:
    """ "4GB", "512MiB", "1.5G" or plain bytes, as bytes; the type of an option."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]?)(i?)b?", str(text).strip().lower())
    if found is None or (found[3] and not found[2]):
        raise click.BadParameter(f"{text!r} is not a size; write for example 4GB, 512MiB or a number of bytes")
    return int(float(found[1]) * (_BINARY if found[3] else _DECIMAL)[found[2]])
