"""What the scheduler asks of the cache: page tables for sequences, prefix hits, sharing, publishing.

A `PageTable` belongs to one sequence. Pages at its start may be shared with others (a prefix hit or a fork); from
the first page on that it writes, they are its own. A page is only ever appended to, so whoever shares its first n
slots reads the same values while its owner fills the rest.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from octavo.cache.pages import PagePool
from octavo.cache.pins import Pins
from octavo.cache.radix import TOKEN_BYTES, Node, RadixTree, Tokens
from octavo.core.errors import ConfigError

__all__ = ["CacheManager", "CacheUsage", "PageTable"]


@dataclass
class PageTable:
    """The pages of one sequence, in order of position.

    cached: tokens whose KV was there when the table was made. copy: (source, target), a page to copy before the first
    step; the source is held until `copies_done`.
    published: pages at the start that the prefix tree names; cursor: the node of the last of them.
    """

    namespace: Hashable = None
    pages: array[int] = field(default_factory=lambda: array("i"))
    cached: int = 0
    copy: tuple[int, int] | None = None
    published: int = 0
    cursor: Node | None = None


@dataclass(frozen=True)
class CacheUsage:
    """Pages by state, and what prefix caching has saved. used + cached + free = the pool.

    pinned_pages: held by pins, and therefore among the used ones; where no sequence runs they are all of these.
    tree_nodes: pages that the prefix tree names, used or not. namespaces: of them.
    """

    used_pages: int
    cached_pages: int
    free_pages: int
    queried_tokens: int
    hit_tokens: int
    evicted_pages: int
    pinned_pages: int
    tree_nodes: int
    namespaces: int


class CacheManager:
    """Page tables over one pool of `num_pages` pages of `page_size` tokens."""

    def __init__(self, num_pages: int, page_size: int, *, enable_prefix_caching: bool = True) -> None:
        self.page_size = page_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = PagePool(num_pages)
        self.tree = RadixTree(self.pool, page_size)
        self.pins = Pins(self.tree)
        self._copy_sources: list[int] = []
        self._queried = self._hits = self._evicted = 0

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    @property
    def available(self) -> int:
        """Pages that can be had now: free, or cached and idle.

        Every idle page can be evicted, because a sequence that uses a cached page uses its whole prefix too.
        """
        return self.pool.num_free + self.pool.num_idle

    def usage(self) -> CacheUsage:
        return CacheUsage(
            used_pages=self.pool.num_used,
            cached_pages=self.pool.num_idle,
            free_pages=self.pool.num_free,
            queried_tokens=self._queried,
            hit_tokens=self._hits,
            evicted_pages=self._evicted,
            pinned_pages=self.pins.num_held,
            tree_nodes=len(self.tree),
            namespaces=self.tree.num_namespaces,
        )

    def begin(
        self,
        tokens: array[int],
        *,
        limit: int,
        namespace: Hashable = None,
        shared: PageTable | None = None,
        headroom: int = 0,
    ) -> PageTable | None:
        """A table with room for all of `tokens`, its start taken from the cache.

        limit: at most this many leading tokens may come from the cache. shared: a table made by `share`, which
        holds the first tokens already and is used instead of a search. headroom: pages that must be left over.
        Returns None, with nothing changed, when there are too few pages.
        """
        if shared is not None:
            table, partial = self._from_shared(shared, limit)
        else:
            table, partial = self._from_tree(tokens, limit, namespace)
        need = self.pages_for(len(tokens)) - len(table.pages)
        if partial is not None:
            self.pool.incref(partial[0])
            if self.available < need + headroom:  # rather no copy than no place
                self._let_go([partial[0]])
                partial = None
        if self.available < need + headroom:
            self.free(table)
            return None
        self._grow(table, need)
        full = table.cached
        if partial is not None:
            source, count = partial
            self._copy_sources.append(source)
            table.copy = (source, table.pages[full // self.page_size])
            table.cached = full + count
        self._queried += len(tokens)
        self._hits += table.cached
        return table

    def fits(self, tokens: array[int], *, limit: int, namespace: Hashable, headroom: int) -> bool:
        """Whether `begin` would find pages enough, without a copy."""
        nodes = self.tree.match(tokens[:limit], namespace).nodes if self.enable_prefix_caching else []
        in_use = sum(self.pool.refs(node.page) > 0 for node in nodes)
        return self.available >= self.pages_for(len(tokens)) - in_use + headroom

    def copies_done(self) -> None:
        """The copies of all tables made so far have been carried out, or will never be."""
        if self._copy_sources:
            sources, self._copy_sources = self._copy_sources, []
            self._let_go(sources)

    def cancel_copy(self, table: PageTable) -> None:
        """The page that was to be copied has got its contents otherwise."""
        if table.copy is not None:
            self._copy_sources.remove(table.copy[0])
            self._let_go([table.copy[0]])
            table.copy = None

    def extend(self, table: PageTable, tokens: int) -> bool:
        """Make room for `tokens` tokens in all. False, with nothing changed, when there are too few pages."""
        need = self.pages_for(tokens) - len(table.pages)
        if need <= 0:
            return True
        if self.available < need:
            return False
        self._grow(table, need)
        return True

    def publish(self, table: PageTable, tokens: array[int], computed: int) -> None:
        """Name the pages filled by the first `computed` tokens, so that others can use them.

        Where another sequence has published the same prefix first, this table changes to that page and gives up its
        own: row invariance makes the two equal bit for bit.
        """
        if not self.enable_prefix_caching:
            return
        size = self.page_size
        for i in range(table.published, computed // size):
            page = table.pages[i]
            node = self.tree.insert(table.cursor, tokens[i * size : (i + 1) * size].tobytes(), page, table.namespace)
            if node.page != page:
                self.pool.incref(node.page)
                self.pool.decref(page)
                table.pages[i] = node.page
            table.cursor = node
            table.published = i + 1

    def share(self, table: PageTable, tokens: int) -> PageTable:
        """A second reference to the pages of the first `tokens` tokens, to be passed to `begin` and then freed."""
        pages = table.pages[: self.pages_for(tokens)]
        for page in pages:
            self.pool.incref(page)
        full = tokens // self.page_size
        return PageTable(table.namespace, pages, cached=tokens, published=min(table.published, full))

    def free(self, table: PageTable) -> None:
        """Give up all pages; published ones stay cached until they are evicted. The table is empty afterwards."""
        self._let_go(table.pages)
        del table.pages[:]
        table.cached = table.published = 0
        table.copy = table.cursor = None

    def next_page_key(self, table: PageTable, tokens: array[int], computed: int) -> tuple[int, bytes] | None:
        """Identity of the full page that holds token `computed`: equal for two sequences that would compute the same.

        None when that page is not a full one, or its prefix is not published: then nobody could take it over.
        """
        first = computed // self.page_size
        return self._key(table.cursor, table.namespace, tokens, first) if first == table.published else None

    def first_missing_key(self, tokens: array[int], limit: int, namespace: Hashable) -> tuple[int, bytes] | None:
        """The same for a sequence that has no table yet: the first page that the cache does not have."""
        if not self.enable_prefix_caching:
            return None
        nodes = self.tree.match(tokens[:limit], namespace).nodes
        return self._key(nodes[-1] if nodes else None, namespace, tokens, len(nodes))

    def pin(self, tokens: Tokens, namespace: Hashable) -> int:
        """Keep the full pages of this prefix cached until `unpin`; returns how many of them are cached now.

        The others are pinned as soon as a request has computed them. Tokens after the last full page are not pinned.
        Pinning the same prefix again changes nothing.

        Raises:
            ConfigError: prefix caching is off, there is no full page, or more pages than `pins.limit` would be pinned.
        """
        if not self.enable_prefix_caching:
            raise ConfigError("cannot pin a prefix: prefix caching is off; switch on enable_prefix_caching")
        return self.pins.add(tokens, namespace)

    def unpin(self, tokens: Tokens, namespace: Hashable) -> bool:
        """Let the pages of a pinned prefix be evicted again, but for those of other pins; False if it is not pinned."""
        return self.pins.remove(tokens, namespace)

    def reset(self) -> int:
        """Drop every cached page that is neither in use nor pinned; returns how many."""
        return self.tree.evict(self.pool.num_pages)

    def check(self) -> None:
        """Assert the invariants of pool, tree and pins; for tests and soaks."""
        self.pool.check(self.tree.cached_pages())
        self.pins.check()

    def _key(self, parent: Node | None, namespace: Hashable, tokens: array[int], page: int) -> tuple[int, bytes] | None:
        size = self.page_size
        if (page + 1) * size > len(tokens):
            return None
        prefix = hash(namespace) if parent is None else id(parent)
        return prefix, tokens[page * size : (page + 1) * size].tobytes()

    def _from_tree(
        self, tokens: array[int], limit: int, namespace: Hashable
    ) -> tuple[PageTable, tuple[int, int] | None]:
        table = PageTable(namespace)
        if not self.enable_prefix_caching or limit <= 0:
            return table, None
        match = self.tree.match(tokens[:limit], namespace)
        for page in match.pages:
            self.pool.incref(page)
        table.pages.extend(match.pages)
        table.cached, table.published = match.tokens, len(match.pages)
        table.cursor = match.nodes[-1] if match.nodes else None
        return table, match.partial

    def _from_shared(self, shared: PageTable, limit: int) -> tuple[PageTable, tuple[int, int] | None]:
        full, rest = divmod(min(limit, shared.cached), self.page_size)
        pages = shared.pages[:full]
        for page in pages:
            self.pool.incref(page)
        published = min(full, shared.published)
        cursor = self.tree.node_of(pages[published - 1]) if published else None
        table = PageTable(shared.namespace, pages, full * self.page_size, None, published, cursor)
        return table, (shared.pages[full], rest) if rest else None

    def _let_go(self, pages: Iterable[int]) -> None:
        """One user fewer for each page; those that nobody uses any more can be evicted, if they are cached."""
        pool = self.pool
        idle = [page for page in pages if pool.decref(page) == 0 and pool.is_cached(page)]
        if idle:
            self.tree.idle(idle)

    def _grow(self, table: PageTable, pages: int) -> None:
        short = pages - self.pool.num_free
        if short > 0:
            evicted = self.tree.evict(short)
            assert evicted == short, "idle pages that cannot be evicted"
            self._evicted += evicted
        alloc = self.pool.alloc
        table.pages.extend([alloc() for _ in range(pages)])


# Keys are sliced from arrays of C int; the tree's are i32.
assert array("i").itemsize == TOKEN_BYTES
