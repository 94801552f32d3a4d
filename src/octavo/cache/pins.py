"""Pinned prefixes: pages that stay cached whatever else needs room.

The full pages of a pinned prefix are held by a reference, like those of a sequence, from the moment they are cached:
those that are there when it is pinned, the others when somebody has computed them. Prefixes that begin alike share
their pages here as in the cache, so pins are a tree of their own, beside the tree of what is cached.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator

from octavo.cache.radix import TOKEN_BYTES, Node, RadixTree, Tokens, token_bytes
from octavo.core.errors import ConfigError

__all__ = ["Pins"]


class _Pin:
    """A page of pinned prefixes. ends: one of them ends here. page: the cached page that is held, -1 if there is none.

    Held pages have held parents: a page is cached only after the ones before it, and held ones are not evicted.
    """

    __slots__ = ("children", "ends", "key", "page", "parent")

    def __init__(self, parent: _Pin | None, key: bytes) -> None:
        self.parent, self.key = parent, key
        self.children: dict[bytes, _Pin] = {}
        self.ends = False
        self.page = -1


class Pins:
    """The pinned prefixes of one tree; it tells them what is added.

    limit: pages that may be pinned in all, cached or not. Half of the pool at most: the rest has to run sequences. An
    engine lowers it where its longest sequence needs more than half.
    """

    def __init__(self, tree: RadixTree) -> None:
        self.limit = tree.pool.num_pages // 2
        self._tree = tree
        self._roots: dict[Hashable, _Pin] = {}
        self._held: dict[int, _Pin] = {}
        self._size = 0
        tree.watchers.append(self)

    def __len__(self) -> int:
        """Pages of all pinned prefixes, cached or not."""
        return self._size

    def __iter__(self) -> Iterator[tuple[Hashable, array[int]]]:
        """Every pinned prefix: its namespace and the tokens of its full pages."""
        for namespace, root in self._roots.items():
            todo = [(root, b"")]
            while todo:
                pin, tokens = todo.pop()
                if pin.ends:
                    yield namespace, array("i", tokens)
                todo.extend((child, tokens + key) for key, child in pin.children.items())

    @property
    def num_held(self) -> int:
        """Those of them that are cached, and held."""
        return len(self._held)

    def add(self, tokens: Tokens, namespace: Hashable) -> int:
        """Pin the full pages of a prefix; returns how many of them are cached and held now. Twice is as good as once.

        Raises:
            ConfigError: the prefix has no full page, or more than `limit` would be pinned.
        """
        keys = list(self._keys(tokens))
        if not keys:
            raise ConfigError(
                f"cannot pin {len(tokens)} tokens: whole pages are pinned, and one has {self._tree.page_size} tokens; "
                "pin a longer prefix or lower block_size"
            )
        self._check_room(keys, namespace)
        pin = self._roots.get(namespace)
        if pin is None:
            pin = self._roots[namespace] = _Pin(None, b"")
        for key in keys:
            child = pin.children.get(key)
            if child is None:
                child = pin.children[key] = _Pin(pin, key)
                self._size += 1
            pin = child
        pin.ends = True
        return self._hold_cached(keys, namespace)

    def remove(self, tokens: Tokens, namespace: Hashable) -> bool:
        """End the pin of exactly these full pages; False if they are not pinned. Pages of other pins stay."""
        pin = self._roots.get(namespace)
        for key in self._keys(tokens):
            pin = None if pin is None else pin.children.get(key)
        if pin is None or not pin.ends:
            return False
        pin.ends = False
        idle = []
        while pin.parent is not None and not pin.children and not pin.ends:
            if pin.page >= 0:
                del self._held[pin.page]
                if self._tree.pool.decref(pin.page) == 0:
                    idle.append(pin.page)
            self._size -= 1
            del pin.parent.children[pin.key]
            pin = pin.parent
        if not self._roots[namespace].children:
            del self._roots[namespace]
        self._tree.idle(idle)
        return True

    def added(self, node: Node) -> None:
        """The tree's call: hold the page if it continues what is held."""
        if not self._roots:
            return
        assert node.parent is not None
        before = self._roots.get(node.namespace) if node.depth == 0 else self._held.get(node.parent.page)
        pin = None if before is None else before.children.get(node.key)
        if pin is not None:
            self._hold(pin, node.page)

    def removing(self, node: Node) -> None:
        """The tree's call."""
        assert node.page not in self._held, f"pinned page {node.page} is evicted"

    def check(self) -> None:
        """Assert the invariants: all that is pinned and cached is held, by one reference. For tests and soaks."""
        size, held = 0, {}
        for namespace, root in self._roots.items():
            assert root.children, "a namespace without pins"
            todo = [(root, self._tree.node_at([], namespace))]
            while todo:
                pin, node = todo.pop()
                for key, child in pin.children.items():
                    size += 1
                    cached = None if node is None else node.children.get(key)
                    assert child.page == (-1 if cached is None else cached.page), "pinned and cached, but not held"
                    assert child.children or child.ends, "a pin of nothing"
                    if cached is not None:
                        held[child.page] = child
                        assert self._tree.pool.refs(child.page) > 0, "a pinned page without a reference"
                    todo.append((child, cached))
        assert size == self._size, "pages of pins are counted wrong"
        assert held == self._held, "held pages are not those of the pins"

    def _keys(self, tokens: Tokens) -> Iterator[bytes]:
        data, size = token_bytes(tokens), self._tree.page_size * TOKEN_BYTES
        return (data[end - size : end] for end in range(size, len(data) + 1, size))

    def _check_room(self, keys: list[bytes], namespace: Hashable) -> None:
        pin, known = self._roots.get(namespace), 0
        for key in keys:
            pin = None if pin is None else pin.children.get(key)
            if pin is None:
                break
            known += 1
        if self._size + len(keys) - known > self.limit:
            raise ConfigError(
                f"cannot pin {len(keys)} pages, {len(keys) - known} of them new: {self._size} are pinned, and of the "
                f"KV cache's {self._tree.pool.num_pages} pages at most {self.limit} can be; unpin another prefix, pin "
                "fewer tokens, raise kv_cache_bytes or lower max_model_len"
            )

    def _hold_cached(self, keys: list[bytes], namespace: Hashable) -> int:
        """Hold what is cached of these pages, all of which are pinned; returns how many."""
        pin, node = self._roots[namespace], self._tree.node_at([], namespace)
        for count, key in enumerate(keys):
            pin = pin.children[key]
            node = None if node is None else node.children.get(key)
            if node is None:
                return count
            if pin.page < 0:
                self._hold(pin, node.page)
        return len(keys)

    def _hold(self, pin: _Pin, page: int) -> None:
        self._tree.pool.incref(page)
        pin.page = page
        self._held[page] = pin
