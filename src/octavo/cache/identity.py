"""What the pages of an engine are, so that another process uses them only where they are what it would compute."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache

import numpy as np

from octavo.cache.disk_format import PageIdentity
from octavo.cache.radix import Namespace
from octavo.ops.api import RopeTable
from octavo.ops.kv import KVStore

__all__ = ["page_identities"]

# Texts and root digests that are kept. With more salts in use they are computed again: 20 us each.
_MOST_NAMESPACES = 1024


def page_identities(
    kv: KVStore, *, model: str, ropes: Iterable[RopeTable], version: str, backend: str, tier: str | None
) -> Callable[[Hashable], PageIdentity]:
    """The identities of the pages of a KV store, by namespace (a `Namespace`, or a cache_salt alone).

    model: fingerprint of the weights. ropes: the layers' rotary tables, which depend on more than the file: LongRoPE
    takes other factors where max_model_len is beyond the original context. version: of Octavo. backend, tier: what
    computes, and its instruction-set tier if it has some (see "Tiers agree, but for one" in docs/architecture.md). They
    are the producer, with the version of NumPy, which makes the tables: pages of producers that may round differently
    are not shared.

    The function raises TypeError for a namespace that does not say its salt and adapter.
    """
    model = f"{model}-{_rope_digest(ropes)}"
    producer = " ".join(filter(None, ["octavo", version, backend, tier, "numpy", np.__version__]))

    @lru_cache(_MOST_NAMESPACES)
    def identity(namespace: Hashable) -> PageIdentity:
        if namespace is None or isinstance(namespace, str):
            namespace = Namespace(salt=namespace)
        if not isinstance(namespace, Namespace):
            raise TypeError(f"pages on disk belong to a Namespace or a cache_salt, not to {namespace!r}")
        return PageIdentity(
            model=model,
            producer=producer,
            dtype=kv.dtype,
            page_size=kv.page_size,
            layers=kv.layers,
            kv_heads=kv.kv_heads,
            head_dim=kv.head_dim,
            adapter=namespace.adapter,
            salt=namespace.salt,
        )

    return identity


def _rope_digest(ropes: Iterable[RopeTable]) -> str:
    """16 hexadecimal digits of all layers' frequencies and scales: the row of position 1 has both in its sines."""
    from hashlib import blake2b  # brings a whole crypto library along: 5 ms

    digest = blake2b(digest_size=8)
    for rope in ropes:
        digest.update(bytes([rope.interleaved]))
        digest.update(rope.cos[1:2].tobytes() + rope.sin[1:2].tobytes())
    return digest.hexdigest()
