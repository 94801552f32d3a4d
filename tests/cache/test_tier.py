"""The disk tier through the manager: what goes to disk and when, what comes back, and that no page is used twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from helpers.disk_pages import files_below
from helpers.tiers import FILE_BYTES, PAGE_BYTES, SIZE, SteppedStore, TieredCache, identity_of, tokens_of
from octavo.cache.disk import DiskStore
from octavo.cache.disk_files import PageFiles
from octavo.cache.disk_format import page_keys
from octavo.cache.manager import CacheManager
from octavo.core.errors import ConfigError

PROMPT = tokens_of(*range(1, 18))  # four full pages and a token
KEYS = page_keys(identity_of(None), PROMPT)


def stepped(here: TieredCache) -> SteppedStore:
    assert isinstance(here.store, SteppedStore)
    return here.store


@pytest.fixture
def warm(tmp_path: Path) -> Path:
    """A directory with the pages of PROMPT."""
    here = TieredCache(tmp_path)
    here.serve(PROMPT)
    here.cache.close()
    return tmp_path


def block_writer(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is written until the event is set."""
    go, real = threading.Event(), PageFiles.write

    def write(self: PageFiles, name: str, record: Sequence[bytes], stamp: int) -> None:
        go.wait()
        real(self, name, record, stamp)

    monkeypatch.setattr(PageFiles, "write", write)
    return go


# Coming back


def test_a_new_process_finds_the_prefix(warm: Path) -> None:
    here = TieredCache(warm)
    assert here.serve(PROMPT) == (16, 16)
    assert here.serve(PROMPT) == (16, 0), "it is in RAM now"
    assert here.serve(PROMPT[:10] + tokens_of(0, 0, 0)) == (10, 0)
    usage = here.cache.usage()
    assert (usage.hit_tokens, usage.disk_tokens) == (16 + 16 + 10, 16)
    here.check_idle()
    here.cache.close()


def test_only_what_is_asked_for_comes(warm: Path) -> None:
    here = TieredCache(warm)
    assert here.serve(PROMPT, "salt") == (0, 0)
    assert here.serve(tokens_of(0, *PROMPT[1:])) == (0, 0)
    assert here.serve(PROMPT[:8]) == (4, 4), "the last token is computed, and with it its page"
    assert here.serve(PROMPT[:9] + tokens_of(0, 0, 0, 0)) == (8, 0), "RAM has the page that was computed"
    assert here.store.stats().hits == 1
    here.cache.close()


def test_pages_follow_those_in_ram(warm: Path) -> None:
    here = TieredCache(warm)
    here.serve(PROMPT[:9], fetch=False)
    assert here.serve(PROMPT) == (16, 8)
    here.cache.close()


def test_a_table_that_loads(warm: Path) -> None:
    here = TieredCache(warm, stepped=True)
    table = here.begin(PROMPT)
    assert table is not None
    assert table.loading is not None
    assert (table.cached, table.disk, table.copy, len(table.pages)) == (0, 0, None, 5)
    for _ in range(4):
        stepped(here).step()
        assert not here.cache.poll(table)
        usage = here.cache.usage()
        assert (usage.used_pages, usage.loading_pages, usage.tree_nodes) == (5, 4, 0)
        here.cache.check()
    stepped(here).step()
    assert here.cache.poll(table)
    assert here.cache.poll(table)
    assert table.loading is None
    assert (table.cached, table.disk, table.published) == (16, 16, 4)
    assert (here.cache.usage().loading_pages, here.cache.usage().tree_nodes) == (0, 4)
    here.compute(table, PROMPT)
    here.cache.free(table)
    here.check_idle()
    assert here.tier.backlog == 0, "what came from disk need not go there"
    here.cache.close()


def test_who_needs_the_same_page_can_tell_that_it_is_on_its_way(warm: Path) -> None:
    here = TieredCache(warm, stepped=True)
    table = here.begin(PROMPT)
    assert table is not None
    coming = here.cache.next_page_key(table, PROMPT, table.cached)
    assert coming is not None
    assert here.cache.first_missing_key(PROMPT[:9], 8, None) == coming
    stepped(here).finish()
    assert here.cache.poll(table)
    assert here.cache.first_missing_key(PROMPT[:9], 8, None) != coming
    here.cache.free(table)
    here.cache.close()


