"""kill -9 of a process that writes: every page served afterwards is whole and right, and nothing else is left."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import octavo
from helpers.disk_pages import FILE_BYTES, bytes_below, files_below, killed_keys, page_of, put_all, read_page
from octavo.cache.disk import DiskStore

ROOMY, TIGHT = 100 * FILE_BYTES, 5 * FILE_BYTES


def kill_writer(directory: Path, max_bytes: int, where: str, last: int) -> int:
    """Run the writing process and kill it where it says; returns how many pages it has announced by then."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(octavo.__file__).parents[1])])
    arguments = [str(directory), str(max_bytes), where, str(last)]
    process = subprocess.Popen(
        [sys.executable, "-m", "helpers.disk_pages", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        announced = 0
        for line in process.stdout:
            announced += line == "published\n"
            if line == "stopped\n" or announced > last:
                break
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    return announced


@pytest.mark.parametrize("where", ["published", "evicting", "torn", "unnamed"])
@pytest.mark.parametrize(("max_bytes", "last"), [(ROOMY, 0), (ROOMY, 7), (TIGHT, 12)])
def test_what_is_served_after_a_kill_is_whole(tmp_path: Path, where: str, max_bytes: int, last: int) -> None:
    announced = kill_writer(tmp_path, max_bytes, where, last)
    assert announced == last + (where == "published")
    unfinished = [path for path in files_below(tmp_path) if path.suffix == ".tmp"]
    if where in ("torn", "unnamed"):
        assert len(unfinished) == 1
    assert bytes_below(tmp_path) <= max_bytes
    keys = list(itertools.islice(killed_keys(), last + 20))
    with DiskStore(tmp_path, max_bytes) as store:
        assert store.stats().writes_off is None, "the lock of a killed process is free"
        served = [read_page(store, key) for key in keys]
        assert all(page in (None, page_of(key)) for page, key in zip(served, keys, strict=True))
        assert (store.stats().corrupt, store.stats().hits) == (0, len(files_below(tmp_path)))
        assert all(path.suffix == ".kv1" for path in files_below(tmp_path))
        if max_bytes == ROOMY:
            assert None not in served[:announced], "a page that had its name is lost"
        if where != "published":  # "published" goes on until the signal arrives
            assert set(served[announced:]) == {None}
        put_all(store, keys)
        assert store.stats().writes_off is None
        assert bytes_below(tmp_path) <= max_bytes
