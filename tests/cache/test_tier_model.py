"""The tier under drawn admissions, ends, evictions, resets and restarts: pages hold what their tokens say, always.

Reads from disk go on page by page, where the machine says so, so that tables are freed with a page half written; the
queue for the disk is short, so that pages are dropped.
"""

from __future__ import annotations

import random
import tempfile
from array import array
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.tiers import FILE_BYTES, PAGE_BYTES, SIZE, SteppedStore, TieredCache
from octavo.cache.disk_format import PageKey
from octavo.cache.manager import PageTable

# Prompts of a few pages that mostly begin alike, and a rest that is often part of such a page.
PROMPTS = st.builds(
    lambda pages, rest: array("i", [token for token in pages for _ in range(SIZE)] + rest),
    st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=4),
    st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=SIZE),
)
NAMESPACES = st.sampled_from([None, "x"])
PAGES = 11


class TierMachine(RuleBasedStateMachine):
    """live: sequences with all their pages; loading: those that wait for the disk."""

    @initialize(cap=st.sampled_from([3, 1000]), queue=st.sampled_from([1, 4, 1000]))
    def start(self, cap: int, queue: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.cap, self.queue = cap, queue
        self.seen = Counter[str]()
        self.open()

    def open(self) -> None:
        self.live: list[tuple[array[int], PageTable]] = []
        self.loading: list[tuple[array[int], PageTable]] = []
        self.here = TieredCache(
            Path(self.folder.name),
            PAGES,
            self.cap * FILE_BYTES,
            stepped=True,
            queue_bytes=self.queue * PAGE_BYTES,
        )
        self.store.may_write.clear()  # what is queued must not depend on how fast the disk is

    @property
    def store(self) -> SteppedStore:
        assert isinstance(self.here.store, SteppedStore)
        return self.here.store

    @rule(tokens=PROMPTS, namespace=NAMESPACES, fetch=st.sampled_from([True, True, False]))
    def begin(self, tokens: array[int], namespace: str | None, fetch: bool) -> None:
        table = self.here.begin(tokens, namespace, fetch=fetch)
        if table is None:
            assert not self.here.cache.fits(tokens, limit=len(tokens) - 1, namespace=namespace, headroom=0)
        elif table.loading is not None:
            assert fetch
            self.loading.append((tokens, table))
        else:
            self.here.compute(table, tokens)
            self.live.append((tokens, table))

    # Few rules that do several things: hypothesis leaves some rules out of each run, and all of these are needed.

    @rule(steps=st.integers(0, 8), which=st.integers(0, 3))
    def read(self, steps: int, which: int) -> None:
        """Go on with reads, and take up what has come."""
        for _ in range(steps):
            if self.store.reads:
                self.store.step(which % len(self.store.reads))
        for each in list(self.loading):
            tokens, table = each
            if self.here.cache.poll(table):
                self.seen["loaded"] += table.disk > 0
                self.seen["both from RAM and from disk"] += table.cached > table.disk > 0
                self.here.compute(table, tokens)
                self.loading.remove(each)
                self.live.append(each)

    @rule(which=st.integers(0, 20), count=st.integers(1, 3))
    def end(self, which: int, count: int) -> None:
        for tables in (self.live, self.loading) if which % 2 else (self.loading, self.live):
            for _ in range(min(count, len(tables))):
                self.here.cache.free(tables.pop(which % len(tables))[1])
                count -= 1
        self.seen["given up while it was read"] += self.here.tier.loads.given_up

    @rule(pages=st.integers(0, 3), write=st.booleans())
    def demote(self, pages: int, write: bool) -> None:
        self.here.cache.pump(pages * PAGE_BYTES)
        if write:
            self.store.may_write.set()
            self.store.flush()
            self.store.may_write.clear()

    @rule(what=st.sampled_from(["begin", "begin", "begin", "restart", "restart", "reset", "renew"]), tokens=PROMPTS)
    def upheaval(self, what: str, tokens: array[int]) -> None:
        if what != "begin":
            getattr(self, what)()
        self.begin(tokens, None, True)

    def reset(self) -> None:
        held = {page for _, table in self.live for page in table.pages[: table.published]}
        self.here.cache.reset()
        assert self.here.cache.usage().cached_pages == 0
        assert held <= set(self.here.cache.tree.cached_pages())
        assert (self.store.stats().pages, self.store.stats().queued_pages) == (0, 0)

    def renew(self) -> None:
        """As after an interrupt: all tables are gone, and nothing is written into their pages."""
        self.store.finish()
        self.here.cache = self.here.cache.renewed()
        self.live, self.loading = [], []
        assert self.here.cache.usage().free_pages == PAGES

    def restart(self) -> None:
        keys = self.close()
        self.open()
        if self.cap > 100:
            assert all(self.store.longest_prefix([key]) for key in keys), "closing lost a page"

    def close(self) -> list[PageKey]:
        """End everything; returns what was cached by then."""
        self.seen["dropped"] += self.store.stats().dropped
        self.seen["evicted"] += self.here.cache.usage().evicted_pages
        for _, table in self.live + self.loading:
            self.here.cache.free(table)
        self.store.finish()
        self.here.cache.pump(0)
        self.here.check_idle()
        tree, tier = self.here.cache.tree, self.here.tier
        keys = [tier._key(node) for page in tree.cached_pages() if (node := tree.node_of(page)) is not None]
        self.store.may_write.set()
        self.here.cache.close()
        return keys

    @invariant()
    def every_table_holds_its_own_tokens(self) -> None:
        self.here.cache.check()
        for tokens, table in self.live:
            self.here.check(table, tokens)

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        cache = self.here.cache
        given_up = [page for load in self.here.tier.loads for page in load.pages if not load.wanted]
        held = [page for _, table in self.live + self.loading for page in table.pages] + given_up
        assert all(cache.pool.refs(page) == held.count(page) for page in range(PAGES))
        usage = cache.usage()
        assert usage.used_pages == len(set(held))
        assert usage.used_pages + usage.cached_pages + usage.free_pages == PAGES
        loading = sum(len(table.loading.pages) for _, table in self.loading if table.loading is not None)
        assert usage.loading_pages == loading + len(given_up)
        assert usage.disk_tokens <= usage.hit_tokens
        tier, nodes = self.here.tier, {cache.tree.node_of(page) for page in cache.tree.cached_pages()}
        assert tier._offered | tier._keys.keys() <= nodes, "evicted pages are remembered"
        stats = self.store.stats()
        assert (stats.corrupt, stats.writes_off) == (0, None)

    def teardown(self) -> None:
        self.close()
        self.folder.cleanup()


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("seed", range(4))
def test_a_long_run(seed: int) -> None:
    """The same with weights that bring about each thing that can happen, many times."""
    draw, machine = random.Random(seed), TierMachine()
    machine.start(cap=[1000, 8][seed % 2], queue=[1000, 2][seed // 2])
    for _ in range(1000):
        tokens = array("i", [token for _ in range(draw.randrange(1, 5)) for token in [draw.randrange(2)] * SIZE])
        tokens.extend(draw.choices([0, 0, 1], k=draw.randrange(1, SIZE + 1)))
        op = draw.randrange(100)
        if op < 40:
            machine.begin(tokens, draw.choice([None, None, "x"]), draw.random() < 0.8)
        elif op < 60:
            machine.read(draw.randrange(5), draw.randrange(4))
        elif op < 82:
            machine.end(draw.randrange(21), draw.randrange(1, 4))
        elif op < 95:
            machine.demote(draw.randrange(4), draw.random() < 0.5)
        else:
            machine.upheaval(draw.choice(["restart", "restart", "reset", "renew"]), tokens)
        machine.every_table_holds_its_own_tokens()
        machine.every_page_is_accounted_for()
    machine.teardown()
    happened = {"loaded", "both from RAM and from disk", "given up while it was read", "evicted"}
    if machine.queue == 2:
        happened.add("dropped")
    assert all(machine.seen[each] for each in happened), machine.seen