def test_two_loads_of_the_same_pages_end_with_one_of_each(warm: Path) -> None:
    here = TieredCache(warm, stepped=True)
    first, second = here.begin(PROMPT), here.begin(PROMPT)
    assert first is not None
    assert second is not None
    here.cache.check()
    stepped(here).finish()
    assert here.cache.poll(first)
    assert here.cache.poll(second)
    assert first.pages[:4] == second.pages[:4]
    assert first.pages[4] != second.pages[4]
    for table in (first, second):
        here.compute(table, PROMPT)
        here.cache.free(table)
    here.check_idle()
    here.cache.close()


def test_what_others_have_computed_meanwhile_is_taken_too(warm: Path) -> None:
    here = TieredCache(warm, stepped=True)
    (path,) = (p for p in files_below(warm) if p.name.startswith(KEYS[1].digest.hex()))
    path.unlink()
    table = here.begin(PROMPT)
    assert table is not None
    other = here.run(PROMPT[:14] + tokens_of(0, 0, 0), fetch=False)
    stepped(here).finish()
    assert here.cache.poll(table)
    assert table.pages[:3] == other.pages[:3]
    assert (table.cached, table.disk, table.copy) == (12, 4, None)
    here.compute(table, PROMPT)
    here.cache.free(table)
    here.cache.free(other)
    here.check_idle()
    here.cache.close()


@pytest.mark.parametrize("page", range(4))
def test_a_damaged_page_ends_the_prefix_and_is_written_again(warm: Path, page: int) -> None:
    (path,) = (p for p in files_below(warm) if p.name.startswith(KEYS[page].digest.hex()))
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    here = TieredCache(warm)
    assert here.serve(PROMPT) == (page * SIZE, page * SIZE)
    assert here.store.stats().corrupt == 1
    here.cache.close()
    here = TieredCache(warm)
    assert here.serve(PROMPT) == (16, 16)
    here.cache.close()


def test_whatever_breaks_a_read_is_a_miss(warm: Path, caplog: pytest.LogCaptureFixture) -> None:
    here = TieredCache(warm)

    def broken(page: int) -> Sequence[memoryview]:
        raise MemoryError("no room for a view")

    here.tier.loads._parts = broken
    assert here.serve(PROMPT) == (0, 0)
    assert "no room for a view" in caplog.text
    here.check_idle()
    here.cache.close()


def test_reading_can_be_refused(warm: Path) -> None:
    here, asked = TieredCache(warm), []

    def worthwhile(tokens: int, disk_bytes: int) -> bool:
        asked.append((tokens, disk_bytes))
        return False

    here.cache.fetch_worthwhile = worthwhile
    assert here.serve(PROMPT) == (0, 0)
    assert asked == [(16, 4 * PAGE_BYTES)]
    here.cache.close()


def test_too_few_pages_changes_nothing(warm: Path) -> None:
    here = TieredCache(warm, pages=6, stepped=True)
    held = here.run(tokens_of(9, 9, 9, 9, 9), fetch=False)
    before = here.cache.usage()
    assert here.begin(PROMPT) is None
    assert here.cache.usage() == before
    assert stepped(here).reads == []
    here.cache.free(held)
    here.cache.close()


# A table that is freed while it loads


def test_pages_that_are_being_written_stay_in_use(warm: Path) -> None:
    here = TieredCache(warm, pages=6, stepped=True)
    table = here.begin(PROMPT)
    assert table is not None
    stepped(here).step()  # the first page is being written now
    here.cache.free(table)
    assert len(table.pages) == 0
    usage = here.cache.usage()
    assert (usage.used_pages, usage.loading_pages, usage.free_pages) == (4, 4, 2)
    here.cache.check()
    assert here.begin(PROMPT, fetch=False) is None
    stepped(here).step()
    assert stepped(here).reads == [], "it ends with the page that was being written"
    assert here.store.stats().hits == 1
    assert not here.cache.pump()
    here.check_idle()
    assert here.serve(PROMPT, fetch=False) == (0, 0)
    here.cache.close()


def test_a_load_that_has_not_begun_ends_at_once(warm: Path) -> None:
    here = TieredCache(warm, stepped=True)
    table = here.begin(PROMPT)
    assert table is not None
    here.cache.free(table)
    here.check_idle()
    stepped(here).finish()
    assert here.store.stats().hits == 0
    here.cache.close()


def test_a_load_that_is_done_ends_at_once(warm: Path) -> None:
    here = TieredCache(warm, stepped=True)
    table = here.begin(PROMPT)
    assert table is not None
    stepped(here).finish()
    here.cache.free(table)
    here.check_idle()
    here.cache.close()


class GatedStore(DiskStore):
    """Reads in the background stop before each page until the gate is opened."""

    gate: threading.Event
    reached: threading.Event

    def _get(self, key, into):  # type: ignore[no-untyped-def]
        self.reached.set()
        self.gate.wait()
        return super()._get(key, into)


