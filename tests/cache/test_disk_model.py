"""The disk store against a dict, over drawn puts, gets, removals and restarts, under a cap that is always tight."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.disk_pages import FILE_BYTES, bytes_below, chain, files_below, page_of, read_page
from octavo.cache.disk import DiskStore
from octavo.cache.disk_files import PageFiles
from octavo.cache.disk_format import PageKey

# Three prefixes: two share their first two pages, so pages have one child, two, or none.
_LONG, _OTHER = chain(5), chain(3, first_token=1)
KEYS = [*_LONG, *_OTHER]
PARENT = {key.digest: key.parent for key in KEYS}


class StoreMachine(RuleBasedStateMachine):
    """`model`: digest -> clock of last use; a plain search finds what the cap has to cost."""

    @initialize(cap=st.integers(1, 6))
    def start(self, cap: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        self.cap, self.model, self.clock = cap, dict[bytes, int](), 0
        self.patch = mock.patch.object(PageFiles, "publish", self._publish_within_cap(PageFiles.publish))
        self.patch.start()
        self.open()

    def open(self) -> None:
        self.store = DiskStore(self.path, self.cap * FILE_BYTES)

    def _publish_within_cap(self, real):  # type: ignore[no-untyped-def]
        def publish(files: PageFiles, name: str) -> None:
            assert bytes_below(self.path) <= self.cap * FILE_BYTES, "above the cap while a page is written"
            real(files, name)

        return publish

    def _shrink(self, pages: int) -> None:
        while len(self.model) > pages:
            parents = {PARENT[digest] for digest in self.model}
            del self.model[min((d for d in self.model if d not in parents), key=self.model.__getitem__)]

    def _use(self, keys: Sequence[PageKey]) -> None:
        for key in keys:
            self.clock += 1
            self.model[key.digest] = self.clock

    @rule(key=st.sampled_from(KEYS))
    def put(self, key: PageKey) -> None:
        assert self.store.put(key, [page_of(key)])
        self.store.flush()
        if key.digest not in self.model:
            self._shrink(self.cap - 1)
        self._use([key])

    @rule(key=st.sampled_from(KEYS))
    def get(self, key: PageKey) -> None:
        expected = page_of(key) if key.digest in self.model else None
        assert read_page(self.store, key) == expected
        if expected:
            self._use([key])

    @rule(key=st.sampled_from(KEYS))
    def remove(self, key: PageKey) -> None:
        assert self.store.remove(key) == (self.model.pop(key.digest, None) is not None)

    @rule(keys=st.sampled_from([_LONG, _OTHER]))
    def match(self, keys: list[PageKey]) -> None:
        expected = next((i for i, key in enumerate(keys) if key.digest not in self.model), len(keys))
        assert self.store.longest_prefix(keys) == expected

    @rule(cap=st.integers(1, 6))
    def restart(self, cap: int) -> None:
        self.store.close()
        self.cap = cap
        self._shrink(cap)
        self.open()

    @rule()
    def clear(self) -> None:
        assert self.store.clear() == len(self.model)
        self.model.clear()

    @invariant()
    def what_is_on_disk_is_what_is_known(self) -> None:
        names = sorted(path.name.split("-")[0] for path in files_below(self.path))
        assert names == sorted(digest.hex() for digest in self.model)
        stats = self.store.stats()
        assert (stats.pages, stats.disk_bytes) == (len(self.model), bytes_below(self.path))
        assert stats.disk_bytes <= self.cap * FILE_BYTES
        assert (stats.corrupt, stats.dropped, stats.writes_off) == (0, 0, None)
        self.store._index.check()

    def teardown(self) -> None:
        self.store.close()
        self.patch.stop()
        self.folder.cleanup()


StoreMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestStore = StoreMachine.TestCase
