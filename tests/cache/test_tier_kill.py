"""kill -9 of a process that serves from a cache with a disk tier: what the next one finds there is right."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import octavo
from helpers.tiers import FILE_BYTES, TieredCache, prompts


def kill_server(directory: Path, after: int) -> None:
    """Serve so many prompts, and go on until the signal arrives."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(octavo.__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, "-m", "helpers.tiers", str(directory)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        served = list(itertools.islice(process.stdout, after))
        process.send_signal(signal.SIGKILL)
    assert served == ["served\n"] * after
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("after", [1, 60, 400])
def test_the_next_process_serves_right_pages(tmp_path: Path, after: int) -> None:
    kill_server(tmp_path, after)
    here = TieredCache(tmp_path, pages=64, max_bytes=40 * FILE_BYTES)
    assert here.store.writes_off is None, "the lock of a killed process is free"
    assert here.store.stats().disk_bytes <= 40 * FILE_BYTES
    from_disk = sum(here.serve(tokens)[1] for tokens in itertools.islice(prompts(), after + 100))
    here.check_idle()
    assert here.store.stats().corrupt == 0
    if after > 1:
        assert from_disk > 0
    here.cache.close()