@pytest.fixture
def gated(warm: Path) -> Iterator[TieredCache]:
    """A cache with one reading thread, over a GatedStore."""
    here = TieredCache(warm, readers=1)
    here.store.__class__ = GatedStore
    assert isinstance(here.store, GatedStore)
    here.store.gate, here.store.reached = threading.Event(), threading.Event()
    yield here
    here.store.gate.set()  # or the thread of a failed test would never end


def test_waiting_for_pages(gated: TieredCache) -> None:
    cache, store = gated.cache, gated.store
    assert isinstance(store, GatedStore)
    assert not cache.settle(), "there is nothing to wait for"
    cache.wait([])
    first, second = gated.begin(PROMPT), gated.begin(PROMPT)
    assert first is not None
    assert second is not None
    store.reached.wait()
    cache.wait([first, second], timeout_s=0.001)
    assert not cache.poll(first)
    cache.free(second)
    assert cache.usage().loading_pages == 4, "one reader: the second had not begun"
    cache.free(first)
    assert cache.usage().loading_pages == 4
    store.gate.set()
    assert cache.settle()
    assert not cache.settle()
    assert store.stats().hits == 1, "it ended with the page that was being read"
    gated.check_idle()
    cache.close()


def test_a_broken_manager_is_renewed_once_nothing_is_written_any_more(
    gated: TieredCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, wait = gated.store, gated.tier.loads.wait_given_up
    assert isinstance(store, GatedStore)
    gate, waited = store.gate, []

    def open_and_wait() -> None:
        gate.set()
        wait()
        waited.append(store.stats().hits)

    monkeypatch.setattr(gated.tier.loads, "wait_given_up", open_and_wait)
    assert gated.begin(PROMPT) is not None
    store.reached.wait()
    gated.cache = gated.cache.renewed()
    assert waited == [1]
    gated.check_idle()
    assert gated.cache.usage().free_pages == 16
    assert gated.serve(PROMPT) == (16, 16)
    gated.cache.close()


# Going to disk


def test_pages_go_to_disk_once_their_first_user_has_ended(tmp_path: Path) -> None:
    here = TieredCache(tmp_path)
    first = here.run(PROMPT[:9])
    second = here.run(PROMPT)
    assert not here.cache.pump()
    assert here.store.stats().queued_pages == here.store.stats().pages == 0
    here.cache.free(first)
    assert here.cache.usage().backlog_pages == 2
    here.drain()
    assert here.store.longest_prefix(KEYS) == 2, "though the second still uses them"
    here.cache.free(second)
    assert here.cache.usage().backlog_pages == 2
    here.drain()
    assert here.store.longest_prefix(KEYS) == 4
    here.serve(PROMPT)
    assert here.cache.usage().backlog_pages == 0
    here.cache.close()
    assert here.store.stats().written == 4


def test_a_pump_keeps_its_budget(tmp_path: Path) -> None:
    here = TieredCache(tmp_path)
    here.serve(PROMPT)
    assert here.cache.pump(PAGE_BYTES - 1), "a single page may exceed it"
    assert here.tier.backlog == 3
    assert here.cache.pump(2 * PAGE_BYTES + 1)
    assert here.tier.backlog == 1
    assert not here.cache.pump(PAGE_BYTES)
    here.cache.close()


def test_what_is_on_disk_already_costs_no_budget(warm: Path) -> None:
    here = TieredCache(warm)
    here.serve(PROMPT, fetch=False)
    assert here.tier.backlog == 4
    assert not here.cache.pump(1)
    assert here.store.stats().queued_pages == 0
    here.cache.close()
    assert here.store.stats().written == 0


def test_a_pump_looks_at_so_many_pages_only(tmp_path: Path) -> None:
    here = TieredCache(tmp_path, pages=200)
    long = tokens_of(*range(SIZE * 100 + 1))
    here.serve(long)
    here.drain()
    here.cache.close()
    here = TieredCache(tmp_path, pages=200)
    here.serve(long, fetch=False)
    assert here.cache.pump(1)
    assert here.tier.backlog == 100 - here.tier._MOST_PAGES
    assert not here.cache.pump(1)
    here.cache.close()


def test_a_full_queue_keeps_the_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = TieredCache(tmp_path, queue_bytes=2 * PAGE_BYTES)
    go = block_writer(monkeypatch)
    here.serve(PROMPT)
    assert here.cache.pump(None)
    assert here.cache.pump(None, wait_s=0.001)
    assert (here.tier.backlog, here.store.stats().queued_pages) == (2, 2)
    go.set()
    assert not here.cache.pump(None, wait_s=60)
    here.store.flush()
    assert here.store.longest_prefix(KEYS) == 4
    assert here.store.stats().dropped == 0
    here.cache.close()


def test_a_page_is_copied_when_it_is_evicted_before_its_turn(tmp_path: Path) -> None:
    here = TieredCache(tmp_path, pages=5)
    here.serve(PROMPT)
    here.serve(tokens_of(*range(50, 67)))
    here.store.flush()
    assert here.store.longest_prefix(KEYS) == 4
    assert here.tier.backlog == 8, "evicted pages are passed over later"
    here.drain()
    assert here.store.stats().written == 8
    assert here.serve(PROMPT) == (16, 16)
    here.cache.close()
    assert here.store.stats().written == 8


def test_evictions_into_a_full_queue_drop_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = TieredCache(tmp_path, pages=5, queue_bytes=1)
    go = block_writer(monkeypatch)
    here.serve(PROMPT)
    here.serve(tokens_of(*range(50, 67)))
    assert here.store.stats().dropped == 3, "the first one passes"
    go.set()
    here.store.flush()
    assert here.store.longest_prefix(KEYS[3:]) == 1, "children are evicted first"
    here.check_idle()
    here.cache.close()


def test_closing_writes_everything(tmp_path: Path) -> None:
    here = TieredCache(tmp_path, queue_bytes=1)
    here.serve(PROMPT)
    here.run(PROMPT[:5] + tokens_of(0, 0, 0, 0))  # never freed
    here.cache.close()
    here.cache.close()
    assert here.store.stats().written == 5
    assert here.cache.tier is None
    here = TieredCache(tmp_path)
    assert here.serve(PROMPT) == (16, 16)
    assert here.serve(PROMPT[:5] + tokens_of(0, 0, 0, 0)) == (8, 4)
    here.cache.close()


def test_a_closed_manager_goes_on_without_a_disk(warm: Path) -> None:
    here = TieredCache(warm)
    here.cache.close()
    assert here.serve(PROMPT) == (0, 0)
    assert here.serve(PROMPT) == (16, 0)
    assert not here.cache.pump()


def test_where_the_cap_is_too_small_the_pages_used_last_stay(tmp_path: Path) -> None:
    here = TieredCache(tmp_path, max_bytes=4 * FILE_BYTES)
    others = [tokens_of(*range(first, first + 9)) for first in (100, 200, 300)]
    for prompt in (*others, PROMPT):
        here.serve(prompt)
    here.serve(others[0])
    here.cache.close()
    here = TieredCache(tmp_path, max_bytes=4 * FILE_BYTES)
    assert here.serve(others[0])[1] == 8
    assert here.serve(PROMPT)[1] == 8, "its start, that is: what is left of it"
    here.cache.close()


def test_a_second_process_reads_and_drops_what_it_cannot_write(warm: Path) -> None:
    owner, here = TieredCache(warm), TieredCache(warm, pages=5)
    assert here.serve(PROMPT) == (16, 16)
    here.serve(tokens_of(*range(50, 67)))
    assert here.tier.backlog == 4
    assert not here.cache.pump()
    assert here.store.stats().dropped == 0, "it is not even tried"
    here.cache.close()
    owner.cache.close()


def test_nobody_waits_for_room_where_nothing_is_written(warm: Path) -> None:
    owner, here = TieredCache(warm), TieredCache(warm)
    assert owner.store.has_room(PAGE_BYTES, 60)
    assert not here.store.has_room(PAGE_BYTES, 60)
    here.cache.close()
    owner.cache.close()


def test_reset_forgets_what_is_on_disk_too(warm: Path) -> None:
    here = TieredCache(warm)
    here.serve(PROMPT)
    kept = here.run(tokens_of(*range(50, 67)))
    here.cache.free(here.run(tokens_of(*range(70, 87))))
    assert here.cache.reset() == 8
    assert files_below(warm) == []
    assert here.store.stats().queued_pages == here.tier.backlog == 0
    assert here.serve(PROMPT) == (0, 0)
    here.cache.free(kept)
    here.drain()
    assert here.store.stats().pages == 8, "what was in use is kept, as in RAM"
    here.check_idle()
    here.cache.close()


def test_a_tier_needs_prefix_caching(tmp_path: Path) -> None:
    here = TieredCache(tmp_path)
    with pytest.raises(ConfigError, match="prefix_cache_dir needs enable_prefix_caching"):
        CacheManager(16, SIZE, enable_prefix_caching=False, tier=here.tier)
    here.cache.close()
