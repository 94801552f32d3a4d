"""Mixed traffic for a while: nothing gets stuck, no memory or page is lost, and the answers stay what they are.

SOAK_SECONDS: for how long (scripts/soak sets it); memory is judged after the first third.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median

import httpx
import pytest

from helpers.processes import Served, serve_process
from helpers.servers import wait_until
from helpers.traffic import Traffic

SECONDS = float(os.environ.get("SOAK_SECONDS") or 60)
FLAT = 1.02
# Few pages and a short queue, so that pages are evicted, sequences preempted and requests refused all the time.
SMALL = ("--max-model-len", 1024, "--kv-cache-memory", "48MiB", "--max-num-seqs", 8, "--max-waiting", 24)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_nothing_is_lost_under_mixed_traffic(real_model: Callable[[str], Path], tmp_path: Path) -> None:
    model = real_model("SmolLM2-135M-Instruct.Q4_1.gguf")
    with serve_process(tmp_path, f"soak={model}", *SMALL) as server:
        pages = metrics(server)["free"]
        traffic, memory = Traffic(server.url), list[int]()
        traffic.run(SECONDS, 12, sample=lambda: memory.append(server.resident_bytes()))
        wait_until(lambda: idle(server))
        check(traffic, memory)
        left = metrics(server)
        assert left["used"] == 0, left
        assert left["cached"] + left["free"] == pages, "all pages are accounted for"
        server.terminate()
        assert server.wait(30) == 0
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "error:" not in log


def check(traffic: Traffic, memory: list[int]) -> None:
    """What was answered is right, all kinds of requests came to pass, and memory is flat after the first third."""
    shown = ", ".join(f"{kind} {status}: {count}" for (kind, status), count in sorted(traffic.counts.items()))
    print(f"\n{shown}")
    assert not traffic.problems, traffic.problems[:5]
    assert traffic.counts["left", 0]
    assert traffic.counts["wrong", 400]
    assert traffic.counts["chat", 200]
    assert traffic.counts["burst", 503], "it was never overloaded"
    third = len(memory) // 3
    before, after = median(memory[third : 2 * third]), median(memory[2 * third :])
    of_thirds = f"{before / 1e6:.1f} MB in the second third, {after / 1e6:.1f} MB in the last"
    print(f"memory: {of_thirds}, {max(memory) / 1e6:.1f} MB at most")
    assert after <= FLAT * before


def metrics(server: Served) -> dict[str, float]:
    """KV pages by state."""
    text = httpx.get(server.url + "/metrics").text
    return {state: float(count) for state, count in re.findall(r'octavo:kv_pages\{.*state="(\w+)"\} (\S+)', text)}


def idle(server: Served) -> bool:
    load = httpx.get(server.url + "/load").json()
    return load["server_load"] == 0 and all(not model["running"] + model["waiting"] for model in load["models"])
