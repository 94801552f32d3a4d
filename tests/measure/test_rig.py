"""Engines made on one loaded model, and the order in which variants take turns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from octavo.core.errors import ConfigError
from octavo.measure.neighbours import Neighbours
from octavo.measure.rig import Needs, open_rig, turns, until_interrupted
from octavo.measure.serving import serve
from octavo.measure.workloads import Fixed, Workload

Tiny = Callable[..., Path]
WORK = Workload(requests=3, prompt=Fixed(40), output=Fixed(4))


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    monkeypatch.setattr(Neighbours, "fraction", lambda self: 0.125)


@dataclass(frozen=True)
class Asked:
    requests: int = 3


def needs(**changes: int) -> Needs:
    return Needs(**{"max_model_len": 64, "kv_tokens": 200, "lower": "--this", "max_num_seqs": 4, **changes})  # type: ignore[arg-type]


def test_engines_differ_by_what_is_changed_and_start_fresh(tiny_gguf: Tiny) -> None:
    rig = open_rig(tiny_gguf(), needs())
    assert (rig.config.num_pages, rig.config.max_model_len, rig.config.swap_space_bytes) == (7, 64, 0)
    items = WORK.items(rig.vocab)
    for caching, hits in ((True, 32), (False, 0), (True, 32)):
        with rig.engine(enable_prefix_caching=caching, max_num_seqs=2) as engine:
            assert (engine.config.max_num_seqs, engine.config.enable_prefix_caching) == (2, caching)
            assert serve(engine, items).cached_tokens == 0
            assert serve(engine, items[-1:]).cached_tokens == hits


def test_a_report_says_what_was_asked_and_what_ran(tiny_gguf: Tiny) -> None:
    path = tiny_gguf()
    rig = open_rig(path, needs())
    report = rig.report(Asked(5), [{"a": 1}], ["note"], interrupted=True)
    found = json.loads(json.dumps(report.as_json()))
    assert found["rows"] == [{"a": 1}]
    assert (found["notes"], found["interrupted"]) == (
        ["note", "other processes took 12 % of the CPUs meanwhile"],
        True,
    )
    assert found["host"]["other_cpu_fraction"] == 0.125
    assert (found["host"]["model"], found["host"]["bench"]) == (path.name, {"requests": 5})
    assert found["host"]["engine"]["num_pages"] == 7
    assert found["host"]["backend"] == "reference"


def test_what_does_not_fit_the_context_is_said(tiny_gguf: Tiny) -> None:
    with pytest.raises(ConfigError, match=r"needs a context of 600 tokens, and the model has 512; lower --this"):
        open_rig(tiny_gguf(), needs(max_model_len=600))


def test_variants_take_turns_in_both_orders() -> None:
    assert list(turns("ab", 3)) == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]


def test_an_interrupt_ends_the_block_alone() -> None:
    with until_interrupted() as until:
        raise KeyboardInterrupt
    assert until.interrupted  # type: ignore[unreachable]
    with until_interrupted() as until:
        pass
    assert not until.interrupted
