"""Why a prompt was not served from the cache: what is cached elsewhere, what was cached, and what lies nearest.

Prefixes are known by their nodes' digests here, not by their tokens: a collision, once in about 2^61 pairs, would make
an explanation wrong, and nothing else. It costs two dictionary entries a page, and nothing that grows with what is
cached when somebody asks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Literal

from octavo.cache.radix import TOKEN_BYTES, Node, RadixTree, Tokens, token_bytes
from octavo.core.outputs import CacheMiss

__all__ = ["Explainer"]


class Explainer:
    """Watches one tree. Remembers the pages that were evicted last, 8 times the pool or 65,536, whichever is less."""

    _MOST_EVICTED = 65_536

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._most_evicted = min(8 * tree.pool.num_pages, self._MOST_EVICTED)
        self._evicted: OrderedDict[int, None] = OrderedDict()  # hashes of namespace and digest, the latest last
        self._cached: dict[str | None, dict[int, int]] = {}  # adapter -> digest -> in how many namespaces
        tree.watchers.append(self)

    def added(self, node: Node) -> None:
        """The tree's call: a page is cached."""
        digests = self._cached.setdefault(_adapter(node.namespace), {})
        digests[node.digest] = digests.get(node.digest, 0) + 1

    def removing(self, node: Node) -> None:
        """The tree's call: a page is evicted."""
        adapter = _adapter(node.namespace)
        digests = self._cached[adapter]
        left = digests.pop(node.digest) - 1
        if left:
            digests[node.digest] = left
        elif not digests:
            del self._cached[adapter]
        self._evicted[hash((node.namespace, node.digest))] = None
        self._evicted.move_to_end(hash((node.namespace, node.digest)))
        if len(self._evicted) > self._most_evicted:
            self._evicted.popitem(last=False)

    def forget_evicted(self) -> None:
        """What was evicted until now was not needed for others."""
        self._evicted.clear()

    def explain(self, tokens: Tokens, limit: int, namespace: Hashable, cached: int) -> CacheMiss | None:
        """Why only the first `cached` of `tokens` came from the cache, when `limit` of them could have.

        None if they all did. To be asked when the page table has just been made; O(pages of the cached part).
        """
        if cached >= limit:
            return None
        size = self._tree.page_size
        first = cached // size * size
        before = self._tree.node_at(tokens[:first], namespace)
        page = token_bytes(tokens[first : first + size])
        reason = self._whole_page(before, page, namespace)
        if reason is not None:
            return CacheMiss(reason, cached, int(tokens[cached]))
        near = None if before is None else self._tree.nearest_child(before, page)
        if near is not None:
            node, shared = near
            if cached <= first + shared < first + len(page) // TOKEN_BYTES:
                return _differs(tokens, first + shared, node, shared)
        if first + size > limit:
            return CacheMiss("short", cached, int(tokens[cached]))
        if near is None and before is not None and before.depth >= 0 and before.children:
            return _differs(tokens, first, next(reversed(before.children.values())), 0)
        return CacheMiss("new", cached, int(tokens[cached]))

    def check(self) -> None:
        """Assert that the counts are those of the tree; for tests and soaks."""
        counts: dict[str | None, dict[int, int]] = {}
        for page in self._tree.cached_pages():
            node = self._tree.node_of(page)
            assert node is not None
            digests = counts.setdefault(_adapter(node.namespace), {})
            digests[node.digest] = digests.get(node.digest, 0) + 1
        assert counts == self._cached, "the pages of all namespaces are counted wrong"
        assert len(self._evicted) <= self._most_evicted

    def _whole_page(
        self, before: Node | None, page: bytes, namespace: Hashable
    ) -> Literal["evicted", "salt", "adapter"] | None:
        """What has become of exactly this page after this prefix, here or in another namespace."""
        if len(page) < self._tree.page_size * TOKEN_BYTES or (before is not None and page in before.children):
            return None  # in the second case somebody has computed it meanwhile
        digest = hash((0 if before is None else before.digest, page))
        if hash((namespace, digest)) in self._evicted:
            return "evicted"
        if digest in self._cached.get(_adapter(namespace), ()):
            return "salt"
        if any(digest in digests for digests in self._cached.values()):
            return "adapter"
        return None


def _adapter(namespace: Hashable) -> str | None:
    return getattr(namespace, "adapter", None)


def _differs(tokens: Tokens, position: int, node: Node, at: int) -> CacheMiss:
    """At `position` the tokens part from the page of a node, which has another one at its place `at`."""
    return CacheMiss("differs", position, int(tokens[position]), memoryview(node.key).cast("i")[at])
