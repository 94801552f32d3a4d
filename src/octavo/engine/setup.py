"""From a model reference and options to everything an engine runs on: read, plan the memory, load, in this order."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from octavo.core.config import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_MAX_DECODE_STALL_MS,
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_PREFIX_CACHE_BYTES,
    EngineConfig,
    KVDtype,
    Policy,
    check_limits,
    check_scheduling,
    resolve_kv_dtype,
)
from octavo.core.env import BACKENDS, MAX_THREADS, env
from octavo.core.errors import ConfigError
from octavo.core.host import default_threads, host_facts
from octavo.core.memory import MemoryPlan, activation_bytes, format_bytes, plan_memory
from octavo.formats.fingerprint import fingerprint
from octavo.formats.gguf import GGUFFile
from octavo.formats.references import resolve
from octavo.models.config import ModelConfig
from octavo.models.decoder import Model
from octavo.models.loader import estimate_weight_bytes, load_model
from octavo.ops import make_ops
from octavo.ops.kv import KVStore

if TYPE_CHECKING:
    from octavo.cache.tier import Tier
    from octavo.engine.text import Text

__all__ = ["Loaded", "Log", "Options", "load"]

Log = Callable[[str], None]
Backend = Literal["native", "reference"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a caller may choose; None: chosen by the engine, which logs what and why. See `LLM` for each."""

    max_model_len: int | None = None
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    block_size: int = DEFAULT_BLOCK_SIZE
    enable_prefix_caching: bool = True
    prefix_cache_dir: str | PathLike[str] | None = None
    prefix_cache_bytes: int = DEFAULT_PREFIX_CACHE_BYTES
    kv_cache_dtype: str = "auto"
    seed: int = 0
    threads: int | None = None
    kv_cache_bytes: int | None = None
    swap_space_bytes: int | None = None
    scheduling_policy: str = "continuous"
    max_decode_stall_ms: float | None = DEFAULT_MAX_DECODE_STALL_MS
    max_waiting: int | None = None
    queue_timeout_s: float | None = None
    backend: str | None = None
    tokenizer_pre: str | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        check_limits(self.max_num_seqs, self.max_num_batched_tokens, self.block_size)
        check_scheduling(self.scheduling_policy, self.max_decode_stall_ms, self.max_waiting, self.queue_timeout_s)
        resolve_kv_dtype(self.kv_cache_dtype)
        least = {"max_model_len": 1, "kv_cache_bytes": 1, "threads": 1, "prefix_cache_bytes": 1, "swap_space_bytes": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
                raise ConfigError(f"{name} must be an integer of at least {low}, not {value!r}")
        if self.prefix_cache_dir is not None and not self.enable_prefix_caching:
            raise ConfigError(
                "prefix_cache_dir keeps cached prefixes, and enable_prefix_caching is off; turn that on or leave out "
                "prefix_cache_dir"
            )
        if self.threads is not None and self.threads > MAX_THREADS:
            raise ConfigError(f"threads must be at most {MAX_THREADS}, not {self.threads}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not -(2**63) <= self.seed < 2**64:
            raise ConfigError(f"seed must be an integer between -(2**63) and 2**64 - 1, not {self.seed!r}")
        if self.backend is not None and self.backend not in BACKENDS:
            raise ConfigError(f"backend {self.backend!r} is not known; possible: {', '.join(BACKENDS)}")


@dataclass(frozen=True)
class Loaded:
    """A model in memory, and what was decided on the way. load_s: seconds by stage."""

    path: Path
    config: EngineConfig
    plan: MemoryPlan
    model: Model
    kv: KVStore
    text: Text
    load_s: dict[str, float]
    tier: Tier | None


def load(model: str | PathLike[str], options: Options, log: Log) -> Loaded:
    """Find, plan and load. The plan is made, checked and logged before any weight is read.

    Raises ModelError and DownloadError (no such model, or one that cannot run), MemoryPlanError (it does not fit),
    ConfigError (an option is impossible).
    """
    started = time.perf_counter()
    backend: Backend = env("OCTAVO_BACKEND") if options.backend is None else options.backend  # type: ignore[assignment]
    threads = _threads(options, backend, log)
    ops = make_ops(backend, threads)
    path = resolve(fspath(model), progress=_LoggedDownload(log))
    with GGUFFile.open(path) as file:
        shape = ModelConfig.from_gguf(file)
        dtype = resolve_kv_dtype(options.kv_cache_dtype)
        plan = _plan(file, shape, options, backend, dtype)
        config = EngineConfig(
            max_model_len=plan.max_model_len,
            num_pages=plan.num_pages,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            block_size=options.block_size,
            enable_prefix_caching=options.enable_prefix_caching,
            kv_cache_dtype=dtype,
            kv_cache_bytes=plan.kv_cache_bytes,
            seed=options.seed,
            scheduling_policy=cast(Policy, options.scheduling_policy),
            max_decode_stall_ms=options.max_decode_stall_ms,
            max_waiting=options.max_waiting,
            queue_timeout_s=options.queue_timeout_s,
            swap_space_bytes=_swap_space(options, plan, log),
            prefix_cache_dir=None if options.prefix_cache_dir is None else fspath(options.prefix_cache_dir),
            prefix_cache_bytes=options.prefix_cache_bytes,
            backend=backend,
            threads=threads,
        )
        for line in plan.describe().splitlines():
            log(line)
        opened = time.perf_counter()
        # The tokenizer is built by one thread while the weights are packed by others.
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(_build_text, file, options)
            loaded = load_model(file, ops, max_positions=plan.max_model_len)
            packed = time.perf_counter()
            text, text_s = future.result()
        weights = None if options.prefix_cache_dir is None else fingerprint(file)
    kv = loaded.new_kv(plan.num_pages, options.block_size, dtype)
    tier = None if weights is None else _disk_tier(config, loaded, kv, weights, log)
    seconds = {
        "open": opened - started,
        "weights": packed - opened,
        "tokenizer": text_s,
        "all": time.perf_counter() - started,
    }
    log(
        f"loaded {path.name}: {format_bytes(loaded.weight_bytes)} of weights in {seconds['all']:.2f} s "
        f"(weights {seconds['weights']:.2f} s, tokenizer beside them {text_s:.2f} s)"
    )
    return Loaded(path, config, plan, loaded, kv, text, seconds, tier)


class _LoggedDownload:
    """Tells the log when a download begins, and what a person should know."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def begin(self, label: str, total_bytes: int | None) -> None:
        size = "" if total_bytes is None else f" ({format_bytes(total_bytes)})"
        self._log(f"downloading {label}{size}")

    def update(self, done_bytes: int) -> None:
        """A log is no place for a bar."""

    def note(self, message: str) -> None:
        self._log(message)

    def end(self) -> None:
        """What comes next says that it is over."""


def _build_text(file: GGUFFile, options: Options) -> tuple[Text, float]:
    """Tokenizer and template, and the seconds they took. Their libraries are imported here, beside the packing."""
    start = time.perf_counter()
    from octavo.engine.text import read_text

    return read_text(file, options.tokenizer_pre, options.chat_template), time.perf_counter() - start


def _threads(options: Options, backend: Backend, log: Log) -> int | None:
    """None for the reference backend, which leaves threads to NumPy."""
    if options.threads is not None or backend == "reference":
        return options.threads
    choice = default_threads()
    log(f"threads: {choice.threads} ({choice.reason})")
    return choice.threads


def _plan(file: GGUFFile, shape: ModelConfig, options: Options, backend: Backend, dtype: KVDtype) -> MemoryPlan:
    rows = EngineConfig.logit_rows(options.max_num_seqs, options.max_num_batched_tokens)
    buffers = activation_bytes(
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=rows,
        hidden_size=shape.hidden,
        qkv_size=(shape.heads + 2 * shape.kv_heads) * shape.head_dim,
        intermediate_size=shape.ffn,
        vocab_size=shape.vocab,
    )
    return plan_memory(
        weight_bytes=estimate_weight_bytes(file, backend),
        kv_page_bytes=shape.kv_page_bytes(options.block_size, dtype),
        page_size=options.block_size,
        model_context_len=shape.context_length,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        activation_bytes=buffers,
        available_bytes=host_facts().usable_memory_bytes,
        kv_cache_bytes=options.kv_cache_bytes,
    )


def _disk_tier(config: EngineConfig, model: Model, kv: KVStore, weights: str, log: Log) -> Tier:
    """Cached pages on disk. weights: their fingerprint."""
    from octavo.cache.disk import DiskStore  # imported by those who use a disk alone
    from octavo.cache.identity import page_identities
    from octavo.cache.tier import Tier

    assert config.prefix_cache_dir is not None
    identities = page_identities(
        kv,
        model=weights,
        ropes=[layer.rope for layer in model.decoder.layers],
        version=_build(config.backend),
        backend=config.backend,
        tier=getattr(model.ops, "tier", None),  # the instruction-set tier of native ops
    )
    store = DiskStore(config.prefix_cache_dir, config.prefix_cache_bytes)
    there = store.stats()
    log(
        f"prefix cache on disk: {config.prefix_cache_dir} holds {there.pages} pages, {format_bytes(there.disk_bytes)} "
        f"of {format_bytes(there.max_bytes)}" + (f"; only read: {there.writes_off}" if there.writes_off else "")
    )
    return Tier(store, identities, kv.page_parts, config.block_size)


def _build(backend: Backend) -> str:
    """Octavo's version and, where the extension computes, its digest: one version may have had other kernels."""
    import importlib.metadata

    try:
        version = importlib.metadata.version("octavo")
    except importlib.metadata.PackageNotFoundError:
        version = "source"
    if backend != "native":
        return version
    from octavo.ops.native import build_digest

    return f"{version} {build_digest()}"


def _swap_space(options: Options, plan: MemoryPlan, log: Log) -> int:
    """Bytes for the pages of preempted sequences: a quarter of the KV cache, if the plan leaves as much."""
    if options.swap_space_bytes is not None:
        return options.swap_space_bytes
    if plan.available_bytes is None:
        return 0
    spare = plan.available_bytes - plan.total_bytes - plan.head_room_bytes
    size = max(0, min(plan.kv_cache_bytes // 4, spare // 2))
    log(f"swap space for preempted sequences: up to {format_bytes(size)} (swap_space_bytes)")
    return size
