"""What identifies a KV page outside of its process, and how one page lies in a file.

The keys and values of a page depend on the model, on what computed them, on their storage format, and on every token
up to the page's end. A `PageKey` says all of that: the chained digest finds the page, and the identity, the parent's
digest and the page's own tokens are stored with it and compared, so equal digests alone never serve a page.

A record, in the byte order of the machine where a field does not say otherwise:

    head      magic 8, version u32, identity bytes u32, token bytes u32, page bytes u64 (little-endian), digest 20,
              parent 20, identity (JSON, UTF-8), tokens (i32)
    page      the bytes of the page, all layers
    checksum  CRC-32 of all that comes before, u32 little-endian

The reader knows what the head has to be, to the byte, before it opens the file: nothing in it is parsed.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from octavo.cache.radix import TOKEN_BYTES, Tokens, token_bytes

__all__ = [
    "DIGEST_BYTES",
    "FORMAT_VERSION",
    "CorruptPageError",
    "PageIdentity",
    "PageKey",
    "Part",
    "as_bytes",
    "pack_record",
    "page_keys",
    "record_bytes",
    "scatter",
    "unpack_record",
]

FORMAT_VERSION = 1
DIGEST_BYTES = 20
_MAGIC = b"OCTAVOKV"
_HEAD = struct.Struct(f"<8sIIIQ{DIGEST_BYTES}s{DIGEST_BYTES}s")
_CHECKSUM = struct.Struct("<I")

Part: TypeAlias = "bytes | bytearray | memoryview | NDArray[Any]"
"""A C-contiguous piece of a page: `[layer[page] for layer in (*kv.k, *kv.v)]` are the parts of one in a KVStore."""


class CorruptPageError(Exception):
    """A record is cut short or its checksum is wrong. Stays inside the disk tier: its caller sees a miss."""


@dataclass(frozen=True, kw_only=True)
class PageIdentity:
    """What all pages of one model, KV format and namespace have in common.

    Attributes:
        model: fingerprint of the weights, not their name.
        producer: what computed the values: backend and version. Two that round differently must not share pages, or
            a hit could change a request's tokens.
        dtype, page_size, layers, kv_heads, head_dim: the KV format, as in KVStore.
        adapter: fingerprint of the adapter, if one is applied.
        salt: the request's cache_salt. It is stored in clear, like the prompt's tokens, in files of mode 0600.
    """

    model: str
    producer: str
    dtype: str
    page_size: int
    layers: int
    kv_heads: int
    head_dim: int
    adapter: str | None = None
    salt: str | None = None

    @cached_property
    def text(self) -> bytes:
        """All fields and the byte order; different identities have different texts."""
        return json.dumps({**asdict(self), "byteorder": sys.byteorder}, sort_keys=True).encode()

    @cached_property
    def root(self) -> bytes:
        """The digest that first pages have as their parent."""
        return _digest(self.text)


class PageKey(NamedTuple):
    """One page: `digest` of the whole prefix to its end, `parent` of the prefix before it, its own `tokens` (i32)."""

    digest: bytes
    parent: bytes
    tokens: bytes
    identity: PageIdentity


def page_keys(identity: PageIdentity, tokens: Tokens, parent: PageKey | None = None) -> list[PageKey]:
    """Keys of the full pages of `tokens`, in order; a rest below one page has no key.

    parent: the page before these tokens; None where they start a sequence. About 1 us a page.
    """
    data, size = token_bytes(tokens), identity.page_size * TOKEN_BYTES
    digest = identity.root if parent is None else parent.digest
    keys = []
    for at in range(0, len(data) - size + 1, size):
        page = data[at : at + size]
        before, digest = digest, _digest(digest + page)
        keys.append(PageKey(digest, before, page, identity))
    return keys


def pack_record(key: PageKey, page: bytes) -> tuple[bytes, bytes, bytes]:
    """The record of a page as (head, page, checksum), to be written one after the other.

    CRC-32 finds every single flipped bit and every burst of up to 32 bits, and other damage but for one case in 2^32.
    It guards against accidents (torn writes, lost sectors): who can write these files on purpose is the owner, whose
    model and programs they could change as well. It runs at several GB/s, five times the speed of BLAKE2b.
    """
    head = _head(key, len(page))
    return head, page, _CHECKSUM.pack(zlib.crc32(page, zlib.crc32(head)))


def unpack_record(key: PageKey, record: memoryview, page_bytes: int) -> memoryview | None:
    """The page in a record, or None when the record is sound and holds some other page.

    Raises:
        CorruptPageError: the record does not have its length, or is damaged.
    """
    expected = record_bytes(key, page_bytes)
    if len(record) != expected:
        raise CorruptPageError(f"it has not the {expected} bytes of its page")
    end = expected - _CHECKSUM.size
    if _CHECKSUM.unpack(record[end:])[0] != zlib.crc32(record[:end]):
        raise CorruptPageError("its checksum is wrong")
    head = _head(key, page_bytes)
    return record[len(head) : end] if record[: len(head)] == head else None


def record_bytes(key: PageKey, page_bytes: int) -> int:
    """Length of the record of a page."""
    return _HEAD.size + len(key.identity.text) + len(key.tokens) + page_bytes + _CHECKSUM.size


def as_bytes(part: Part) -> memoryview:
    """The memory of a part as bytes. Raises TypeError where it is not contiguous."""
    view = part.data if isinstance(part, np.ndarray) else memoryview(part)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def scatter(page: memoryview | bytes, into: Sequence[memoryview]) -> None:
    """Copy a page into the parts of its place; they have its size together."""
    view, at = memoryview(page), 0
    for part in into:
        part[:] = view[at : at + len(part)]
        at += len(part)
    assert at == len(view)


def _head(key: PageKey, page_bytes: int) -> bytes:
    text = key.identity.text
    fixed = _HEAD.pack(_MAGIC, FORMAT_VERSION, len(text), len(key.tokens), page_bytes, key.digest, key.parent)
    return b"".join((fixed, text, key.tokens))


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES, person=b"octavo-kv").digest()
