"""The memory plan: whatever the numbers, a plan fits and is useful, or an error says what to lower and is right."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.errors import ConfigError, MemoryPlanError
from octavo.core.memory import MemoryPlan, activation_bytes, format_bytes, head_room_bytes, plan_memory

GB = 10**9
MB = 10**6
# A 1.5B model: 28 layers, 2 KV heads of 128, f16, pages of 32 tokens.
BASE = {
    "weight_bytes": GB,
    "kv_page_bytes": 2 * 28 * 32 * 2 * 128 * 2,
    "page_size": 32,
    "model_context_len": 32768,
    "max_model_len": None,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 2048,
    "activation_bytes": 100 * MB,
    "available_bytes": 16 * GB,
}


def plan(**changes) -> MemoryPlan:
    return plan_memory(**{**BASE, **changes})


ARGUMENTS = st.fixed_dictionaries(
    {
        "weight_bytes": st.integers(0, 40 * GB),
        "kv_page_bytes": st.integers(1, 64 * MB),
        "page_size": st.integers(1, 256),
        "model_context_len": st.integers(1, 1 << 20),
        "max_model_len": st.none() | st.integers(1, 1 << 20),
        "max_num_seqs": st.integers(1, 512),
        "max_num_batched_tokens": st.integers(1, 1 << 16),
        "activation_bytes": st.integers(0, 4 * GB),
        "available_bytes": st.none() | st.integers(0, 64 * GB),
        "kv_cache_bytes": st.none() | st.integers(1, 64 * GB),
    }
)


def plan_or_error(arguments) -> MemoryPlan | ConfigError:
    try:
        return plan_memory(**arguments)
    except ConfigError as error:
        return error


@given(ARGUMENTS)
def test_every_plan_fits_and_holds_a_sequence(arguments) -> None:
    made = plan_or_error(arguments)
    if isinstance(made, ConfigError):
        assert "\n" not in str(made)
        return
    if arguments["available_bytes"] is not None:
        assert made.total_bytes + made.head_room_bytes <= arguments["available_bytes"]
    else:
        assert any("nothing was checked" in note for note in made.notes)
    assert made.kv_cache_bytes == made.num_pages * arguments["kv_page_bytes"]
    assert made.kv_tokens >= made.max_model_len >= 1
    assert made.max_model_len <= arguments["model_context_len"]
    if arguments["max_model_len"] is not None:
        assert made.max_model_len == arguments["max_model_len"]
    elif made.max_model_len < arguments["model_context_len"]:
        assert any("lowered" in note and str(made.max_model_len) in note for note in made.notes)
    if arguments["kv_cache_bytes"] is not None:
        assert made.kv_cache_bytes <= arguments["kv_cache_bytes"] < made.kv_cache_bytes + arguments["kv_page_bytes"]
    else:
        assert made.num_pages <= arguments["max_num_seqs"] * -(-made.max_model_len // made.page_size)
    assert len(made.describe().splitlines()) <= 3


@given(ARGUMENTS)
def test_following_the_error_leads_to_a_plan(arguments) -> None:
    """An error that says "lower X to N" is a promise: with N, the plan is made (after one hint per argument)."""
    for _ in range(4):
        made = plan_or_error(arguments)
        if isinstance(made, MemoryPlan):
            return
        if not isinstance(made, MemoryPlanError):
            assert "above the model's context" in str(made)
            arguments = {**arguments, "max_model_len": arguments["model_context_len"]}
            continue
        hint = re.search(r"(lower|raise) (max_model_len|kv_cache_bytes) to (\d+)", str(made))
        if hint is None:
            assert "smaller" in str(made) or "max_num_batched_tokens" in str(made)
            return
        name, number = hint[2], int(hint[3])
        assert (number > arguments[name]) if hint[1] == "raise" else (number < arguments[name]), str(made)
        arguments = {**arguments, name: number}
    pytest.fail("the hints did not lead to a plan")


@given(ARGUMENTS, st.integers(0, 8 * GB))
def test_more_memory_never_makes_the_plan_worse(arguments, more: int) -> None:
    if arguments["available_bytes"] is None:
        return
    small = plan_or_error(arguments)
    if isinstance(small, ConfigError):
        return
    large = plan_memory(**{**arguments, "available_bytes": arguments["available_bytes"] + more})
    assert large.max_model_len >= small.max_model_len
    assert large.kv_tokens // large.max_model_len >= 1
    if large.max_model_len == small.max_model_len:
        assert large.num_pages >= small.num_pages


def test_default_cache_holds_all_sequences_when_there_is_room() -> None:
    made = plan()
    assert made.max_model_len == 32768
    assert made.num_pages == 4 * 1024
    assert made.notes == ()


def test_default_cache_takes_half_of_the_room_at_most() -> None:
    made = plan(max_num_seqs=256)
    room = 16 * GB - GB - 100 * MB - head_room_bytes(16 * GB)
    assert made.num_pages == room // BASE["kv_page_bytes"] // 2
    assert made.max_model_len == 32768


def test_one_sequence_may_take_all_the_room() -> None:
    made = plan(available_bytes=2300 * MB, max_num_seqs=8)
    assert made.max_model_len == 32768
    assert made.num_pages == 1024


def test_a_lowered_context_is_told_with_its_reason() -> None:
    made = plan(available_bytes=1500 * MB)
    assert 256 <= made.max_model_len < 32768
    (note,) = made.notes
    assert f"from the model's 32768 to {made.max_model_len} tokens" in note
    assert "939.5 MB" in note or "0.94 GB" in note
    assert note in made.describe()


def test_a_context_asked_for_is_never_lowered() -> None:
    with pytest.raises(MemoryPlanError) as raised:
        plan(max_model_len=32768, available_bytes=1500 * MB)
    message = str(raised.value)
    assert "2.11 GB needed" in message
    assert "1.50 GB available" in message
    assert "lower max_model_len to" in message
    assert "kv_cache_dtype" in message


def test_weights_alone_too_large() -> None:
    with pytest.raises(MemoryPlanError, match=r"16\.00 GB available; choose a smaller model or quantization"):
        plan(weight_bytes=17 * GB)


def test_activations_too_large_names_their_arguments() -> None:
    with pytest.raises(MemoryPlanError, match=r"lower max_num_batched_tokens \(now 2048\) or max_num_seqs \(now 4\)"):
        plan(activation_bytes=15 * GB)


def test_pages_too_large_names_block_size() -> None:
    page_size = 1 << 20
    page = BASE["kv_page_bytes"] * page_size // 32
    with pytest.raises(MemoryPlanError, match=r"GB KV cache.*lower block_size \(now 1048576\)$"):
        plan(page_size=page_size, kv_page_bytes=page)


def test_given_cache_size() -> None:
    page = BASE["kv_page_bytes"]
    made = plan(kv_cache_bytes=100 * page + 5)
    assert made.num_pages == 100
    assert made.max_model_len == 3200
    assert "raise kv_cache_bytes" in made.notes[0]
    assert plan(kv_cache_bytes=100 * page, max_model_len=3200).notes == ()


def test_given_cache_too_small_for_the_context() -> None:
    page = BASE["kv_page_bytes"]
    with pytest.raises(MemoryPlanError, match=f"raise kv_cache_bytes to {101 * page}, lower max_model_len to 3200"):
        plan(kv_cache_bytes=100 * page, max_model_len=3201)


def test_given_cache_above_the_memory() -> None:
    with pytest.raises(
        MemoryPlanError, match=r"kv_cache_bytes \d+ does not fit: .* GB needed.*lower kv_cache_bytes to"
    ):
        plan(kv_cache_bytes=20 * GB)


def test_context_above_the_models() -> None:
    with pytest.raises(ConfigError, match="max_model_len 40000 is above the model's context of 32768"):
        plan(max_model_len=40000)


@pytest.mark.parametrize("name", ["kv_page_bytes", "max_model_len", "max_num_seqs", "max_num_batched_tokens"])
def test_zero_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, not 0"):
        plan(**{name: 0})


def test_unknown_memory_is_said() -> None:
    assert "available" in plan(available_bytes=None).describe()
    assert plan(available_bytes=None, max_model_len=32768, weight_bytes=100 * GB).max_model_len == 32768


def test_activations_grow_with_the_batch() -> None:
    sizes = {"hidden_size": 1536, "qkv_size": 2048, "intermediate_size": 8960, "vocab_size": 151936}
    one = activation_bytes(max_num_batched_tokens=1, max_num_seqs=1, **sizes)
    assert one == 4 * (4 * 1536 + 2 * 2048 + 3 * 8960 + 3 * 151936)
    assert activation_bytes(max_num_batched_tokens=512, max_num_seqs=1, **sizes) > 64 * MB


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.0 kB"), (1500, "1.5 kB"), (64 * MB, "64.0 MB"), (1_234_567_890, "1.23 GB"), (5e8, "0.50 GB")],
)
def test_sizes_read_well(size: float, text: str) -> None:
    assert format_bytes(size) == text
