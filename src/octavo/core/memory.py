"""The memory plan: what weights, KV cache and activations take, worked out before anything is loaded.

Plain numbers in, a plan or a `MemoryPlanError` out; nothing here knows a model class. All sizes are bytes, and
1 GB is 10^9 bytes. For every plan made against known memory:

    weights + KV cache + activations + head room <= available
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from octavo.core.errors import ConfigError, MemoryPlanError

__all__ = ["MemoryPlan", "activation_bytes", "format_bytes", "head_room_bytes", "plan_memory"]

MIN_CONTEXT = 256
"""A context window that Octavo chose itself is never shorter (in tokens): better an error than a useless engine."""
MIN_PAGE = 16
"""The fewest tokens of a KV page."""
FAIR_SHARE = 0.5
"""Most of the room after weights that the default KV cache takes for concurrency (one sequence may take all of it)."""
UNKNOWN_ROOM = 4 * 10**9
"""Room that a default KV cache may take where the system does not tell how much memory is free."""


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes in bytes.

    Attributes:
        available_bytes: what the process could take when the plan was made; None: unknown, nothing was checked.
        num_pages, page_size: the KV cache as pages of page_size tokens.
        max_model_len: tokens of one sequence, prompt and answer together.
        notes: choices that the caller did not make, each with its reason and the argument that changes it.
    """

    weight_bytes: int
    kv_cache_bytes: int
    activation_bytes: int
    head_room_bytes: int
    available_bytes: int | None
    num_pages: int
    page_size: int
    max_model_len: int
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Weights, KV cache and activations."""
        return self.weight_bytes + self.kv_cache_bytes + self.activation_bytes

    @property
    def kv_tokens(self) -> int:
        return self.num_pages * self.page_size

    def describe(self) -> str:
        """One to three lines for people."""
        available = "unknown" if self.available_bytes is None else format_bytes(self.available_bytes)
        first = (
            f"memory: {format_bytes(self.weight_bytes)} weights + {format_bytes(self.kv_cache_bytes)} KV cache "
            f"+ {format_bytes(self.activation_bytes)} activations = {format_bytes(self.total_bytes)} "
            f"of {available} available"
        )
        second = (
            f"context: {self.max_model_len} tokens a sequence; the KV cache holds {self.kv_tokens} tokens, "
            f"{self.kv_tokens / self.max_model_len:.1f} such sequences ({self.num_pages} pages of {self.page_size})"
        )
        return "\n".join([first, second, *(["note: " + "; ".join(self.notes)] if self.notes else [])])


@dataclass(frozen=True)
class _Request:
    """The arguments of `plan_memory`, and what follows from them before the context window is known."""

    weight_bytes: int
    kv_page_bytes: int
    page_size: int
    model_context_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    activation_bytes: int
    available_bytes: int | None

    @property
    def head_room(self) -> int:
        return head_room_bytes(self.available_bytes)

    @property
    def fixed_bytes(self) -> int:
        """All that is not KV cache."""
        return self.weight_bytes + self.activation_bytes + self.head_room

    @property
    def kv_room_bytes(self) -> int:
        """What is left for KV."""
        return UNKNOWN_ROOM if self.available_bytes is None else self.available_bytes - self.fixed_bytes

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)


def plan_memory(
    *,
    weight_bytes: int,
    kv_page_bytes: int,
    page_size: int,
    model_context_len: int,
    max_model_len: int | None,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    activation_bytes: int,
    available_bytes: int | None,
    kv_cache_bytes: int | None = None,
) -> MemoryPlan:
    """Divide memory, or say why it cannot be done.

    weight_bytes: packed weights. kv_page_bytes: one page of page_size tokens over all layers, K and V.
    model_context_len: the most tokens that the model was made for.
    max_model_len: tokens that one sequence must be able to hold; None: model_context_len, or less if that does not
        fit (the plan's notes say so).
    activation_bytes: buffers of one step; see the function of that name.
    available_bytes: what the process may take (`HostFacts.usable_memory_bytes`); None: unknown, no check.
    kv_cache_bytes: size of the KV cache, rounded down to whole pages; None: enough for max_num_seqs sequences of
        max_model_len, but at most half of the room after the weights, and never less than one such sequence.

    Raises:
        MemoryPlanError: it does not fit; says needed and available GB and the argument to lower.
        ConfigError: an argument is not possible in itself.
    """
    for name, value, least in (
        ("weight_bytes", weight_bytes, 0),
        ("kv_page_bytes", kv_page_bytes, 1),
        ("block_size", page_size, 1),
        ("model_context_len", model_context_len, 1),
        ("max_model_len", max_model_len, 1),
        ("max_num_seqs", max_num_seqs, 1),
        ("max_num_batched_tokens", max_num_batched_tokens, 1),
        ("activation_bytes", activation_bytes, 0),
        ("available_bytes", available_bytes, 0),
        ("kv_cache_bytes", kv_cache_bytes, 1),
    ):
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, not {value}")
    if max_model_len is not None and max_model_len > model_context_len:
        raise ConfigError(
            f"max_model_len {max_model_len} is above the model's context of {model_context_len} tokens; "
            f"set max_model_len to {model_context_len} or less"
        )
    request = _Request(
        weight_bytes,
        kv_page_bytes,
        page_size,
        model_context_len,
        max_num_seqs,
        max_num_batched_tokens,
        activation_bytes,
        available_bytes,
    )
    if available_bytes is not None and request.kv_room_bytes < kv_page_bytes:
        _raise_no_room(request)
    if kv_cache_bytes is not None:
        return _with_given_cache(request, max_model_len, kv_cache_bytes)
    return _with_default_cache(request, max_model_len)


def activation_bytes(
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    hidden_size: int,
    qkv_size: int,
    intermediate_size: int,
    vocab_size: int,
) -> int:
    """An upper estimate of one step's f32 buffers; qkv_size: (heads + 2 kv_heads) * head_dim.

    Per token: residual stream, normed input, its quantized copy and a matmul's result (4 hidden), q, k, v with the
    rotated q and the attention output (2 qkv), gate, up and their product (3 intermediate). Per sequence: its logits
    and the sampler's two copies of them.
    """
    per_token = 4 * hidden_size + 2 * qkv_size + 3 * intermediate_size
    return 4 * (max_num_batched_tokens * per_token + 3 * max_num_seqs * vocab_size)


def head_room_bytes(available_bytes: int | None) -> int:
    """Left free for tokenizer, Python, the operating system and page cache: 5 %, between 64 MB and 2 GB."""
    return 0 if available_bytes is None else min(max(available_bytes // 20, 64 * 10**6), 2 * 10**9)


def format_bytes(size: float) -> str:
    """1_234_567_890 -> "1.23 GB"; decimal units, as memory vendors and stream rates use them."""
    for unit, factor, digits in (("GB", 1e9, 2), ("MB", 1e6, 1), ("kB", 1e3, 1)):
        if abs(size) >= factor * 0.1 or unit == "kB":
            return f"{size / factor:.{digits}f} {unit}"
    raise AssertionError("the last unit always returns")


def _with_given_cache(request: _Request, max_model_len: int | None, kv_cache_bytes: int) -> MemoryPlan:
    """The caller set kv_cache_bytes: the context must fit into it, and it into the memory."""
    num_pages = kv_cache_bytes // request.kv_page_bytes
    if request.available_bytes is not None and num_pages * request.kv_page_bytes > request.kv_room_bytes:
        raise MemoryPlanError(
            f"kv_cache_bytes {kv_cache_bytes} does not fit: {_needed(request, kv_cache_bytes)}; "
            f"lower kv_cache_bytes to {request.kv_room_bytes} or less"
        )
    holds = num_pages * request.page_size
    wanted = max_model_len if max_model_len is not None else min(request.model_context_len, MIN_CONTEXT)
    if holds < wanted:
        need = request.pages(wanted) * request.kv_page_bytes
        lower = f", lower max_model_len to {holds}" if max_model_len is not None and holds else ""
        raise MemoryPlanError(
            f"kv_cache_bytes {kv_cache_bytes} holds {holds} tokens, and one sequence of {wanted} needs "
            f"{format_bytes(need)}; raise kv_cache_bytes to {need}{lower} or choose a smaller kv_cache_dtype"
        )
    if max_model_len is not None:
        return _plan(request, num_pages, max_model_len)
    length = min(request.model_context_len, holds)
    reason = f"kv_cache_bytes {kv_cache_bytes} holds no more"
    return _plan(request, num_pages, length, _lowered(request, length, f"{reason}; raise kv_cache_bytes for more"))


def _with_default_cache(request: _Request, max_model_len: int | None) -> MemoryPlan:
    """No kv_cache_bytes given: size the cache for the context and the number of sequences."""
    most_pages = request.kv_room_bytes // request.kv_page_bytes
    notes: tuple[str, ...] = ()
    if max_model_len is None:
        length = min(request.model_context_len, most_pages * request.page_size)
        if length < min(request.model_context_len, MIN_CONTEXT):
            _raise_no_room(request)
        notes = _lowered(request, length, _short_of_room(request))
    else:
        length = max_model_len
        if request.available_bytes is not None and request.pages(length) > most_pages:
            need = request.pages(length) * request.kv_page_bytes
            raise MemoryPlanError(
                f"one sequence of max_model_len {length} does not fit: {_needed(request, need)}; lower max_model_len "
                f"to {most_pages * request.page_size} or less, or choose a smaller kv_cache_dtype"
            )
    one = request.pages(length)
    all_sequences = one * request.max_num_seqs
    fair = int(most_pages * FAIR_SHARE)
    return _plan(request, max(one, min(all_sequences, fair)), length, notes)


def _plan(request: _Request, num_pages: int, max_model_len: int, notes: tuple[str, ...] = ()) -> MemoryPlan:
    if request.available_bytes is None:
        notes += ("this system does not tell how much memory is free, so nothing was checked",)
    return MemoryPlan(
        weight_bytes=request.weight_bytes,
        kv_cache_bytes=num_pages * request.kv_page_bytes,
        activation_bytes=request.activation_bytes,
        head_room_bytes=request.head_room,
        available_bytes=request.available_bytes,
        num_pages=num_pages,
        page_size=request.page_size,
        max_model_len=max_model_len,
        notes=notes,
    )


def _lowered(request: _Request, length: int, reason: str) -> tuple[str, ...]:
    if length == request.model_context_len:
        return ()
    return (f"max_model_len lowered from the model's {request.model_context_len} to {length} tokens: {reason}",)


def _short_of_room(request: _Request) -> str:
    full = format_bytes(request.pages(request.model_context_len) * request.kv_page_bytes)
    room = format_bytes(request.kv_room_bytes)
    if request.available_bytes is None:
        return f"its KV cache would take {full}, above the {room} for unknown free memory; set max_model_len for more"
    return (
        f"its KV cache would take {full} and {room} is left for it; "
        "a smaller kv_cache_dtype or more free memory allows more"
    )


def _needed(request: _Request, kv_bytes: int) -> str:
    available = "an unknown amount" if request.available_bytes is None else format_bytes(request.available_bytes)
    return (
        f"{format_bytes(request.fixed_bytes + kv_bytes)} needed ({format_bytes(request.weight_bytes)} weights, "
        f"{format_bytes(kv_bytes)} KV cache, {format_bytes(request.activation_bytes)} activations, "
        f"{format_bytes(request.head_room)} head room), {available} available"
    )


def _raise_no_room(request: _Request) -> NoReturn:
    """Not even the shortest useful context fits."""
    shortest = min(request.model_context_len, MIN_CONTEXT)
    kv_bytes = request.pages(shortest) * request.kv_page_bytes
    available = request.available_bytes
    # What the same tokens would take in the smallest pages there are.
    token_bytes = request.kv_page_bytes / request.page_size
    in_small_pages = token_bytes * -(-shortest // MIN_PAGE) * MIN_PAGE
    if available is not None and request.fixed_bytes + in_small_pages <= available:
        way_out = f"lower block_size (now {request.page_size})"
    elif available is not None and request.fixed_bytes - request.activation_bytes + in_small_pages <= available:
        way_out = (
            f"lower max_num_batched_tokens (now {request.max_num_batched_tokens}) "
            f"or max_num_seqs (now {request.max_num_seqs})"
        )
    else:
        way_out = "choose a smaller model or quantization, or free memory"
    raise MemoryPlanError(f"the model does not fit: {_needed(request, kv_bytes)}; {way_out}")
