"""Page tables: prefix hits, copy-on-write, sharing, publishing, and the books balanced after it all."""

from __future__ import annotations

from array import array

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.cache.manager import CacheManager, PageTable
from octavo.cache.radix import Namespace
from octavo.core.errors import ConfigError

SIZE = 4
PAGES = 14
VALUES = st.lists(st.integers(0, 1), min_size=1, max_size=15)
NAMESPACES = st.sampled_from([Namespace(), Namespace(salt="x")])


def tokens_of(*tokens: int) -> array[int]:
    return array("i", tokens)


def run(cache: CacheManager, tokens: array[int], namespace: str | None = None) -> PageTable:
    """A sequence that has computed and published all its tokens."""
    table = cache.begin(tokens, limit=len(tokens) - 1, namespace=namespace)
    assert table is not None
    cache.publish(table, tokens, len(tokens))
    return table


def test_a_second_prompt_takes_the_pages_of_the_first() -> None:
    cache = CacheManager(16, SIZE)
    first = run(cache, tokens_of(1, 2, 3, 4, 5, 6, 7, 8, 9))
    second = cache.begin(tokens_of(1, 2, 3, 4, 5, 6, 0, 0), limit=7)
    assert second is not None
    assert second.pages[0] == first.pages[0]
    assert second.cached == 6
    assert second.copy == (first.pages[1], second.pages[1])
    assert cache.pool.num_used == 4
    cache.copies_done()
    cache.free(first)
    cache.free(second)
    assert cache.usage().cached_pages == 2
    assert cache.usage().hit_tokens == 6
    cache.check()


def test_the_source_of_a_copy_is_not_used_for_anything_else_before_the_copy() -> None:
    cache = CacheManager(4, SIZE)
    cache.free(run(cache, tokens_of(1, 2, 3, 4)))
    table = cache.begin(tokens_of(1, 2, 3, 5), limit=3)
    assert table is not None
    assert table.copy is not None
    assert cache.begin(tokens_of(*range(10, 22)), limit=0) is None
    source, _ = table.copy
    cache.copies_done()
    assert cache.begin(tokens_of(*range(10, 22)), limit=0) is not None
    assert cache.tree.node_of(source) is None


def test_a_table_that_is_freed_before_its_copy_lets_the_source_go() -> None:
    cache = CacheManager(5, SIZE)
    cache.free(run(cache, tokens_of(*range(12))))
    table = cache.begin(tokens_of(0, 1, 2, 3, 4, 5, 9, 9), limit=7)
    assert table is not None
    assert table.copy is not None
    cache.free(table)
    assert cache.begin(tokens_of(*range(20, 40)), limit=0) is not None


def test_gives_up_a_copy_rather_than_a_place() -> None:
    cache = CacheManager(1, SIZE)
    cache.free(run(cache, tokens_of(1, 2, 3, 4)))
    table = cache.begin(tokens_of(1, 2, 3, 5), limit=3)
    assert table is not None
    assert table.copy is None
    assert table.cached == 0


def test_one_token_is_always_left_to_compute() -> None:
    cache = CacheManager(16, SIZE)
    tokens = tokens_of(1, 2, 3, 4, 5, 6, 7, 8)
    cache.free(run(cache, tokens))
    table = cache.begin(tokens, limit=7)
    assert table is not None
    assert table.cached == 7
    assert table.copy is not None


def test_two_sequences_that_compute_the_same_page_end_up_with_one() -> None:
    cache = CacheManager(16, SIZE)
    tokens = tokens_of(1, 2, 3, 4, 5)
    a, b = cache.begin(tokens, limit=4), cache.begin(tokens, limit=4)
    assert a is not None
    assert b is not None
    assert a.pages[0] != b.pages[0]
    assert cache.next_page_key(a, tokens, 0) == cache.next_page_key(b, tokens, 0) is not None
    cache.publish(a, tokens, 5)
    cache.publish(b, tokens, 5)
    assert a.pages[0] == b.pages[0]
    assert cache.pool.refs(a.pages[0]) == 2
    assert cache.next_page_key(a, tokens, 5) is None
    cache.check()


