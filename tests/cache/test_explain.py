"""Why a prompt missed: each reason by an example, and a model that looks at everything that was ever cached."""

from __future__ import annotations

from array import array

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from octavo.cache.explain import Explainer
from octavo.cache.manager import CacheManager, PageTable
from octavo.cache.pages import PagePool
from octavo.cache.radix import Namespace, RadixTree
from octavo.core.outputs import CacheMiss

SIZE = 4
PAGES = 12
PLAIN = Namespace()
SALTED = Namespace(salt="a")
ADAPTED = Namespace(adapter="b")


def begin(cache: CacheManager, tokens: list[int], namespace: Namespace = PLAIN) -> PageTable:
    table = cache.begin(array("i", tokens), limit=len(tokens) - 1, namespace=namespace)
    assert table is not None
    return table


def run(cache: CacheManager, tokens: list[int], namespace: Namespace = PLAIN) -> None:
    """A sequence that computes and publishes all its tokens, and ends."""
    table = begin(cache, tokens, namespace)
    cache.copies_done()
    cache.publish(table, array("i", tokens), len(tokens))
    cache.free(table)


def explain(cache: CacheManager, tokens: list[int], namespace: Namespace = PLAIN) -> CacheMiss | None:
    """As the scheduler asks: right after the table has been made."""
    data = array("i", tokens)
    table = begin(cache, tokens, namespace)
    miss = cache.explain(data, len(data) - 1, namespace, table.cached)
    cache.copies_done()
    cache.free(table)
    cache.check()
    return miss


