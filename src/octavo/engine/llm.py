"""`LLM`: a model in this process, for programs that want answers to a list of prompts.

from octavo import LLM, SamplingParams

with LLM("smollm2") as llm:
    for output in llm.generate(["The capital of France is"], SamplingParams(temperature=0)):
        print(output.outputs[0].text)
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from octavo.core.errors import RequestError
from octavo.core.outputs import RequestOutput
from octavo.core.params import SamplingParams
from octavo.engine.base import BaseLLM, named
from octavo.engine.inputs import Conversation, Prompt, conversations, pair_params, pair_priorities, parse
from octavo.engine.progress import track
from octavo.engine.sequence import Group

__all__ = ["LLM"]


class LLM(BaseLLM):
    """A loaded model and the engine that runs it. Close it, or use it in a `with` statement, to give back the memory.

    Its methods may be called from several threads; their requests then share the engine's steps.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what still runs and let go of weights and KV. May be called twice; other methods fail afterwards."""
        if self._loaded is not None:
            self._engine.close()
            self._release()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Continue prompts; the results are in their order.

        prompts: text, token ids, or {"prompt": ...} / {"prompt_token_ids": ...}, or a list of these. What text spells
            stays text: a prompt with special tokens is given as `tokenizer.encode(text, parse_special=True)`.
        sampling_params: one for all, or one for each; None: SamplingParams().
        priority: one for all, or one for each; those with smaller numbers run first, and push out running ones.
        progress: draw a bar on standard error.

        An answer that reaches the end of the context window ends with finish_reason "length". A request with
        prompt_logprobs computes its whole prompt, cached or not.

        Raises RequestError (and its children), naming the prompt by its index: before anything is computed where a
        request cannot be served as asked, at once where one fails on the way. QueueFullError: more prompts than
        max_waiting lets wait. The engine can be used again after each.
        """
        inputs = parse(prompts)
        params, priorities = pair_params(sampling_params, len(inputs)), pair_priorities(priority, len(inputs))
        return self._run(self._prepare(inputs, params, priorities), progress)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, each a list of {"role": ..., "content": ...}.

        See `encode_chat` for the arguments of the template and `generate` for the rest.
        """
        listed = conversations(messages)
        inputs = []
        for index, conversation in enumerate(listed):
            try:
                ids = self.encode_chat(
                    conversation,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    chat_template_kwargs=chat_template_kwargs,
                )
            except RequestError as error:
                raise named(error, index, len(listed)) from None
            inputs += parse(ids)
        return self._run(self._prepare(inputs, pair_params(sampling_params, len(inputs))), progress)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, every_step: bool = False
    ) -> Generator[RequestOutput, None, None]:
        """Continue one prompt step by step: yields its state whenever it has grown, the last one `finished`.

        every_step: yield after the steps of a long prompt too, in which nothing grows, so that a caller can give up.
        Closing the iterator early ends the request and frees its pages. What runs in parallel (other threads, other
        streams of this one) shares the steps.
        Raises RequestError at once if the request cannot be served as asked, from the iterator if it fails later.
        """
        inputs = parse(prompt)
        if len(inputs) != 1:
            raise RequestError(f"stream takes one prompt, not {len(inputs)}; use generate for several")
        (group,) = self._prepare(inputs, pair_params(sampling_params, 1))
        return self._follow(group, every_step)

    def pin(self, prompt: Prompt) -> int:
        """Keep the KV of a prompt's full pages in memory until `unpin`, whatever else needs room.

        Returns how many pages are there now; the others stay once a request has computed them. Pin a system prompt
        before the first request with it. At most half of the KV cache can be pinned, less where one sequence of
        max_model_len needs more than the rest.
        Raises ConfigError: no full page, more than can be pinned, or prefix caching is off.
        """
        ids, salt = self._prefix(prompt)
        return self._engine.pin(ids, salt)

    def unpin(self, prompt: Prompt) -> bool:
        """Let a pinned prompt's pages be evicted again; False if it is not pinned."""
        ids, salt = self._prefix(prompt)
        return self._engine.unpin(ids, salt)

    def reset_prefix_cache(self) -> int:
        """Forget every cached page that no running request uses; returns how many there were."""
        self._open()
        return self._engine.reset_prefix_cache()

    def _run(self, groups: list[Group], progress: bool) -> list[RequestOutput]:
        engine, index = self._engine, 0
        indices = {id(group): i for i, group in enumerate(groups)}
        try:
            for group in groups:
                engine.add(group)
            with track(len(groups), progress) as advance:
                while index < len(groups):
                    if groups[index].finished:
                        _raise_if_failed(groups[index], index)
                        index += 1
                        continue
                    for group in engine.step():
                        if id(group) in indices:
                            _raise_if_failed(group, indices[id(group)])
                            advance(group)
            engine.flush()
        finally:
            for group in groups:
                if not group.finished:
                    engine.abort(group)
        return [group.output() for group in groups]

    def _follow(self, group: Group, every_step: bool) -> Generator[RequestOutput, None, None]:
        engine, seen = self._engine, 0
        engine.add(group)
        try:
            while True:
                if not group.finished:
                    engine.step()
                finished, version = group.finished, group.version
                if group.error is not None and not group.timed_out:
                    raise RequestError(f"the request failed: {group.error}")
                if version != seen or every_step:
                    seen = version
                    yield group.output()
                if finished:
                    return
        finally:
            if not group.finished:
                engine.abort(group)


def _raise_if_failed(group: Group, index: int) -> None:
    """Raise for a failed request; one that waited too long is an answer like any other, and the rest goes on."""
    if group.error is not None and not group.timed_out:
        raise RequestError(f"prompt {index} failed: {group.error}")