def test_too_few_pages_changes_nothing() -> None:
    cache = CacheManager(3, SIZE)
    held = run(cache, tokens_of(1, 2, 3, 4, 5))
    before = cache.usage()
    assert cache.begin(tokens_of(1, 2, 3, 4, 5, 6, 7, 8, 9), limit=8) is None
    assert cache.begin(tokens_of(9), limit=0, headroom=1) is None
    assert not cache.extend(held, 13)
    assert cache.usage() == before
    assert cache.extend(held, 12)
    assert len(held.pages) == 3
    cache.check()


def test_idle_pages_are_evicted_for_new_work() -> None:
    cache = CacheManager(3, SIZE)
    cache.free(run(cache, tokens_of(1, 2, 3, 4, 5, 6, 7, 8, 9)))
    table = cache.begin(tokens_of(*[7] * 12), limit=11)
    assert table is not None
    assert cache.usage().evicted_pages == 2
    cache.check()


def test_a_shared_table_carries_the_prompt_to_a_sibling_without_caching() -> None:
    cache = CacheManager(16, SIZE, enable_prefix_caching=False)
    prompt = tokens_of(1, 2, 3, 4, 5, 6)
    leader = run(cache, prompt)
    held = cache.share(leader, 6)
    sibling = cache.begin(prompt, limit=5, shared=held)
    assert sibling is not None
    assert sibling.pages[0] == leader.pages[0]
    assert sibling.cached == 5
    assert sibling.copy == (leader.pages[1], sibling.pages[1])
    cache.copies_done()
    for table in (leader, held, sibling):
        cache.free(table)
    assert cache.usage().free_pages == 16
    assert cache.usage().cached_pages == 0


def test_reset_drops_what_nobody_uses() -> None:
    cache = CacheManager(16, SIZE)
    cache.free(run(cache, tokens_of(*range(9))))
    kept = run(cache, tokens_of(*range(20, 25)))
    assert cache.reset() == 2
    assert cache.usage().used_pages == 2
    cache.free(kept)
    cache.check()