def test_a_full_hit_needs_no_explanation() -> None:
    cache = CacheManager(PAGES, SIZE)
    run(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    assert explain(cache, [1, 2, 3, 4, 5, 6, 7, 8]) is None
    assert explain(cache, [1, 2, 3, 4, 5]) is None
    assert explain(cache, [1, 2, 3, 4, 5, 6]) is None, "the last page is partly taken"


def test_nothing_like_it() -> None:
    cache = CacheManager(PAGES, SIZE)
    assert explain(cache, [1, 2, 3, 4, 5]) == CacheMiss("new", 0, 1)
    run(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    assert explain(cache, [9, 2, 3, 4, 5]) == CacheMiss("new", 0, 9)
    assert explain(cache, [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5]) == CacheMiss("new", 8, 1)


def test_the_first_token_that_differs_from_the_nearest_prompt() -> None:
    cache = CacheManager(PAGES, SIZE)
    run(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    run(cache, [1, 2, 3, 4, 5, 0, 0, 0])
    assert explain(cache, [1, 2, 3, 4, 5, 6, 9, 8, 7]) == CacheMiss("differs", 6, 9, 7)
    assert explain(cache, [1, 9, 3, 4, 5]) == CacheMiss("differs", 1, 9, 2)
    assert explain(cache, [1, 2, 3, 4, 5, 6, 9, 9]) == CacheMiss("differs", 6, 9, 7), "also in less than a page"


def test_prompts_that_part_between_two_pages_differ_too() -> None:
    cache = CacheManager(PAGES, SIZE)
    run(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    assert explain(cache, [1, 2, 3, 4, 9, 6, 7, 8, 9]) == CacheMiss("differs", 4, 9, 5)


def test_a_page_that_was_not_copied_is_explained_by_where_it_differs() -> None:
    cache = CacheManager(PAGES, SIZE)
    run(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    taken = 4  # there were too few pages to hold the source of a copy
    assert cache.explain(array("i", [1, 2, 3, 4, 5, 6, 9, 8, 7]), 8, PLAIN, taken) == CacheMiss("differs", 6, 9, 7)
    assert cache.explain(array("i", [1, 2, 3, 4, 5, 6, 7, 8]), 7, PLAIN, taken) == CacheMiss("short", 4, 5)


def test_a_nearest_page_that_is_gone_is_not_made_up_for_by_another() -> None:
    cache = CacheManager(PAGES, SIZE)
    run(cache, [1, 2, 3, 4, 5, 0, 0, 0])
    taken = 6  # two tokens were copied from a page that has been evicted since
    assert cache.explain(array("i", [1, 2, 3, 4, 5, 6, 9, 8, 7]), 8, PLAIN, taken) == CacheMiss("new", 6, 9)


def test_less_than_a_page_is_not_cached() -> None:
    cache = CacheManager(PAGES, SIZE)
    run(cache, [1, 2, 3, 4, 5])
    assert explain(cache, [1, 2, 3, 4, 5, 6]) == CacheMiss("short", 4, 5)
    assert explain(cache, [9, 9, 9, 9]) == CacheMiss("short", 0, 9), "one token is always computed"


def test_evicted_pages_are_remembered_until_a_reset() -> None:
    cache = CacheManager(4, SIZE)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    run(cache, prompt)
    run(cache, [7] * 3 * SIZE)  # there is one page too few
    assert explain(cache, prompt) == CacheMiss("evicted", 4, 5)
    run(cache, [8] * 4 * SIZE)
    assert explain(cache, prompt) == CacheMiss("evicted", 0, 1)
    assert explain(cache, prompt[:8]) == CacheMiss("evicted", 0, 1)
    assert explain(cache, prompt, SALTED) == CacheMiss("new", 0, 1), "it never was cached under this salt"
    cache.reset()
    assert explain(cache, prompt) == CacheMiss("new", 0, 1)


def test_the_last_page_of_a_prompt_is_known_though_its_last_token_is_computed_anyway() -> None:
    cache = CacheManager(4, SIZE)
    run(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    run(cache, [7] * 3 * SIZE)
    assert explain(cache, [1, 2, 3, 4, 5, 6, 7, 8]) == CacheMiss("evicted", 4, 5)


def test_another_salt_or_adapter_has_the_page() -> None:
    cache = CacheManager(PAGES, SIZE)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    run(cache, prompt)
    run(cache, prompt[:5], SALTED)
    assert explain(cache, prompt, SALTED) == CacheMiss("salt", 4, 5)
    assert explain(cache, prompt, Namespace(salt="z")) == CacheMiss("salt", 0, 1)
    assert explain(cache, prompt, ADAPTED) == CacheMiss("adapter", 0, 1)
    assert explain(cache, prompt, Namespace("z", "b")) == CacheMiss("adapter", 0, 1), "another salt would not help"
    run(cache, prompt[:5], ADAPTED)
    assert explain(cache, prompt, Namespace("z", "b")) == CacheMiss("salt", 0, 1)
    cache.reset()
    assert explain(cache, prompt, SALTED) == CacheMiss("new", 0, 1)


def test_other_hashable_namespaces_are_salts() -> None:
    cache = CacheManager(PAGES, SIZE)
    run(cache, [1] * 5, "a")  # type: ignore[arg-type]
    assert explain(cache, [1] * 5, None) == CacheMiss("salt", 0, 1)  # type: ignore[arg-type]


def test_what_was_computed_meanwhile_is_no_reason() -> None:
    cache = CacheManager(PAGES, SIZE)
    tokens = array("i", [1, 2, 3, 4, 5])
    table = begin(cache, [1, 2, 3, 4, 5])
    run(cache, [1, 2, 3, 4])
    assert cache.explain(tokens, 4, PLAIN, table.cached) == CacheMiss("new", 0, 1)


def test_the_record_of_evicted_pages_is_bounded_and_drops_the_oldest() -> None:
    tree = RadixTree(PagePool(2), SIZE)
    explainer = Explainer(tree)
    tree.cost_growth = 0.0

    def pass_through(token: int) -> None:
        page = tree.pool.alloc()
        tree.insert(None, array("i", [token] * SIZE).tobytes(), page)
        tree.pool.decref(page)
        tree.idle([page])
        tree.evict(1)

    for token in range(17):
        pass_through(token)
    pass_through(2)  # is the latest again
    pass_through(17)
    pass_through(18)
    known = [explainer.explain([token] * 5, 4, None, 0) for token in range(19)]
    reasons = [miss.reason for miss in known if miss is not None]
    assert reasons == ["new", "new", "evicted", "new"] + ["evicted"] * 15
    explainer.check()


def test_tokens_of_any_kind_give_plain_integers() -> None:
    tree = RadixTree(PagePool(4), SIZE)
    explainer = Explainer(tree)
    tree.insert(None, array("i", [1, 2, 3, 4]).tobytes(), tree.pool.alloc())
    miss = explainer.explain(np.array([1, 2, 9, 4, 5], np.int32), 4, None, 2)
    assert miss == CacheMiss("differs", 2, 9, 3)
    assert isinstance(miss.token, int)
    assert not isinstance(miss.token, np.integer)


class ExplainMachine(RuleBasedStateMachine):
    """Prompts run in several namespaces of a small cache; the model keeps what is cached and what was evicted."""

    @initialize()
    def start(self) -> None:
        self.cache = CacheManager(PAGES, SIZE)
        self.cache._explainer._most_evicted = 10_000
        self.evicted: set[tuple[Namespace, tuple[int, ...]]] = set()

    def cached(self) -> set[tuple[Namespace, tuple[int, ...]]]:
        found = set()
        for page in self.cache.tree.cached_pages():
            node = self.cache.tree.node_of(page)
            assert node is not None
            namespace, tokens = node.namespace, b""
            while node.parent is not None:
                node, tokens = node.parent, node.key + tokens
            assert isinstance(namespace, Namespace)
            found.add((namespace, tuple(array("i", tokens))))
        return found

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=18),
        namespace=st.sampled_from([PLAIN, SALTED, ADAPTED]),
    )
    def ask_and_run(self, tokens: list[int], namespace: Namespace) -> None:
        before = self.cached()
        data = array("i", tokens)
        table = self.cache.begin(data, limit=len(data) - 1, namespace=namespace)
        assert table is not None
        miss = self.cache.explain(data, len(data) - 1, namespace, table.cached)
        cached = self.cached()
        self.evicted |= before - cached
        self.compare(miss, tokens, namespace, table.cached, cached)
        self.cache.copies_done()
        self.cache.publish(table, data, len(data))
        self.cache.free(table)

    def compare(
        self,
        miss: CacheMiss | None,
        tokens: list[int],
        namespace: Namespace,
        taken: int,
        cached: set[tuple[Namespace, tuple[int, ...]]],
    ) -> None:
        limit, first = len(tokens) - 1, taken // SIZE * SIZE
        if taken >= limit:
            assert miss is None
            return
        assert miss is not None
        assert miss.token == tokens[miss.position]
        page = tuple(tokens[: first + SIZE])
        whole = len(page) == first + SIZE
        others = {other for other, prefix in cached if prefix == page}
        if whole and (namespace, page) in self.evicted:
            assert (miss.reason, miss.position) == ("evicted", taken)
        elif whole and any(other.adapter == namespace.adapter for other in others):
            assert (miss.reason, miss.position) == ("salt", taken)
        elif whole and others:
            assert (miss.reason, miss.position) == ("adapter", taken)
        elif miss.reason == "differs":
            assert miss.position >= taken
            near = (*tokens[: miss.position], miss.cached_token)
            assert any(other == namespace and prefix[: len(near)] == near for other, prefix in cached)
            assert miss.cached_token != miss.token
        else:
            assert miss.position == taken
            assert miss.reason == ("short" if first + SIZE > limit else "new")
            near = tuple(tokens[: taken + 1])
            longer = {p for other, p in cached if other == namespace and p[:taken] == near[:taken] and len(p) > first}
            if miss.reason == "new":
                assert not longer or first == 0

    @rule(pages=st.integers(1, 4))
    def evict(self, pages: int) -> None:
        before = self.cached()
        self.cache.tree.evict(pages)
        self.evicted |= before - self.cached()

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.evicted.clear()

    @invariant()
    def counts_are_right(self) -> None:
        self.cache.check()


TestExplainMachine = ExplainMachine.TestCase
TestExplainMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("reason", ["salt", "adapter"])
def test_the_text_of_a_miss_names_what_is_there(reason: str) -> None:
    cache = CacheManager(PAGES, SIZE)
    run(cache, [1] * 5)
    miss = explain(cache, [1] * 5, SALTED if reason == "salt" else ADAPTED)
    assert reason in str(miss)
