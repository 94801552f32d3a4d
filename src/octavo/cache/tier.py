"""The disk below the page pool: which cached pages go there, and what a prompt finds there.

Pages go to disk (demotion) after the first sequence that used them has ended: they join a backlog, and `pump` copies
some of it into the store's queue between steps, within a budget. A page that is evicted before its turn is copied at
once. Pages come back (promotion) through `CacheManager.begin`, which asks `on_disk` for the pages that follow those in
RAM, and loads them in the background (see loading.py).

The engine thread pays for dictionary look-ups, for one digest a page (about 1 us, once in a page's life) and for the
copy of a page (0.1 ms a megabyte). Everything that touches files runs in the store's threads.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.disk import DiskStore
from octavo.cache.disk_format import PageIdentity, PageKey, as_bytes, page_keys
from octavo.cache.loading import Loads
from octavo.cache.radix import Node, RadixTree

__all__ = ["Tier"]

# When closing: how long one page may wait for room before the writer's state is looked at again.
_CLOSE_WAIT_S = 60.0


class Tier:
    """Disk pages of one model for one `CacheManager`, over a store that it closes.

    identity: of the pages of a namespace. parts: the C-contiguous pieces of a page in RAM, read and written.
    page_size: tokens of a page. All methods are for the thread that runs the manager; `parts` is called by others too.
    """

    # Pages of a backlog that one budgeted pump looks at: those on disk already cost 2 us each and no budget.
    _MOST_PAGES = 64

    def __init__(
        self,
        store: DiskStore,
        identity: Callable[[Hashable], PageIdentity],
        parts: Callable[[int], Sequence[NDArray[Any]]],
        page_size: int,
    ) -> None:
        self.store = store
        self.page_size = page_size
        self.page_bytes = sum(len(as_bytes(part)) for part in parts(0))
        self.loads = Loads(store, parts)
        self._identity, self._parts = identity, parts
        self._tree: RadixTree | None = None  # the one that it serves
        self._keys: dict[Node, PageKey] = {}
        self._offered: set[Node] = set()
        self._backlog: deque[Node] = deque()

    @property
    def backlog(self) -> int:
        """Pages that wait to be copied; some may have been evicted, or be on disk already."""
        return len(self._backlog)

    def attach(self, tree: RadixTree) -> None:
        """Serve a tree from now on: take its pages when they are evicted."""
        assert self._tree is None, "it serves one tree at a time"
        self._tree = tree
        tree.watchers.append(self)

    def detach(self) -> None:
        """Leave the tree alone, and forget its nodes."""
        assert self._tree is not None
        self._tree.watchers.remove(self)
        self._tree = None
        self._keys.clear()
        self._offered.clear()
        self._backlog.clear()

    def added(self, node: Node) -> None:
        """A page is published: nothing to do before its first user has ended."""

    def removing(self, node: Node) -> None:
        """A page is about to be used for something else: the last moment to copy it."""
        self._offered.discard(node)
        if self.store.writes_off is None and not self.store.longest_prefix([key := self._key(node)]):
            self.store.put(key, self._parts(node.page))
        self._keys.pop(node, None)

    def on_disk(self, after: Node | None, namespace: Hashable, tokens: array[int]) -> list[PageKey]:
        """Keys of the pages of `tokens`, from the first on, that are on disk.

        after: the node of the page before them; None: they start a prompt. A prompt of which nothing is on disk costs
        one digest beside those of `after`.
        """
        parent = None if after is None else self._key(after)
        identity = self._identity(namespace) if parent is None else parent.identity
        keys = page_keys(identity, tokens[: self.page_size], parent)
        if not self.store.longest_prefix(keys):
            return []
        keys += page_keys(identity, tokens[self.page_size :], keys[-1])
        return keys[: self.store.longest_prefix(keys)]

    def offer(self, nodes: Iterable[Node]) -> None:
        """Put pages in the backlog, each once as long as it is cached."""
        for node in nodes:
            if node not in self._offered:
                self._offered.add(node)
                self._backlog.append(node)

    def loaded(self, nodes: Sequence[Node], keys: Sequence[PageKey]) -> None:
        """These pages came from disk, under these keys."""
        self._keys.update(zip(nodes, keys, strict=True))
        self._offered.update(nodes)

    def pump(self, max_bytes: int | None, wait_s: float = 0.0) -> None:
        """Copy pages of the backlog into the store's queue.

        max_bytes: the budget, exceeded by a single page only; None: no budget. wait_s: how long to wait for room in
        the queue, each time that it is full. The rest stays for another call; where nothing is written any more it is
        dropped.
        """
        backlog, store = self._backlog, self.store
        if store.writes_off is not None:
            backlog.clear()
        looks, copied = (len(backlog) if max_bytes is None else min(len(backlog), self._MOST_PAGES)), 0
        for _ in range(looks):
            node = backlog[0]
            if node.page >= 0 and not store.longest_prefix([key := self._key(node)]):
                spent = max_bytes is not None and copied > 0 and copied + self.page_bytes > max_bytes
                if spent or not store.has_room(self.page_bytes, wait_s):
                    return
                store.put(key, self._parts(node.page))
                copied += self.page_bytes
            backlog.popleft()

    def close(self) -> None:
        """Write every cached page that is not on disk, and close the store. Waits for the disk.

        Those used last are written last, so where the cap is too small for all, they are the ones that stay.
        """
        if self._tree is not None:
            nodes = map(self._tree.node_of, self._tree.cached_pages())
            self._backlog = deque(sorted((node for node in nodes if node is not None), key=attrgetter("stamp")))
            while self._backlog:
                self.pump(None, _CLOSE_WAIT_S)
            self.detach()
        self.store.close()

    def _key(self, node: Node) -> PageKey:
        """The key of a node, and with it those of its ancestors, computed once."""
        path: list[Node] = []
        key = self._keys.get(node)
        while key is None and node.parent is not None:
            path.append(node)
            node = node.parent
            key = self._keys.get(node)
        if path:
            identity = self._identity(node.namespace) if key is None else key.identity
            path.reverse()
            tokens = np.frombuffer(b"".join([each.key for each in path]), np.int32)
            keys = page_keys(identity, tokens, key)
            self._keys.update(zip(path, keys, strict=True))
            key = keys[-1]
        assert key is not None, "a root has no key"
        return key
