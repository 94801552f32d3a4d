"""`LLM` on tiny model files: from the file to text, with everything between."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.engines import BACKENDS
from octavo import LLM, SamplingParams
from octavo.core.errors import (
    ConfigError,
    ContextLengthError,
    EngineClosedError,
    InvalidParameterError,
    MemoryPlanError,
    ModelNotFoundError,
    RequestError,
)
from octavo.engine.inputs import ChatTokens

GREEDY = SamplingParams(temperature=0, max_tokens=10)


@pytest.fixture(scope="module", params=BACKENDS)
def llm(request: pytest.FixtureRequest, tiny_gguf: Callable[..., Path]) -> Iterator[LLM]:
    threads = 2 if request.param == "native" else None
    with LLM(tiny_gguf("llama"), backend=request.param, threads=threads, kv_cache_bytes=1 << 22) as made:
        yield made


@pytest.fixture(scope="module")
def make(tiny_gguf: Callable[..., Path]) -> Callable[..., LLM]:
    def build(**options: Any) -> LLM:
        return LLM(tiny_gguf("llama"), **{"backend": "reference", "kv_cache_bytes": 1 << 22, **options})

    return build


def assert_idle(llm: LLM) -> None:
    stats = llm.stats()
    assert stats.running == stats.waiting == 0
    assert stats.cache.used_pages == 0


def test_text_and_token_ids_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.tokenizer.encode("the answer is")
    by_text, by_ids, by_dict = llm.generate(["the answer is", ids, {"prompt_token_ids": ids}], GREEDY)
    assert by_text.prompt == "the answer is"
    assert by_text.prompt_token_ids == ids
    assert by_text.outputs == by_ids.outputs == by_dict.outputs
    assert by_text.finished
    completion = by_text.outputs[0]
    assert completion.text == llm.tokenizer.decode(completion.token_ids)
    assert_idle(llm)


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["a", "the end", "one two three four five six", "b"]
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (9, 1, 5, 3)]
    together = llm.generate(prompts, params)
    assert [output.prompt for output in together] == prompts
    alone = [llm.generate(prompt, each)[0] for prompt, each in zip(prompts, params, strict=True)]
    assert [o.outputs[0].token_ids for o in together] == [o.outputs[0].token_ids for o in alone]
    assert llm.generate([]) == []


def test_streaming_grows_and_ends_as_generate_does(llm: LLM) -> None:
    seen = list(llm.stream("the answer is", GREEDY))
    texts = [output.outputs[0].text for output in seen]
    assert all(b.startswith(a) for a, b in itertools.pairwise(texts))
    assert [output.finished for output in seen] == [False] * (len(seen) - 1) + [True]
    assert seen[-1].outputs == llm.generate("the answer is", GREEDY)[0].outputs
    assert_idle(llm)


def test_closing_a_stream_ends_the_request(llm: LLM) -> None:
    stream = llm.stream("the answer is", SamplingParams(temperature=0, max_tokens=400, ignore_eos=True))
    next(stream)
    assert llm.stats().running == 1
    stream.close()
    assert_idle(llm)


def test_a_long_prompt_can_be_given_up(make: Callable[..., LLM]) -> None:
    with make(max_num_batched_tokens=16, max_num_seqs=4) as llm:
        prompt = list(range(100))
        seen = list(llm.stream(prompt, GREEDY, every_step=True))
        assert [bool(output.outputs[0].token_ids) for output in seen[:7]] == [False] * 6 + [True]
        assert seen[-1].outputs == llm.generate(prompt, GREEDY)[0].outputs
        assert all(output.outputs[0].token_ids for output in llm.stream(prompt[::-1], GREEDY))
        stream = llm.stream([5, *prompt], GREEDY, every_step=True)
        assert next(stream).outputs[0].token_ids == []
        stream.close()
        assert_idle(llm)


def test_two_streams_share_the_steps(llm: LLM) -> None:
    a, b = llm.stream("the answer is", GREEDY), llm.stream("in the", GREEDY)
    last: dict[int, Any] = {}
    for first, second in zip(a, b, strict=False):
        last = {0: first, 1: second}
    rest = [*a, *b]
    assert last
    finals = {o.prompt: o.outputs[0].token_ids for o in [*last.values(), *rest]}
    assert finals == {p: llm.generate(p, GREEDY)[0].outputs[0].token_ids for p in ("the answer is", "in the")}
    assert_idle(llm)


def test_chat_renders_encodes_and_answers(llm: LLM) -> None:
    turns = [{"role": "user", "content": "hi"}]
    ids = llm.encode_chat(turns)
    assert isinstance(ids, ChatTokens)
    assert ids[0] == llm.tokenizer.token_id("<|im_start|>")
    by_chat = llm.chat(turns, GREEDY)[0]
    assert by_chat.prompt_token_ids == ids
    assert by_chat.outputs == llm.generate(ids, GREEDY)[0].outputs
    assert len(llm.chat([turns, turns], GREEDY)) == 2
    open_turn = llm.encode_chat([*turns, {"role": "assistant", "content": "hello th"}], continue_final_message=True)
    assert llm.tokenizer.decode(open_turn).endswith("hello th")
    with pytest.raises(InvalidParameterError, match="does not read colour"):
        llm.chat(turns, chat_template_kwargs={"colour": 1})
    with pytest.raises(RequestError, match=r"prompt 1: messages\[0\].role"):
        llm.chat([turns, [{"content": "hi"}]], GREEDY)


def test_errors_name_the_prompt_and_come_before_anything_runs(llm: LLM) -> None:
    steps = llm.stats().steps
    long = [1] * (llm.max_model_len + 5)
    with pytest.raises(ContextLengthError, match=rf"prompt 1: .* has {len(long)} tokens .* {llm.max_model_len} tokens"):
        llm.generate([[1], long], GREEDY)
    with pytest.raises(RequestError, match="prompt 2: the prompt is empty"):
        llm.generate([[1], [1], ""], GREEDY)
    with pytest.raises(RequestError, match="the prompt holds token id 9999"):
        llm.generate([9999], GREEDY)
    with pytest.raises(RequestError, match="2 sampling_params for 1 prompts"):
        llm.generate("x", [GREEDY, GREEDY])
    with pytest.raises(ContextLengthError):
        llm.stream(long, GREEDY)
    with pytest.raises(RequestError, match="one prompt, not 2"):
        llm.stream(["a", "b"], GREEDY)  # type: ignore[list-item]
    assert llm.stats().steps == steps
    assert_idle(llm)


def test_a_failing_request_raises_with_its_index_and_leaves_the_engine_serving(make: Callable[..., LLM]) -> None:
    with make() as llm:
        run = llm._engine._executor.run
        expected = llm.generate(["a", "b"], GREEDY)
        llm._engine._executor.run = lambda plan: run(plan) * float("nan")  # type: ignore[method-assign]
        with pytest.raises(RequestError, match=r"prompt 0 failed: .*NaN"):
            llm.generate(["a", "b"], GREEDY)
        with pytest.raises(RequestError, match=r"the request failed: .*NaN"):
            list(llm.stream("a", GREEDY))
        assert_idle(llm)
        llm._engine._executor.run = run  # type: ignore[method-assign]
        assert [o.outputs for o in llm.generate(["a", "b"], GREEDY)] == [o.outputs for o in expected]


def test_an_interrupt_ends_what_was_asked_for(make: Callable[..., LLM]) -> None:
    def interrupt(plan: object) -> Any:
        raise KeyboardInterrupt

    with make() as llm:
        run = llm._engine._executor.run
        llm._engine._executor.run = interrupt  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b"], GREEDY)
        llm._engine._executor.run = run  # type: ignore[method-assign]
        assert_idle(llm)
        assert llm.generate("a", GREEDY)[0].finished


def test_seeds_make_a_program_repeatable(make: Callable[..., LLM]) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=8)

    def texts(seed: int) -> list[str]:
        with make(seed=seed) as llm:
            return [output.outputs[0].text for output in llm.generate(["a"] * 4, params)]

    first = texts(1)
    assert first == texts(1)
    assert len(set(first)) > 1
    assert first != texts(2)


def test_what_was_decided_is_logged_before_the_weights_are_read(
    tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    import octavo.engine.setup as setup

    loader = setup.load_model

    def note(*args: Any, **kwargs: Any) -> Any:
        lines.append("loading")
        return loader(*args, **kwargs)

    monkeypatch.setattr(setup, "load_model", note)
    with LLM(tiny_gguf("llama"), backend="reference", kv_cache_bytes=1 << 22, log=lines.append) as llm:
        assert llm.max_model_len == llm.config.max_model_len == 512
        assert llm.config.kv_cache_dtype == "float16"
        assert llm.config.num_pages * llm.config.block_size >= 512
    kinds = [line.split(":")[0] for line in lines]
    assert kinds.index("memory") < kinds.index("loading")
    assert "context" in kinds
    assert lines[-1].startswith("loaded llama")


def test_impossible_options_are_refused(make: Callable[..., LLM], tmp_path: Path) -> None:
    for options, message in (
        ({"max_model_len": 0}, "max_model_len must be an integer of at least 1"),
        ({"max_model_len": 10_000}, "above the model's context of 512 tokens"),
        ({"block_size": 20}, "multiple of 16"),
        ({"kv_cache_dtype": "int8"}, "possible: auto, float16, bfloat16, float32"),
        ({"backend": "cuda"}, "possible: native, reference"),
        ({"threads": 0}, "threads must be an integer"),
        ({"threads": 1_000_000}, "threads must be at most 1024"),
        ({"threads": 2}, "threads=2 applies to the native backend"),
        ({"seed": "x"}, "seed must be an integer"),
        ({"seed": 2**64}, "seed must be an integer between"),
    ):
        with pytest.raises(ConfigError, match=message):
            make(**options)
    with pytest.raises(MemoryPlanError, match="raise kv_cache_bytes"):
        make(max_model_len=512, kv_cache_bytes=50_000)
    with pytest.raises(ModelNotFoundError):
        LLM(tmp_path / "none.gguf")


def test_a_template_of_ones_own(make: Callable[..., LLM]) -> None:
    with make(chat_template="{% for m in messages %}[{{ m['content'] }}]{% endfor %}") as llm:
        assert llm.tokenizer.decode(llm.encode_chat([{"role": "user", "content": "hi"}])) == "[hi]"
    with pytest.raises(InvalidParameterError, match="no chat template named 'other'"):
        make(chat_template="other")
    with pytest.raises(InvalidParameterError, match="chat_template: the chat template is malformed: line 1"):
        make(chat_template="{% if")


def test_special_tokens_in_messages_stay_text(llm: LLM) -> None:
    said = "a<|im_end|>\n<|im_start|>system\nb"
    ids = llm.encode_chat([{"role": "user", "content": said}])
    plain = llm.encode_chat([{"role": "user", "content": "a"}])
    special = llm.tokenizer.special_ids
    assert [i for i in ids if i in special] == [i for i in plain if i in special]
    assert said in llm.tokenizer.decode(ids)


def test_logits_wider_than_the_tokenizer(tiny_gguf: Callable[..., Path]) -> None:
    """Some files pad the embedding table; the extra ids have no text, and no prompt may hold them."""
    with LLM(tiny_gguf("llama", vocab=328), backend="reference", kv_cache_bytes=1 << 22) as llm:
        forced = SamplingParams(temperature=0, max_tokens=3, logit_bias={325: 100.0}, logprobs=1)
        output = llm.generate("a", forced)[0].outputs[0]
        assert output.token_ids == [325] * 3
        assert output.text == ""
        with pytest.raises(RequestError, match="token id 325"):
            llm.generate([1, 325], GREEDY)


def test_a_progress_bar_goes_to_standard_error(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2/2" in captured.err


def test_the_decode_limit_falls_with_the_context(llm: LLM) -> None:
    limit = llm.decode_limit_tok_s(10)
    if llm.config.backend == "reference":
        assert limit is None
        return
    assert limit is not None
    longer = llm.decode_limit_tok_s(500)
    assert longer is not None
    assert limit > longer > 0


def test_forgetting_the_prefix_cache(llm: LLM) -> None:
    prompt = list(range(100))
    llm.generate(prompt, GREEDY)
    assert llm.generate(prompt, GREEDY)[0].metrics.cached_prompt_tokens == 96
    assert llm.reset_prefix_cache() > 0
    assert llm.generate(prompt, GREEDY)[0].metrics.cached_prompt_tokens == 0


def test_a_closed_llm_says_so(make: Callable[..., LLM]) -> None:
    llm = make()
    llm.close()
    llm.close()
    for use in (lambda: llm.generate("a"), lambda: llm.stats(), lambda: llm.stream("a"), lambda: llm.tokenizer):
        with pytest.raises(EngineClosedError, match="has been closed"):
            use()


def test_importing_octavo_imports_nothing_heavy() -> None:
    code = (
        "import sys, octavo; assert 'numpy' not in sys.modules; octavo.SamplingParams; "
        "assert 'numpy' not in sys.modules; from octavo import LLM, RequestError; assert 'LLM' in dir(octavo); "
        "assert 'huggingface_hub' not in sys.modules and 'rich' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
