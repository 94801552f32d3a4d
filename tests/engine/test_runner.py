"""A plan as a ragged batch."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from helpers.engines import generate, oracle_engine
from octavo.core.batch import RaggedBatch
from octavo.core.params import SamplingParams
from octavo.engine.plan import SteadyPlan, StepPlan
from octavo.engine.runner import Runner, flatten
from octavo.sampling.sampler import plain_argmax


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


def same(got: RaggedBatch, want: RaggedBatch) -> bool:
    pairs = [(getattr(got, name), value) for name, value in vars(want).items()]
    return all(a is b or (a.dtype == b.dtype and a.tolist() == b.tolist()) for a, b in pairs)


def test_steps_that_follow_make_the_batches_that_would_be_made_anew() -> None:
    engine, _ = oracle_engine(num_pages=200, max_model_len=200)
    seen: list[tuple[int, int]] = []  # step of the plan, width of the page tables

    class Model:
        def forward(self, batch: RaggedBatch, kv: Any) -> Any:
            plan = engine.scheduler.plan
            assert same(batch, flatten(plan))
            seen.append((plan.step if isinstance(plan, SteadyPlan) else -1, batch.page_tables.shape[1]))
            return oracle.run(plan)

        argmax = staticmethod(plain_argmax)

    oracle, engine._executor = engine._executor, Runner(Model(), SimpleNamespace(copy_page=lambda *_: None))  # type: ignore[arg-type]
    prompts = [[n, *range(n)] for n in (3, 16, 29, 40, 3)]
    lengths = (60, 75, 20, 90, 60)
    outputs = generate(engine, prompts, [SamplingParams(temperature=0, max_tokens=n) for n in lengths])
    answers = [oracle.answer(prompt, n) for prompt, n in zip(prompts, lengths, strict=True)]  # type: ignore[attr-defined]
    assert [output.outputs[0].token_ids for output in outputs] == answers
    assert max(step for step, _ in seen) > 20
    assert len({width for step, width in seen if step > 0}) > 2


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
