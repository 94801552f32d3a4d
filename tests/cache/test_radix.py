"""The prefix tree against a model that keeps every cached prefix in a dictionary."""

from __future__ import annotations

import time

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.cache.pages import PagePool
from octavo.cache.radix import TOKEN_BYTES, Node, RadixTree, Tokens, token_bytes

SIZE = 4
PAGES = 24
# A tiny alphabet, so that prefixes meet and part at every place in a page.
TOKENS = st.lists(st.integers(0, 2), max_size=18)
NAMESPACES = st.sampled_from([None, "salt"])


def publish(tree: RadixTree, tokens: Tokens, pages: list[int], namespace: str | None = None) -> list[int]:
    """Name the full pages of a whole prefix; returns the pages that the tree holds for it."""
    data, size = token_bytes(tokens), tree.page_size * TOKEN_BYTES
    node: Node | None = None
    held = []
    for i in range(min(len(pages), len(data) // size)):
        node = tree.insert(node, data[i * size : (i + 1) * size], pages[i], namespace)
        held.append(node.page)
    return held


def fill(tree: RadixTree, tokens: list[int], namespace: str | None = None) -> list[int]:
    """Publish the full pages of `tokens` as a sequence would, then end the sequence."""
    own = [tree.pool.alloc() for _ in range(len(tokens) // tree.page_size)]
    held = publish(tree, tokens, own, namespace)
    tree.idle([page for page in own if tree.pool.decref(page) == 0 and tree.pool.is_cached(page)])
    return held


def test_match_returns_full_pages_and_the_longest_partial_one() -> None:
    tree = RadixTree(PagePool(16), SIZE)
    first = fill(tree, [1, 2, 3, 4, 5, 6, 7, 8])
    fill(tree, [1, 2, 3, 4, 5, 9, 9, 9])
    match = tree.match([1, 2, 3, 4, 5, 6, 7, 0])
    assert (match.pages, match.tokens) == (first[:1], 4)
    assert match.partial == (first[1], 3)
    assert tree.match([1, 2, 3, 4, 5, 6, 7, 8, 9]).pages == first
    assert tree.match([1, 2]).partial == (first[0], 2)
    assert tree.match([7]) == ([], 0, None, [])
    assert tree.match([]) == ([], 0, None, [])


def test_looking_at_a_node_finds_whole_pages_and_is_no_use_of_them() -> None:
    tree = RadixTree(PagePool(8), SIZE)
    tree.cost_growth = 0.0
    old = fill(tree, [1, 2, 3, 4, 5, 6, 7, 8])
    fill(tree, [9] * 4)
    node = tree.node_at([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert node is not None
    assert (node.page, node.depth) == (old[1], 1)
    root = tree.node_at([1, 2])
    assert root is not None
    assert root.depth == -1
    assert tree.node_at([1, 2, 3, 4, 0, 0, 0, 0]) is None
    assert tree.node_at([1, 2, 3, 4], "salt") is None
    assert tree.evict(1) == 1
    assert tree.node_of(old[1]) is None


class Diary:
    """A watcher that writes down what it is told; a page that goes is still on its path."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int, int | None]] = []

    def added(self, node: Node) -> None:
        assert node.parent is not None
        assert node.parent.children[node.key] is node
        self.lines.append(("added", node.page, node.depth))

    def removing(self, node: Node) -> None:
        assert node.parent is not None
        assert node.parent.children[node.key] is node
        self.lines.append(("removing", node.page, node.depth))


def test_watchers_are_told_of_each_page_once() -> None:
    tree = RadixTree(PagePool(8), SIZE)
    diary = Diary()
    tree.watchers.append(diary)
    a, b = fill(tree, [1, 2, 3, 4, 5, 6, 7, 8], "salt")
    fill(tree, [1, 2, 3, 4], "salt")
    assert diary.lines == [("added", a, 0), ("added", b, 1)]
    del diary.lines[:]
    assert tree.num_namespaces == 1
    tree.evict(2)
    assert diary.lines == [("removing", b, 1), ("removing", a, 0)]
    assert tree.num_namespaces == 0


def test_digests_tell_prefixes_apart_and_leave_the_namespace_out() -> None:
    tree = RadixTree(PagePool(16), SIZE)
    prefixes = ([1] * 8, [2] * 4 + [1] * 4, [1] * 12)
    pages = [fill(tree, tokens)[-1] for tokens in prefixes] + [fill(tree, [1] * 8, "salt")[-1]]
    nodes = [tree.node_of(page) for page in pages]
    digests = [node.digest for node in nodes if node is not None]
    assert len(set(digests[:3])) == 3
    assert digests[3] == digests[0]


def test_namespaces_do_not_meet() -> None:
    tree = RadixTree(PagePool(8), SIZE)
    fill(tree, [1, 2, 3, 4], "a")
    assert tree.match([1, 2, 3, 4], "b").tokens == 0
    assert tree.match([1, 2, 3, 4]).tokens == 0
    assert tree.match([1, 2, 3, 4], "a").tokens == 4


def test_equal_pages_after_different_prefixes_are_different() -> None:
    tree = RadixTree(PagePool(8), SIZE)
    a = fill(tree, [1, 1, 1, 1, 5, 5, 5, 5])
    b = fill(tree, [2, 2, 2, 2, 5, 5, 5, 5])
    assert a[1] != b[1]
    assert tree.match([2, 2, 2, 2, 5, 5, 5, 5]).pages == b


def test_any_kind_of_token_sequence_is_the_same() -> None:
    tree = RadixTree(PagePool(8), SIZE)
    pages = fill(tree, [7, 8, 9, 10])
    assert tree.match(np.array([7, 8, 9, 10], np.int64)).pages == pages
    assert tree.match((7, 8, 9, 10)).pages == pages


def test_eviction_takes_the_least_recently_used_leaf_and_never_a_used_page() -> None:
    tree = RadixTree(PagePool(8), SIZE)
    old = fill(tree, [1] * 8)
    new = fill(tree, [2] * 8)
    tree.match([1] * 8)
    assert tree.evict(1) == 1
    assert tree.match([2] * 8).pages == new[:1]
    tree.pool.incref(old[0])
    tree.pool.incref(old[1])
    assert tree.evict(8) == 1
    assert tree.match([1] * 8).pages == old
    for page in old:
        tree.pool.decref(page)
    tree.idle(old)
    assert tree.evict(8) == 2
    assert len(tree) == 0
    assert not tree._roots
    tree.pool.check([])


def test_a_page_deep_in_a_prefix_outlives_a_cheap_one_used_after_it() -> None:
    tree = RadixTree(PagePool(16), SIZE)
    tree.cost_growth = 0.5
    deep = fill(tree, [1] * 8 * SIZE)
    first = fill(tree, [2] * SIZE)
    second = fill(tree, [3] * SIZE)
    assert tree.evict(2) == 2
    assert [tree.node_of(first[0]), tree.node_of(second[0])] == [None, None]
    assert all(tree.node_of(page) for page in deep)


def test_a_costly_page_that_nobody_uses_goes_in_the_end() -> None:
    tree = RadixTree(PagePool(8), SIZE)
    tree.cost_growth = 1.0
    deep = tree.node_of(fill(tree, [0] * 4 * SIZE)[-1])  # it costs as much as four first pages
    assert deep is not None
    turns = 0
    for token in range(1, 9):
        if deep.page < 0:
            break
        turns += 1
        fill(tree, [token] * SIZE)
        assert tree.evict(1) == 1
    assert turns == 4, "three first pages were worth less, the fourth as much and was used later"


def test_a_hit_counts_from_the_floor_of_now() -> None:
    tree = RadixTree(PagePool(8), SIZE)
    tree.cost_growth = 0.9
    kept = fill(tree, [1] * 2 * SIZE)  # worth 1.9
    fill(tree, [2] * SIZE)
    assert tree.evict(1) == 1  # worth 1
    rival = fill(tree, [3] * SIZE)  # worth 2
    tree.match([1] * 2 * SIZE)
    assert tree.evict(1) == 1
    assert tree.node_of(kept[1]) is not None
    assert tree.node_of(rival[0]) is None


def test_the_floor_never_falls() -> None:
    tree = RadixTree(PagePool(8), SIZE)
    tree.cost_growth = 0.9
    fill(tree, [1] * 2 * SIZE)  # worth 1.9, and then 1
    deep = fill(tree, [2] * 3 * SIZE)  # worth 2.8
    assert tree.evict(2) == 2
    late = fill(tree, [3] * SIZE)  # worth 2.9
    assert tree.evict(1) == 1
    assert tree.node_of(late[0]) is not None
    assert tree.node_of(deep[2]) is None


def test_a_new_cost_growth_counts_for_pages_queued_from_then_on() -> None:
    tree = RadixTree(PagePool(8), SIZE)
    tree.cost_growth = 0.0
    old = fill(tree, [1] * 2 * SIZE)
    tree.cost_growth = 1.0
    new = fill(tree, [2] * 2 * SIZE)
    fill(tree, [3] * SIZE)
    assert tree.evict(3) == 3
    assert [tree.node_of(page) is None for page in old + new] == [True, True, False, False]


def test_ten_thousand_prefixes_of_two_thousand_tokens_are_searched_in_under_a_millisecond() -> None:
    size, prefixes, length = 32, 10_000, 2_000
    shared = 1_800  # the rest differs in each, so the tree has one node with 10,000 children
    pool = PagePool(shared // size + prefixes * 8)
    tree = RadixTree(pool, size)
    rng = np.random.default_rng(0)
    head = rng.integers(0, 50_000, shared).astype(np.int32)
    tails = rng.integers(0, 50_000, (prefixes, length - shared)).astype(np.int32)
    first = [pool.alloc() for _ in range(length // size)]
    publish(tree, np.concatenate([head, tails[0]]), first)
    common = len(head) // size
    for tail in tails[1:]:
        own = [pool.alloc() for _ in range(length // size - common)]
        publish(tree, np.concatenate([head, tail]), first[:common] + own)
    best = float("inf")
    for i in range(0, prefixes, 500):
        query = np.concatenate([head, tails[i], [1]]).astype(np.int32)
        start = time.perf_counter()
        match = tree.match(query)
        best = min(best, time.perf_counter() - start)
        assert match.tokens == length // size * size
        query[-20:] = 60_000
        assert tree.match(query).partial is not None
    assert best < 1e-3


class TreeMachine(RuleBasedStateMachine):
    """Sequences come, publish, and go, while pages are evicted; a dictionary of prefixes says what must be found.

    Each page's last use is kept, too: (floor, clock) of then. Whom to evict is found by looking at all of them.
    """

    @initialize(growth=st.sampled_from([0.0, 0.01, 0.6]))
    def start(self, growth: float) -> None:
        self.tree = RadixTree(PagePool(PAGES), SIZE)
        self.tree.cost_growth = self.growth = growth
        self.cached: dict[tuple[str | None, tuple[int, ...]], int] = {}
        self.users: list[list[int]] = []
        self.last_use: dict[int, tuple[float, int]] = {}
        self.floor, self.clock = 0.0, 0

    def use(self, pages: list[int]) -> None:
        self.clock += 1
        for page in pages:
            self.last_use[page] = (self.floor, self.clock)

    def worth(self, key: tuple[str | None, tuple[int, ...]]) -> tuple[float, int]:
        floor, clock = self.last_use[self.cached[key]]
        if self.growth == 0:
            return 0.0, clock  # uniform costs: recency alone
        return floor + 1 + (len(key[1]) // SIZE - 1) * self.growth, clock

    def next_victim(self) -> tuple[str | None, tuple[int, ...]]:
        parents = {(space, prefix[:-SIZE]) for space, prefix in self.cached}
        leaves = [key for key in self.cached if key not in parents and not self.tree.pool.refs(self.cached[key])]
        return min(leaves, key=self.worth)

    @rule(tokens=TOKENS, namespace=NAMESPACES)
    def run_a_sequence(self, tokens: list[int], namespace: str | None) -> None:
        pool, match = self.tree.pool, self.tree.match(tokens, namespace)
        need = len(tokens) // SIZE - len(match.pages)
        if pool.num_free < need:
            return
        pages = list(match.pages)
        for page in pages:
            pool.incref(page)
        pages += [pool.alloc() for _ in range(need)]
        assert publish(self.tree, tokens, pages, namespace) == pages
        for i, page in enumerate(pages):
            self.cached[namespace, tuple(tokens[: (i + 1) * SIZE])] = page
        self.users.append(pages)
        self.use(pages)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def end_a_sequence(self, data: st.DataObject) -> None:
        pages = self.users.pop(data.draw(st.integers(0, len(self.users) - 1)))
        idle = [page for page in pages if self.tree.pool.decref(page) == 0]
        self.tree.idle(idle)
        self.use(idle)

    @rule(pages=st.integers(1, 6))
    def evict(self, pages: int) -> None:
        count = min(pages, self.tree.pool.num_idle)
        assert self.tree.evict(pages) == count
        for _ in range(count):
            victim = self.next_victim()
            self.floor = max(self.floor, self.worth(victim)[0])
            del self.cached[victim]
        assert set(self.tree.cached_pages()) == set(self.cached.values())

    @rule(tokens=TOKENS, namespace=NAMESPACES)
    def match_is_the_longest(self, tokens: list[int], namespace: str | None) -> None:
        full = 0
        while (namespace, tuple(tokens[: full + SIZE])) in self.cached and full + SIZE <= len(tokens):
            full += SIZE
        expected = [self.cached[namespace, tuple(tokens[: i + SIZE])] for i in range(0, full, SIZE)]
        match = self.tree.match(tokens, namespace)
        assert (match.pages, match.tokens) == (expected, full)
        self.use(match.pages)
        rest = tokens[full : full + SIZE]
        shared = {
            page: next((i for i, (x, y) in enumerate(zip(rest, key[full:], strict=False)) if x != y), len(rest))
            for (space, key), page in self.cached.items()
            if space == namespace and len(key) == full + SIZE and list(key[:full]) == tokens[:full]
        }
        best = max(shared.values(), default=0)
        if best == 0:
            assert match.partial is None
        else:
            assert match.partial is not None
            assert match.partial[1] == best
            assert shared[match.partial[0]] == best

    @invariant()
    def pages_are_in_one_state(self) -> None:
        self.tree.pool.check(self.tree.cached_pages())
        assert set(self.tree.cached_pages()) == set(self.cached.values())
        for page in range(PAGES):
            assert self.tree.pool.refs(page) == sum(user.count(page) for user in self.users)


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_partial_matches_among_many_children_use_the_sorted_list() -> None:
    rng = np.random.default_rng(1)
    tree = RadixTree(PagePool(600), SIZE)
    rows = {tuple(int(t) for t in row) for row in rng.integers(0, 6, (400, SIZE))}
    for row in rows:
        fill(tree, list(row))
    for query in rng.integers(0, 7, (300, SIZE)).tolist():
        match = tree.match(query)
        if match.tokens:
            continue
        best = max(next((i for i in range(SIZE) if row[i] != query[i]), SIZE) for row in rows)
        assert (match.partial[1] if match.partial else 0) == best
        if rng.random() < 0.3:
            fill(tree, query)
            rows.add(tuple(query))
