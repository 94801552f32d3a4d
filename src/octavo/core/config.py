"""How an engine runs: every choice made, nothing left to be guessed later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.core.errors import ConfigError

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "DEFAULT_MAX_DECODE_STALL_MS",
    "DEFAULT_MAX_NUM_BATCHED_TOKENS",
    "DEFAULT_MAX_NUM_SEQS",
    "DEFAULT_PREFIX_CACHE_BYTES",
    "POLICIES",
    "EngineConfig",
    "KVDtype",
    "Policy",
    "check_limits",
    "check_scheduling",
    "resolve_kv_dtype",
]

KVDtype = Literal["float32", "float16", "bfloat16"]
Policy = Literal["continuous", "static"]
KV_CHOICES = ("auto", "float16", "bfloat16", "float32")

# A page of 32 tokens keeps one head's keys in whole cache lines and halves the bookkeeping of 16; what a prompt shares
# below one page is taken by copy-on-write, so larger pages cost no hits.
DEFAULT_BLOCK_SIZE = 32
DEFAULT_MAX_NUM_SEQS = 32
# Enough rows to amortize reading the weights many times over, few enough that a running answer does not stutter.
DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
# A gap of 50 ms in an answer is not seen as one, and a chunk that fits it is long enough to be computed at nearly the
# full rate.
DEFAULT_MAX_DECODE_STALL_MS = 50.0
DEFAULT_PREFIX_CACHE_BYTES = 8 * 10**9
POLICIES = ("continuous", "static")
# Rows of logits a step may hold besides one for each sequence: prompt_logprobs asks for one per prompt token.
PROMPT_LOGIT_ROWS = 32


def resolve_kv_dtype(name: str) -> KVDtype:
    """ "auto" -> "float16"; raises ConfigError for a dtype that is not known."""
    if name not in KV_CHOICES:
        raise ConfigError(f"kv_cache_dtype {name!r} is not known; possible: {', '.join(KV_CHOICES)}")
    resolved: KVDtype = "float16" if name == "auto" else name  # type: ignore[assignment]
    return resolved


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """A resolved configuration. Field names are vLLM's where the meaning is the same.

    Attributes:
        max_model_len: most tokens of one sequence, prompt and answer together.
        max_num_seqs: most sequences in one step.
        max_num_batched_tokens: most new tokens in one step, over all sequences.
        block_size: tokens of a KV page, a multiple of 16.
        num_pages: pages of the KV cache; kv_cache_bytes is their size.
        enable_prefix_caching: keep the pages of finished requests for later ones with the same start.
        kv_cache_dtype: how keys and values are stored.
        seed: seeds of requests without one are drawn from it.
        scheduling_policy: "continuous" admits a request in any step that has room for it; "static" waits until the
            whole batch before it has ended (for comparison).
        max_decode_stall_ms: prompts are cut so that a step in which others decode takes no longer, by what steps have
            taken so far; None: only max_num_batched_tokens limits a step.
        max_waiting: most requests in the queue; one more is refused with QueueFullError. None: no limit.
        queue_timeout_s: a request that has not been given pages by then ends with "timeout". None: it waits.
        swap_space_bytes: memory beside the KV cache for the pages of preempted sequences; 0: they are computed again.
        prefix_cache_dir, prefix_cache_bytes: where cached pages outlive the process, and how much they may take.
        backend, threads: what computes; threads is None where the backend brings its own (reference).

    Raises:
        ConfigError: a value is impossible, alone or with another.
    """

    max_model_len: int
    num_pages: int
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    block_size: int = DEFAULT_BLOCK_SIZE
    enable_prefix_caching: bool = True
    kv_cache_dtype: KVDtype = "float16"
    kv_cache_bytes: int = 0
    seed: int = 0
    scheduling_policy: Policy = "continuous"
    max_decode_stall_ms: float | None = DEFAULT_MAX_DECODE_STALL_MS
    max_waiting: int | None = None
    queue_timeout_s: float | None = None
    swap_space_bytes: int = 0
    prefix_cache_dir: str | None = None
    prefix_cache_bytes: int = DEFAULT_PREFIX_CACHE_BYTES
    backend: Literal["native", "reference"] = "native"
    threads: int | None = None

    def __post_init__(self) -> None:
        check_limits(self.max_num_seqs, self.max_num_batched_tokens, self.block_size)
        check_scheduling(self.scheduling_policy, self.max_decode_stall_ms, self.max_waiting, self.queue_timeout_s)
        if self.max_model_len < 1:
            raise ConfigError(f"max_model_len must be at least 1, not {self.max_model_len}")
        if self.num_pages * self.block_size < self.max_model_len:
            raise ConfigError(
                f"the KV cache holds {self.num_pages * self.block_size} tokens and max_model_len is "
                f"{self.max_model_len}; raise kv_cache_bytes or lower max_model_len"
            )

    @property
    def max_logit_rows(self) -> int:
        """Most rows of logits in one step."""
        return self.logit_rows(self.max_num_seqs, self.max_num_batched_tokens)

    @staticmethod
    def logit_rows(max_num_seqs: int, max_num_batched_tokens: int) -> int:
        """The same for limits that are not a configuration yet."""
        return max_num_seqs + min(PROMPT_LOGIT_ROWS, max_num_batched_tokens)


def check_limits(max_num_seqs: int, max_num_batched_tokens: int, block_size: int) -> None:
    """The checks that need no model. Raises ConfigError."""
    for name, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be an integer of at least 1, not {value!r}")
    if max_num_batched_tokens < max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens {max_num_batched_tokens} is below max_num_seqs {max_num_seqs}, and each running "
            "sequence needs one token a step; raise the first or lower the second"
        )
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 16 or block_size % 16:
        raise ConfigError(f"block_size must be a multiple of 16, not {block_size!r}")


def check_scheduling(
    policy: str, max_decode_stall_ms: float | None, max_waiting: int | None, queue_timeout_s: float | None
) -> None:
    """The checks of how requests queue and share steps. Raises ConfigError."""
    if policy not in POLICIES:
        raise ConfigError(f"scheduling_policy {policy!r} is not known; possible: {', '.join(POLICIES)}")
    for name, value in (("max_decode_stall_ms", max_decode_stall_ms), ("queue_timeout_s", queue_timeout_s)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9):
            raise ConfigError(f"{name} must be a number above 0, or None for no limit, not {value!r}")
    whole = isinstance(max_waiting, int) and not isinstance(max_waiting, bool)
    if max_waiting is not None and not (whole and max_waiting >= 0):
        raise ConfigError(f"max_waiting must be an integer of at least 0, or None for no limit, not {max_waiting!r}")
