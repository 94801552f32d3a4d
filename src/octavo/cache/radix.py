"""The prefix tree: token ids -> full KV pages, shared by every request.

One node per page, found in its parent's children by the page's own tokens, so tokens themselves are compared and a
hash collision cannot serve a wrong page. The path from a root to a node spells a prefix; the keys and values of a
page depend on that whole prefix, hence a tree. Each namespace has a root of its own.

Same idea as SGLang's RadixAttention (Zheng et al. 2024, arXiv:2312.07104), on pages instead of single tokens. What is
evicted is decided by GreedyDual-Size (Cao & Irani, USENIX Symposium on Internet Technologies and Systems 1997): pages
age by the worth of what has been evicted, and what costs more to compute again lives longer.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from octavo.cache.pages import PagePool

__all__ = [
    "DEFAULT_COST_GROWTH",
    "TOKEN_BYTES",
    "Match",
    "Namespace",
    "Node",
    "RadixTree",
    "Tokens",
    "TreeWatcher",
    "token_bytes",
]

TOKEN_BYTES = 4
Tokens: TypeAlias = "array[int] | Sequence[int] | NDArray[np.int32]"

# What one more page of context adds to the cost of a page: its share of attention in models of about 7B parameters.
# Smaller models measure more (up to 0.04 at 135M); until the engine has measured, too little only means nearer to LRU.
DEFAULT_COST_GROWTH = 0.002


class Namespace(NamedTuple):
    """Requests share cached pages within one namespace only: same cache_salt, same adapter.

    The tree takes any hashable value as a namespace; by these names a miss can be explained.
    """

    salt: str | None = None
    adapter: str | None = None


def token_bytes(tokens: Tokens) -> bytes:
    """Token ids as consecutive native i32; equal prefixes of tokens are equal prefixes of bytes."""
    if isinstance(tokens, array) and tokens.typecode == "i":
        return tokens.tobytes()
    if isinstance(tokens, np.ndarray):
        return tokens.astype(np.int32, copy=False).tobytes()
    return array("i", tokens).tobytes()


class Node:
    """One cached page.

    key: bytes of its tokens. depth: its place in the prefix, from 0; a root has -1. digest: hash of all tokens from the
    start of the prefix to its end, without the namespace; for statistics, nothing is found by it. stamp, floor: the
    tree's clock and floor when it was last used. order: the children's keys sorted, kept where there are many.
    """

    __slots__ = (
        "children",
        "depth",
        "digest",
        "floor",
        "key",
        "namespace",
        "order",
        "page",
        "parent",
        "queued",
        "stamp",
    )

    def __init__(self, parent: Node | None, key: bytes, page: int, namespace: Hashable) -> None:
        self.parent = parent
        self.key = key
        self.page = page
        self.namespace = namespace
        self.depth: int = -1 if parent is None else parent.depth + 1
        self.digest: int = 0 if parent is None else hash((parent.digest, key))
        self.children: dict[bytes, Node] = {}
        self.order: list[bytes] | None = None
        self.stamp = 0
        self.floor = 0.0
        self.queued = False


class TreeWatcher(Protocol):
    """Is told what the tree names, as it happens."""

    def added(self, node: Node) -> None:
        """The tree names this page from now on; its publisher holds a reference on it."""

    def removing(self, node: Node) -> None:
        """The page is evicted: its path and contents are there for the last time."""


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
    no sequence uses wait in a heap by worth; entries that have gone stale are dropped or renewed when they surface.
    A page takes about 600 bytes here, with what explanations keep of it; benchmarks/prefix_lookup.py measures all that.

    A page's worth is the tree's floor when it was last used plus the cost of computing it, relative to a page at the
    start of a sequence: 1 + depth * cost_growth. The least worth goes first, among equals the least recently used, and
    its worth becomes the floor. With cost_growth 0 that is exactly LRU; else a page that costs twice as much stays for
    twice as many evictions.

    Attributes:
        cost_growth: what one more page of context adds to a page's cost. May be set at any time; it counts for pages
            that are queued for eviction from then on.
        watchers: are told of every page that is added and evicted, in the order of the list.
    """

    # Up to here a partial match compares each child; above it a sorted list is kept.
    _SCAN = 8

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self.pool = pool
        self.page_size = page_size
        self.cost_growth = DEFAULT_COST_GROWTH
        self.watchers: list[TreeWatcher] = []
        self._key_bytes = page_size * TOKEN_BYTES
        self._roots: dict[Hashable, Node] = {}
        self._by_page: list[Node | None] = [None] * pool.num_pages
        self._heap: list[tuple[float, int, int, Node]] = []
        self._tie = count()
        self._clock = 0
        self._floor = 0.0
        self._size = 0

    def __len__(self) -> int:
        """Cached pages, used or idle."""
        return self._size

    @property
    def num_namespaces(self) -> int:
        """Namespaces with cached pages."""
        return len(self._roots)

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
        clock, floor = self._clock, self._floor
        size, at = self._key_bytes, 0
        while (child := node.children.get(data[at : at + size])) is not None:
            child.stamp, child.floor = clock, floor
            nodes.append(child)
            node, at = child, at + size
        near = self.nearest_child(node, data[at : at + size])
        partial = None if near is None else (near[0].page, near[1])
        return Match([n.page for n in nodes], len(nodes) * self.page_size, partial, nodes)

    def node_at(self, tokens: Tokens, namespace: Hashable = None) -> Node | None:
        """The node of the last full page of `tokens`, a root if they have none; None where not all are cached.

        Does not count as a use.
        """
        data, size = token_bytes(tokens), self._key_bytes
        node = self._roots.get(namespace)
        for end in range(size, len(data) + 1, size):
            if node is None:
                break
            node = node.children.get(data[end - size : end])
        return node

    def nearest_child(self, node: Node, rest: bytes) -> tuple[Node, int] | None:
        """The child whose tokens share the longest start with `rest`, and how many; None if none shares a token."""
        if len(rest) < TOKEN_BYTES or not node.children:
            return None
        best, nearest = 0, node
        for key in self._neighbours(node, rest):
            shared = _common_tokens(key, rest)
            if shared > best:
                best, nearest = shared, node.children[key]
        return (nearest, best) if best else None

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
            node = Node(parent, key, page, parent.namespace)
            self.pool.cache(page)
            parent.children[key] = node
            if parent.order is not None:
                insort(parent.order, key)
            elif len(parent.children) > self._SCAN:
                parent.order = sorted(parent.children)
            self._by_page[page] = node
            self._size += 1
            for watcher in self.watchers:
                watcher.added(node)
        node.stamp, node.floor = self._clock, self._floor
        return node

    def idle(self, pages: Sequence[int]) -> None:
        """Tell the tree that these pages lost their last user just now: the leaves among them can be evicted."""
        self._clock += 1
        for page in pages:
            node = self._by_page[page]
            if node is not None:
                node.stamp, node.floor = self._clock, self._floor
                if not node.children:
                    self._enqueue(node)

    def evict(self, pages: int) -> int:
        """Free up to `pages` idle pages, those of least worth first, children before parents; returns how many."""
        freed = 0
        while freed < pages and self._heap:
            worth, stamp, _, node = heapq.heappop(self._heap)
            node.queued = False
            if node.page < 0 or node.children or self.pool.refs(node.page):
                continue  # it will be queued again when its children or users are gone
            if stamp != node.stamp:
                self._enqueue(node)  # used since it was queued
                continue
            # A parent may be worth less than the child that had to go before it.
            self._floor = max(self._floor, worth)
            self._remove(node)
            freed += 1
        return freed

    def _root(self, namespace: Hashable) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, b"", -1, namespace)
        return root

    def _neighbours(self, node: Node, rest: bytes) -> list[bytes]:
        """Children that can share the longest start with `rest`: in sorted order, they are next to it."""
        if node.order is None:
            return list(node.children)
        at = bisect_left(node.order, rest)
        return node.order[max(0, at - 1) : at + 1]

    def _enqueue(self, node: Node) -> None:
        if not node.queued:
            node.queued = True
            worth = node.floor + 1.0 + node.depth * self.cost_growth
            heapq.heappush(self._heap, (worth, node.stamp, next(self._tie), node))

    def _remove(self, node: Node) -> None:
        parent, page = node.parent, node.page
        assert parent is not None
        assert not node.children
        for watcher in self.watchers:
            watcher.removing(node)
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
            del self._roots[parent.namespace]
        elif self.pool.refs(parent.page) == 0:
            self._enqueue(parent)


def _common_tokens(a: bytes, b: bytes) -> int:
    """Length of the common start of two runs of i32 tokens."""
    n = min(len(a), len(b)) // TOKEN_BYTES
    end = n * TOKEN_BYTES
    # As numbers whose low bytes come first, they differ first at the lowest set bit of their XOR: 0.5 us for 32 tokens.
    differ = int.from_bytes(a[:end], "little") ^ int.from_bytes(b[:end], "little")
    return ((differ & -differ).bit_length() - 1) // (8 * TOKEN_BYTES) if differ else n
