"""A plan as a ragged batch."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from octavo.engine.runner import Runner, flatten
from octavo.engine.scheduler import StepPlan


def sequence(tokens: list[int], computed: int, pages: list[int], first_logit_row: int | None = None) -> Any:
    return SimpleNamespace(
        tokens=array("i", tokens),
        computed=computed,
        table=SimpleNamespace(pages=array("i", pages)),
        first_logit_row=len(tokens) - 1 if first_logit_row is None else first_logit_row,
    )


def test_decodes_chunks_and_prompt_logits_side_by_side() -> None:
    plan = StepPlan()
    plan.add(sequence([5, 6, 7], 2, [4]), 1)  # decode
    plan.add(sequence([1, 2, 3, 4, 5, 6], 1, [2, 3]), 3)  # a chunk in the middle
    plan.add(sequence([8, 9, 10], 0, [7], first_logit_row=1), 3)  # all of a prompt, logits from row 1 on
    batch = flatten(plan)
    assert batch.tokens.tolist() == [7, 2, 3, 4, 8, 9, 10]
    assert batch.positions.tolist() == [2, 1, 2, 3, 0, 1, 2]
    assert batch.query_starts.tolist() == [0, 1, 4, 7]
    assert batch.kv_lens.tolist() == [3, 4, 3]
    assert batch.page_tables.tolist() == [[4, -1], [2, 3], [7, -1]]
    assert batch.logit_rows.tolist() == [0, 5, 6]
    assert plan.sampling == [0, 2]
    assert {a.dtype.name for a in vars(batch).values() if a is not None} == {"int32"}


def test_decodes_only() -> None:
    plan = StepPlan()
    plan.add(sequence([5, 6, 7], 2, [4]), 1)
    plan.add(sequence([1, 2], 1, [3]), 1)
    batch = flatten(plan)
    assert batch.tokens.tolist() == [7, 2]
    assert batch.positions.tolist() == [2, 1]
    assert batch.logit_rows.tolist() == [0, 1]
    assert {a.dtype.name for a in vars(batch).values() if a is not None} == {"int32"}


def test_a_plan_of_decodes_makes_the_same_batch_whichever_way_it_was_put_together() -> None:
    sequences = [sequence([5, 6, 7], 2, [4]), sequence([1, 2], 1, [3, 9]), sequence([8], 0, [2])]
    listed = StepPlan()
    for each in sequences:
        listed.add(each, 1)
    whole = StepPlan.of_decodes(sequences, plain=True)
    for name, want in vars(flatten(listed)).items():
        got = getattr(flatten(whole), name)
        assert (got is want) if want is None else (got.dtype == want.dtype and got.tolist() == want.tolist()), name
    assert (whole.sampling, whole.counts, whole.logit_counts) == (listed.sampling, listed.counts, listed.logit_counts)
    assert (whole.num_tokens, whole.num_logit_rows) == (listed.num_tokens, listed.num_logit_rows)


def test_a_chunk_without_logits() -> None:
    plan = StepPlan()
    plan.add(sequence([1, 2, 3, 4], 0, [3]), 2)
    assert flatten(plan).logit_rows.tolist() == []


def test_pages_are_copied_before_the_model_runs_and_in_order() -> None:
    calls: list[Any] = []
    kv = SimpleNamespace(copy_page=lambda source, target: calls.append((source, target)))
    model = SimpleNamespace(forward=lambda batch, store: calls.append("forward"))
    plan = StepPlan(copies=[(1, 2), (2, 3)])
    plan.add(sequence([1], 0, [3]), 1)
    Runner(model, kv).run(plan)  # type: ignore[arg-type]
    assert calls == [(1, 2), (2, 3), "forward"]
