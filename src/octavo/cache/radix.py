"""The prefix tree: token ids -> full KV pages, shared by every request.

One node per page, found in its parent's children by the page's own tokens, so tokens themselves are compared and a
hash collision cannot serve a wrong page. The path from a root to a node spells a prefix; the keys and values of a
page depend on that whole prefix, hence a tree. Each namespace (salt, adapter, KV format) has a root of its own.

Same idea as SGLang's RadixAttention (Zheng et al. 2024, arXiv:2312.07104), on pages instead of single tokens.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from octavo.cache.pages import PagePool

__all__ = ["TOKEN_BYTES", "Match", "Node", "RadixTree", "Tokens", "token_bytes"]

TOKEN_BYTES = 4
Tokens: TypeAlias = "array[int] | Sequence[int] | NDArray[np.int32]"


def token_bytes(tokens: Tokens) -> bytes:
    """Token ids as consecutive native i32; equal prefixes of tokens are equal prefixes of bytes."""
    if isinstance(tokens, array) and tokens.typecode == "i":
        return tokens.tobytes()
    if isinstance(tokens, np.ndarray):
        return tokens.astype(np.int32, copy=False).tobytes()
    return array("i", tokens).tobytes()


class Node:
    """One cached page. `key`: bytes of its tokens; `stamp`: when it was last used, on the tree's counter.

    `order`: the children's keys sorted, kept only once a partial match among many children has asked for it.
    """

    __slots__ = ("children", "key", "order", "page", "parent", "queued", "stamp")

    def __init__(self, parent: Node | None, key: bytes, page: int) -> None:
        self.parent = parent
        self.key = key
        self.page = page
        self.children: dict[bytes, Node] = {}
        self.order: list[bytes] | None = None
        self.stamp = 0
        self.queued = False


class Match(NamedTuple):
    """The longest cached prefix of some tokens.

    pages: full pages that match. tokens: how many tokens they hold. partial: (page, n) of a cached page whose first
    n tokens are the next tokens: to be used, it must be copied (copy-on-write). nodes: the nodes of `pages`.
    """

    pages: list[int]
    tokens: int
    partial: tuple[int, int] | None
    nodes: list[Node]


class RadixTree:
    """Names full pages of a pool by the tokens that lead to them.

    Lookup is O(pages of the prefix), independent of how many prefixes are cached. Eviction is O(log n): leaves that
    no sequence uses wait in a heap by last use; entries that have gone stale are dropped or renewed when they surface.
    """

    # Up to here a partial match compares each child; above it a sorted list is built and kept.
    _SCAN = 8

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self.pool = pool
        self.page_size = page_size
        self._key_bytes = page_size * TOKEN_BYTES
        self._roots: dict[Hashable, Node] = {}
        self._by_page: list[Node | None] = [None] * pool.num_pages
        self._namespace_of: dict[int, Hashable] = {}
        self._heap: list[tuple[int, int, Node]] = []
        self._tie = count()
        self._clock = 0
        self._size = 0

    def __len__(self) -> int:
        """Cached pages, used or idle."""
        return self._size

    def node_of(self, page: int) -> Node | None:
        """The node that names a page, if one does."""
        return self._by_page[page]

    def cached_pages(self) -> Iterator[int]:
        return (page for page, node in enumerate(self._by_page) if node is not None)

    def match(self, tokens: Tokens, namespace: Hashable = None) -> Match:
        """The longest cached prefix of `tokens`. Marks it as used now; takes no reference."""
        data = token_bytes(tokens)
        nodes: list[Node] = []
        node = self._roots.get(namespace)
        if node is None:
            return Match([], 0, None, nodes)
        self._clock += 1
        size, at = self._key_bytes, 0
        while (child := node.children.get(data[at : at + size])) is not None:
            child.stamp = self._clock
            nodes.append(child)
            node, at = child, at + size
        partial = self._partial(node, data[at : at + size])
        return Match([n.page for n in nodes], len(nodes) * self.page_size, partial, nodes)

    def insert(self, parent: Node | None, key: bytes, page: int, namespace: Hashable = None) -> Node:
        """Name `page`, which holds the tokens `key` after the prefix of `parent` (None: at the start).

        If these tokens are cached already the node there is returned: node.page is then another page with the same
        contents, and `page` is left as it was. The caller holds references on the parent's page and on `page`.
        """
        assert len(key) == self._key_bytes, f"a page has {self.page_size} tokens, not {len(key) / TOKEN_BYTES:g}"
        if parent is None:
            parent = self._root(namespace)
        self._clock += 1
        node = parent.children.get(key)
        if node is None:
            node = Node(parent, key, page)
            self.pool.cache(page)
            parent.children[key] = node
            if parent.order is not None:
                insort(parent.order, key)
            self._by_page[page] = node
            self._size += 1
        node.stamp = self._clock
        return node

    def idle(self, pages: Sequence[int]) -> None:
        """Tell the tree that these pages lost their last user just now: the leaves among them can be evicted."""
        self._clock += 1
        for page in pages:
            node = self._by_page[page]
            if node is not None:
                node.stamp = self._clock
                if not node.children:
                    self._enqueue(node)

    def evict(self, pages: int) -> int:
        """Free up to `pages` idle pages, least recently used first, children before parents; returns how many."""
        freed = 0
        while freed < pages and self._heap:
            stamp, _, node = heapq.heappop(self._heap)
            node.queued = False
            if node.page < 0 or node.children or self.pool.refs(node.page):
                continue  # it will be queued again when its children or users are gone
            if stamp != node.stamp:
                self._enqueue(node)  # used since it was queued
                continue
            self._remove(node)
            freed += 1
        return freed

    def _root(self, namespace: Hashable) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, b"", -1)
            self._namespace_of[id(root)] = namespace
        return root

    def _partial(self, node: Node, rest: bytes) -> tuple[int, int] | None:
        """The child that shares the longest start with `rest`, if it shares a token."""
        if len(rest) < TOKEN_BYTES or not node.children:
            return None
        best, page = 0, -1
        for key in self._neighbours(node, rest):
            shared = _common_tokens(key, rest)
            if shared > best:
                best, page = shared, node.children[key].page
        return (page, best) if best else None

    def _neighbours(self, node: Node, rest: bytes) -> list[bytes]:
        """Children that can share the longest start with `rest`: in sorted order, they are next to it."""
        if node.order is None:
            if len(node.children) <= self._SCAN:
                return list(node.children)
            node.order = sorted(node.children)
        at = bisect_left(node.order, rest)
        return node.order[max(0, at - 1) : at + 1]

    def _enqueue(self, node: Node) -> None:
        if not node.queued:
            node.queued = True
            heapq.heappush(self._heap, (node.stamp, next(self._tie), node))

    def _remove(self, node: Node) -> None:
        parent, page = node.parent, node.page
        assert parent is not None
        assert not node.children
        del parent.children[node.key]
        if parent.order is not None:
            del parent.order[bisect_left(parent.order, node.key)]
        node.page, node.parent = -1, None
        self._by_page[page] = None
        self._size -= 1
        self.pool.uncache(page)
        if parent.children:
            return
        if parent.parent is None:
            del self._roots[self._namespace_of.pop(id(parent))]
        elif self.pool.refs(parent.page) == 0:
            self._enqueue(parent)


def _common_tokens(a: bytes, b: bytes) -> int:
    """Length of the common start of two runs of i32 tokens."""
    n = min(len(a), len(b)) // TOKEN_BYTES
    x, y = np.frombuffer(a, np.int32, n), np.frombuffer(b, np.int32, n)
    differ = np.flatnonzero(x != y)
    return int(differ[0]) if len(differ) else n
