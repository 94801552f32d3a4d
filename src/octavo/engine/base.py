"""What `LLM` and `AsyncLLM` have in common: loading, what can be asked of a loaded model, requests made ready."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from octavo.core.config import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_MAX_DECODE_STALL_MS,
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_PREFIX_CACHE_BYTES,
    EngineConfig,
)
from octavo.core.errors import EngineClosedError, RequestError
from octavo.core.memory import MemoryPlan
from octavo.core.params import SamplingParams
from octavo.engine.inputs import ChatTokens, Message, Prompt, PromptInput, parse
from octavo.engine.runner import Runner
from octavo.engine.sequence import Group
from octavo.engine.setup import Loaded, Log, Options, load
from octavo.engine.step import Engine, EngineStats
from octavo.ops.kv import KV_DTYPES

if TYPE_CHECKING:
    from octavo.formats.chat import ChatTemplate
    from octavo.formats.tokenizer import Tokenizer

__all__ = ["BaseLLM", "named"]

logger = logging.getLogger(__name__)


class BaseLLM:
    """A loaded model and the engine that runs it."""

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        max_model_len: int | None = None,
        max_num_seqs: int = DEFAULT_MAX_NUM_SEQS,
        max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS,
        block_size: int = DEFAULT_BLOCK_SIZE,
        enable_prefix_caching: bool = True,
        prefix_cache_dir: str | PathLike[str] | None = None,
        prefix_cache_bytes: int = DEFAULT_PREFIX_CACHE_BYTES,
        kv_cache_dtype: str = "auto",
        seed: int = 0,
        threads: int | None = None,
        kv_cache_bytes: int | None = None,
        swap_space_bytes: int | None = None,
        scheduling_policy: str = "continuous",
        max_decode_stall_ms: float | None = DEFAULT_MAX_DECODE_STALL_MS,
        max_waiting: int | None = None,
        queue_timeout_s: float | None = None,
        backend: str | None = None,
        tokenizer_pre: str | None = None,
        chat_template: str | None = None,
        log: Log | None = None,
    ) -> None:
        """Load a model.

        model: a path to a .gguf file, a short name, or org/repo[:file-or-quant] on Hugging Face.
        max_model_len: tokens of one sequence, prompt and answer together; None: the model's context, or less if its
            KV cache does not fit the memory.
        max_num_seqs: sequences that run at the same time; more wait.
        max_num_batched_tokens: tokens of one step; longer prompts are computed in chunks of it.
        block_size: tokens of a KV page, a multiple of 16.
        enable_prefix_caching: reuse the KV of earlier requests that start with the same tokens.
        prefix_cache_dir: a directory in which cached prefixes outlive memory and process; None: memory alone.
        prefix_cache_bytes: the most that they may take there.
        kv_cache_dtype: "auto" (float16), "float16", "bfloat16" or "float32".
        seed: requests without a seed of their own draw one from it, so a program's results can be repeated.
        threads: compute threads; None: OCTAVO_THREADS, else the physical cores that this process may use.
        kv_cache_bytes: size of the KV cache; None: from max_num_seqs, max_model_len and the memory there is.
        swap_space_bytes: memory beside the KV cache for the pages of preempted sequences, which else are computed
            again; None: a quarter of the KV cache if there is memory for it.
        scheduling_policy: "continuous", or "static": nothing is admitted until the batch before has ended.
        max_decode_stall_ms: prompts are cut so that running answers wait no longer than this for their next token,
            where decoding and the shortest useful chunk (16 tokens) allow it; None: no such limit.
        max_waiting: most requests in the queue, beyond which QueueFullError refuses one; None: no limit.
        queue_timeout_s: a request that has waited longer without being started ends with finish_reason "timeout".
        backend: "native" or "reference" (NumPy: slow, exact); None: OCTAVO_BACKEND, else "native".
        tokenizer_pre: pre-tokenizer to use in place of the one that the file names.
        chat_template: a Jinja template in place of the file's, or the name of one of several in the file.
        log: is given lines about choices, memory and loading; None: they go to the logger `octavo` at level INFO.

        Raises ModelError, DownloadError, ConfigError and its child MemoryPlanError.
        """
        options = Options(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            enable_prefix_caching=enable_prefix_caching,
            prefix_cache_dir=prefix_cache_dir,
            prefix_cache_bytes=prefix_cache_bytes,
            kv_cache_dtype=kv_cache_dtype,
            seed=seed,
            threads=threads,
            kv_cache_bytes=kv_cache_bytes,
            swap_space_bytes=swap_space_bytes,
            scheduling_policy=scheduling_policy,
            max_decode_stall_ms=max_decode_stall_ms,
            max_waiting=max_waiting,
            queue_timeout_s=queue_timeout_s,
            backend=backend,
            tokenizer_pre=tokenizer_pre,
            chat_template=chat_template,
        )
        self._loaded: Loaded | None = None
        loaded = load(model, options, log or logger.info)
        from octavo.engine.text import vocabulary_of  # imported by now

        vocabulary = vocabulary_of(loaded.text.tokenizer, loaded.model.config.vocab)
        self._engine = Engine(Runner(loaded.model, loaded.kv), loaded.config, vocabulary, tier=loaded.tier)
        self._loaded = loaded
        self._start()

    def _start(self) -> None:
        """Called once the engine is there."""

    def _release(self) -> None:
        """Let go of weights, KV and engine; every method fails from now on."""
        if self._loaded is not None:
            self._loaded = None
            del self._engine

    @property
    def config(self) -> EngineConfig:
        """How the engine runs, every choice resolved."""
        return self._open().config

    @property
    def max_model_len(self) -> int:
        return self._open().config.max_model_len

    @property
    def tokenizer(self) -> Tokenizer:
        return self._open().text.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        return self._open().text.chat_template

    @property
    def memory_plan(self) -> MemoryPlan:
        """How the memory was divided before loading."""
        return self._open().plan

    @property
    def load_s(self) -> dict[str, float]:
        """Seconds of loading by stage: open, weights, tokenizer (beside the weights), all."""
        return dict(self._open().load_s)

    def stats(self) -> EngineStats:
        """What the engine has done so far, where its time went, and how its pages are used."""
        self._open()
        return self._engine.stats()

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a conversation, to be used as a prompt. Special tokens that it spells stay plain text.

        tools: JSON schemas of functions that the model may call.
        add_generation_prompt: end with the opening of the assistant's turn; None: yes, unless the last message is
            continued (continue_final_message).
        chat_template_kwargs: further variables of the template, such as enable_thinking.
        Raises RequestError: no chat template, or messages that it refuses.
        """
        parts = self._open().text
        ids = parts.chat_template.encode(
            parts.tokenizer,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **(chat_template_kwargs or {}),
        )
        return ids if continue_final_message else ChatTokens(ids)

    def decode_limit_tok_s(self, context_tokens: int = 0) -> float | None:
        """Tokens per second of one sequence if memory streamed at its measured rate; None with the reference backend.

        A decode step reads every weight once, and the keys and values of `context_tokens` tokens (within the window,
        where a layer has one). The stream rate is measured once, with the engine's threads (about a second).
        """
        loaded = self._open()
        if loaded.config.backend != "native" or loaded.config.threads is None:
            return None
        from octavo.ops.native import measure_stream

        shape = loaded.model.config
        seen = sum(min(context_tokens, window or context_tokens) for window in shape.windows)
        kv_bytes = 2 * seen * shape.kv_heads * shape.head_dim * KV_DTYPES[loaded.config.kv_cache_dtype]
        return measure_stream(loaded.config.threads) * 1e9 / (loaded.model.stream_bytes + kv_bytes)

    def _prepare(
        self, inputs: list[PromptInput], params: list[SamplingParams], priorities: list[int] | None = None
    ) -> list[Group]:
        """Check and build every request before the first one is queued. priorities: None: all are 0."""
        groups = []
        for index, (each, wanted, priority) in enumerate(
            zip(inputs, params, priorities or [0] * len(inputs), strict=True)
        ):
            try:
                groups.append(self._prepare_one(each, wanted, priority=priority))
            except RequestError as error:
                raise named(error, index, len(inputs)) from None
        return groups

    def _prepare_one(
        self,
        prompt: PromptInput,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        queue_timeout_s: float | None = None,
    ) -> Group:
        """Check and build one request; queues nothing. See `Engine.make_request` for what it raises."""
        tokenizer = self._open().text.tokenizer
        ids = tokenizer.encode(prompt.text or "") if prompt.token_ids is None else prompt.token_ids
        request = self._engine.make_request(
            ids,
            params,
            prompt=prompt.text,
            cache_salt=prompt.cache_salt,
            starts_text=prompt.starts_text,
            request_id=request_id,
            priority=priority,
            queue_timeout_s=queue_timeout_s,
        )
        return self._engine.prepare(request)

    def _prefix(self, prompt: Prompt) -> tuple[list[int], str | None]:
        """Token ids and cache_salt of a prompt to be pinned."""
        inputs = parse(prompt)
        if len(inputs) != 1:
            raise RequestError(f"one prompt is pinned at a time, not {len(inputs)}")
        (each,) = inputs
        tokenizer = self._open().text.tokenizer
        return tokenizer.encode(each.text or "") if each.token_ids is None else each.token_ids, each.cache_salt

    def _open(self) -> Loaded:
        if self._loaded is None:
            raise EngineClosedError(f"this {type(self).__name__} has been closed; make a new one")
        return self._loaded


def named(error: RequestError, index: int, count: int) -> RequestError:
    """The same error saying which prompt it is about, where there are several."""
    return error if count == 1 else type(error)(f"prompt {index}: {error}")
