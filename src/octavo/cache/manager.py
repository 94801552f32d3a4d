"""What the scheduler asks of the cache: page tables for sequences, prefix hits, sharing, publishing."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

from octavo.cache.explain import Explainer
from octavo.cache.pages import PagePool
from octavo.cache.pins import Pins
from octavo.cache.radix import TOKEN_BYTES, Node, RadixTree, Tokens
from octavo.cache.table import CacheUsage, PageTable
from octavo.core.errors import ConfigError
from octavo.core.outputs import CacheMiss

if TYPE_CHECKING:  # the disk tier brings libraries that take 10 ms to import
    from octavo.cache.disk_format import PageKey
    from octavo.cache.tier import Tier

__all__ = ["CacheManager", "CacheUsage", "PageTable"]

# What a step gives to the backlog of the disk: copied in 0.2 ms, and with 100 steps a second what a good disk takes.
PUMP_BYTES = 2 << 20


class CacheManager:
    """Page tables over one pool of `num_pages` pages of `page_size` tokens.

    tier: cached pages on disk; the manager is its only user and closes it. fetch_worthwhile: told how many tokens could
    come from disk and how many bytes of pages they are, it says whether to read them; may be set at any time.

    Raises:
        ConfigError: a tier without prefix caching.
    """

    def __init__(
        self, num_pages: int, page_size: int, *, enable_prefix_caching: bool = True, tier: Tier | None = None
    ) -> None:
        if tier is not None and not enable_prefix_caching:
            raise ConfigError("prefix_cache_dir needs enable_prefix_caching; turn it on or leave out prefix_cache_dir")
        self.page_size = page_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = PagePool(num_pages)
        self.tree = RadixTree(self.pool, page_size)
        self.pins = Pins(self.tree)
        self._explainer = Explainer(self.tree)
        self._copying: list[PageTable] = []
        self.tier = tier
        self.fetch_worthwhile: Callable[[int, int], bool] = lambda tokens, disk_bytes: True
        self._queried = self._hits = self._evicted = self._from_disk = 0
        if tier is not None:
            assert tier.page_size == page_size, "pages of RAM and disk have one size"
            tier.attach(self.tree)

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
            loading_pages=0 if self.tier is None else self.tier.loads.num_pages,
            disk_tokens=self._from_disk,
            backlog_pages=0 if self.tier is None else self.tier.backlog,
        )

    def begin(
        self,
        tokens: array[int],
        *,
        limit: int,
        namespace: Hashable = None,
        shared: PageTable | None = None,
        headroom: int = 0,
        fetch: bool = True,
    ) -> PageTable | None:
        """A table with room for all of `tokens`, its start taken from the cache.

        limit: at most this many leading tokens may come from the cache. shared: a table made by `share`, which
        holds the first tokens already and is used instead of a search. headroom: pages that must be left over.
        fetch: where the disk has more full pages, read them in the background: table.loading is not None then.
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
        keys = self._on_disk(table, tokens, limit) if fetch and shared is None else []
        if keys and partial is not None:
            self._let_go([partial[0]])
        self._grow(table, need)
        if keys:
            self._load(table, keys, tokens, limit)
        elif partial is not None:
            self._plan_copy(table, partial)
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
        for table in list(self._copying):
            self.cancel_copy(table)

    def cancel_copy(self, table: PageTable) -> None:
        """The page that was to be copied has got its contents otherwise, or has been given up."""
        if table.copy is not None:
            self._copying = [other for other in self._copying if other is not table]
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
        """Give up all pages; published ones stay cached until they are evicted. The table is empty afterwards.

        Pages that are being written from disk stay in use until that has ended, at most a page's read later.
        """
        if self.tier is not None:
            self.tier.offer(self._node(page) for page in table.pages[: table.published])
            if table.loading is not None and not self.tier.loads.give_up(table.loading):
                del table.pages[table.published : table.published + len(table.loading.pages)]
        self.cancel_copy(table)
        self._let_go(table.pages)
        del table.pages[:]
        table.cached = table.published = table.disk = 0
        table.cursor = table.loading = None

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

    def explain(self, tokens: array[int], limit: int, namespace: Hashable, cached: int) -> CacheMiss | None:
        """Why no more than `cached` of the first `limit` tokens came from the cache; None if there was no miss.

        For a table that `begin` has just made. Knows nothing of "off" and "logprobs": those are the caller's choice.
        """
        return self._explainer.explain(tokens, limit, namespace, cached)

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
        """Drop every cached page that is neither in use nor pinned, and all pages on disk.

        Returns how many pages of the pool there were. What is in use stays cached, pages that are being read from disk
        included. Deletes files in the calling thread, those of other models in the same directory too: what is to be
        forgotten is not left in files.
        """
        if self.tier is not None:
            self.tier.detach()
        dropped = self.tree.evict(self.pool.num_pages)
        self._explainer.forget_evicted()
        if self.tier is not None:
            self.tier.attach(self.tree)
            self.tier.store.clear()
        return dropped

    def check(self) -> None:
        """Assert the invariants of pool, tree, pins and loads; for tests and soaks."""
        self.pool.check(self.tree.cached_pages())
        self.pins.check()
        self._explainer.check()
        if self.tier is not None:
            self.tier.loads.check(self.pool)

    def poll(self, table: PageTable) -> bool:
        """Whether a table can be computed on: True once nothing is loading (any more).

        What came from disk is published and counts as cached, with the full pages that have been cached since. Where
        less came than was asked for, the rest is to be computed. No copy is planned: the table may be freed before the
        step that would make it.
        """
        load = table.loading
        if load is None:
            return True
        if not load.done:
            return False
        assert self.tier is not None
        count, table.loading = self.tier.loads.finish(load), None
        first, before = table.published, table.cached
        self.publish(table, load.tokens, (first + count) * self.page_size)
        self.tier.loaded([self._node(page) for page in table.pages[first : table.published]], load.keys[:count])
        self._take_cached(table, load.tokens, load.limit)
        table.disk = count * self.page_size
        self._from_disk += table.disk
        self._hits += table.cached - before
        return True

    def wait(self, tables: Iterable[PageTable], timeout_s: float | None = None) -> None:
        """Block until one of the tables that load has its pages, or for so long; for when nothing else can run."""
        if self.tier is not None:
            self.tier.loads.wait([table.loading for table in tables if table.loading is not None], timeout_s)

    def settle(self) -> bool:
        """Block until pages that are being written for a freed table are free; False when there are none.

        That takes at most a page's read.
        """
        if self.tier is None or not self.tier.loads.given_up:
            return False
        self.tier.loads.wait_given_up()
        self._let_go(self.tier.loads.reap())
        return True

    def pump(self, max_bytes: int | None = PUMP_BYTES, *, wait_s: float = 0.0) -> bool:
        """Copy cached pages for the disk, once between two steps; returns whether there are more.

        max_bytes: the budget, exceeded by a single page only; None: all that the disk's queue takes. wait_s: how long
        to wait where that queue is full, for when there is nothing else to do.
        """
        if self.tier is None:
            return False
        self._let_go(self.tier.loads.reap())
        self.tier.pump(max_bytes, wait_s)
        return self.tier.backlog > 0

    def renewed(self) -> CacheManager:
        """An empty manager in place of this one, whose books are broken, with the same prefixes pinned.

        Ends what is being read from disk.
        """
        if self.tier is not None:
            self.tier.loads.end()
            self.tier.detach()
        pages, caching = self.pool.num_pages, self.enable_prefix_caching
        cache = CacheManager(pages, self.page_size, enable_prefix_caching=caching, tier=self.tier)
        cache.fetch_worthwhile, cache.tree.cost_growth = self.fetch_worthwhile, self.tree.cost_growth
        cache.pins.limit = self.pins.limit
        for namespace, tokens in self.pins:
            cache.pin(tokens, namespace)
        return cache

    def close(self) -> None:
        """Write every cached page that is not on disk, which may take a while, and go on without a disk.

        All tables have been freed. Twice is no error.
        """
        if self.tier is not None:
            self._let_go(self.tier.loads.end())
            self.tier.close()
            self.tier = None

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

    def _on_disk(self, table: PageTable, tokens: array[int], limit: int) -> list[PageKey]:
        """Keys of the full pages that follow those of the table, as far as they are better read than computed."""
        size, first, last = self.page_size, len(table.pages), limit // self.page_size
        if self.tier is None or first >= last:
            return []
        keys = self.tier.on_disk(table.cursor, table.namespace, tokens[first * size : last * size])
        if not keys or not self.fetch_worthwhile(len(keys) * size, len(keys) * self.tier.page_bytes):
            return []
        return keys

    def _load(self, table: PageTable, keys: list[PageKey], tokens: array[int], limit: int) -> None:
        """Read pages into those that follow the table's cached ones."""
        assert self.tier is not None
        first = table.published
        table.loading = self.tier.loads.start(keys, table.pages[first : first + len(keys)], tokens, limit)

    def _take_cached(self, table: PageTable, tokens: array[int], limit: int) -> None:
        """Change from full pages of its own to those that have been cached since the table was made."""
        match = self.tree.match(tokens[:limit], table.namespace)
        for index in range(table.published, len(match.nodes)):
            node = match.nodes[index]
            self.pool.incref(node.page)
            self.pool.decref(table.pages[index])
            table.pages[index], table.cursor = node.page, node
        table.published, table.cached = len(match.nodes), match.tokens

    def _plan_copy(self, table: PageTable, partial: tuple[int, int]) -> None:
        """Take the start of a cached page, on which a reference has been taken, into the table's first own page."""
        source, count = partial
        self._copying.append(table)
        table.copy = (source, table.pages[table.cached // self.page_size])
        table.cached += count

    def _node(self, page: int) -> Node:
        node = self.tree.node_of(page)
        assert node is not None, f"page {page} is not cached"
        return node

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