class ManagerMachine(RuleBasedStateMachine):
    """Sequences are admitted, grow, share, and end on a small pool, between pins and evictions.

    Contents of pages are simulated as tokens. What each table would read must be the tokens of its own sequence: a page
    handed out twice, copied from the wrong source, or evicted while in use shows up as a wrong token.

    pinned: the pages of each pinned prefix, as prefixes. kept: those that have been seen in the cache, with their page.
    """

    @initialize(caching=st.booleans())
    def start(self, caching: bool) -> None:
        self.cache = CacheManager(PAGES, SIZE, enable_prefix_caching=caching)
        self.memory: list[list[int | None]] = [[None] * SIZE for _ in range(PAGES)]
        self.live: list[tuple[array[int], PageTable]] = []
        self.shares: list[tuple[array[int], PageTable]] = []
        self.pinned: dict[tuple[Namespace, tuple[int, ...]], set[tuple[Namespace, tuple[int, ...]]]] = {}
        self.kept: dict[tuple[Namespace, tuple[int, ...]], int] = {}

    def write(self, table: PageTable, tokens: array[int], start: int) -> None:
        for position in range(start, len(tokens)):
            self.memory[table.pages[position // SIZE]][position % SIZE] = tokens[position]

    def admit(self, tokens: array[int], table: PageTable | None) -> None:
        if table is None:
            assert self.cache.available < self.cache.pages_for(len(tokens))
            return
        if table.copy is not None:
            source, target = table.copy
            self.memory[target] = list(self.memory[source])
            self.cache.copies_done()
        self.write(table, tokens, table.cached)
        self.cache.publish(table, tokens, len(tokens))
        self.live.append((tokens, table))

    @rule(values=VALUES, namespace=NAMESPACES)
    def begin(self, values: list[int], namespace: Namespace) -> None:
        tokens = array("i", values)
        self.admit(tokens, self.cache.begin(tokens, limit=len(tokens) - 1, namespace=namespace))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), values=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def grow(self, data: st.DataObject, values: list[int]) -> None:
        tokens, table = self.live[data.draw(st.integers(0, len(self.live) - 1))]
        if self.cache.extend(table, len(tokens) + len(values)):
            start = len(tokens)
            tokens.extend(values)
            self.write(table, tokens, start)
            self.cache.publish(table, tokens, len(tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        tokens, table = self.live[data.draw(st.integers(0, len(self.live) - 1))]
        count = data.draw(st.integers(1, len(tokens)))
        self.shares.append((tokens[:count], self.cache.share(table, count)))

    @precondition(lambda self: self.shares)
    @rule(values=st.lists(st.integers(0, 1), max_size=6), drop=st.booleans())
    def use_share(self, values: list[int], drop: bool) -> None:
        prompt, shared = self.shares[-1]
        tokens = prompt + array("i", values)
        self.admit(tokens, self.cache.begin(tokens, limit=len(tokens) - 1, shared=shared))
        if drop:
            self.shares.pop()
            self.cache.free(shared)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        _, table = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.cache.free(table)

    @rule(values=VALUES, namespace=NAMESPACES)
    def pin(self, values: list[int], namespace: Namespace) -> None:
        full = len(values) // SIZE * SIZE
        prefixes = {(namespace, tuple(values[:end])) for end in range(SIZE, full + 1, SIZE)}
        together = prefixes.union(*self.pinned.values())
        if not self.cache.enable_prefix_caching or not prefixes or len(together) > PAGES // 2:
            with pytest.raises(ConfigError):
                self.cache.pin(values, namespace)
            return
        held = self.cache.pin(values, namespace)
        self.pinned[namespace, tuple(values[:full])] = prefixes
        self.look()
        assert held == len(prefixes & self.kept.keys())

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        namespace, tokens = data.draw(st.sampled_from(list(self.pinned)))
        assert self.cache.unpin(tokens, namespace)
        assert not self.cache.unpin(tokens, namespace)
        del self.pinned[namespace, tokens]
        left: set[tuple[Namespace, tuple[int, ...]]] = set().union(*self.pinned.values())
        self.kept = {prefix: page for prefix, page in self.kept.items() if prefix in left}

    @rule(pages=st.integers(1, PAGES))
    def evict(self, pages: int) -> None:
        idle = self.cache.usage().cached_pages
        assert self.cache.tree.evict(pages) == min(pages, idle)

    @rule(values=VALUES, namespace=NAMESPACES)
    def match(self, values: list[int], namespace: Namespace) -> None:
        match = self.cache.tree.match(values, namespace)
        read = [token for page in match.pages for token in self.memory[page]]
        assert read == values[: match.tokens]
        if match.partial is not None:
            page, count = match.partial
            assert self.memory[page][:count] == values[match.tokens : match.tokens + count]

    def look(self) -> None:
        """Take note of pinned pages that have come into the cache."""
        for prefix in set().union(*self.pinned.values()):
            node = self.cache.tree.node_at(prefix[1], prefix[0])
            if node is not None:
                self.kept.setdefault(prefix, node.page)

    @invariant()
    def pinned_pages_stay(self) -> None:
        self.look()
        for (namespace, tokens), page in self.kept.items():
            node = self.cache.tree.node_at(tokens, namespace)
            assert node is not None
            assert node.page == page
            assert self.memory[page] == list(tokens[-SIZE:])

    @invariant()
    def every_table_reads_its_own_tokens(self) -> None:
        self.cache.check()
        for tokens, table in self.live + self.shares:
            read = [self.memory[table.pages[p // SIZE]][p % SIZE] for p in range(len(tokens))]
            assert read == tokens.tolist()

    @invariant()
    def references_are_those_of_the_tables(self) -> None:
        held = [page for _, table in self.live + self.shares for page in table.pages]
        held.extend(self.kept.values())
        usage = self.cache.usage()
        assert usage.used_pages == len(set(held))
        assert usage.pinned_pages == len(self.kept)
        assert usage.used_pages + usage.cached_pages + usage.free_pages == PAGES
        for page in range(PAGES):
            assert self.cache.pool.refs(page) == held.count(page)

    def teardown(self) -> None:
        for _, table in self.live + self.shares:
            self.cache.free(table)
        self.cache.check()
        assert self.cache.usage().used_pages == self.cache.usage().pinned_pages == len(self.kept)
        for namespace, tokens in self.pinned:
            assert self.cache.unpin(tokens, namespace)
        usage = self.cache.usage()
        assert (usage.used_pages, usage.pinned_pages, usage.tree_nodes) == (0, 0, usage.cached_pages)
        assert not any(self.cache.pool.refs(page) for page in range(PAGES))
        self.cache.reset()
        usage = self.cache.usage()
        assert (usage.free_pages, usage.tree_nodes, usage.namespaces) == (PAGES, 0, 0)


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
