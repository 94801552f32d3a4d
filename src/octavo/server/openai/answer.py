"""One response of the Responses API while it is made: the object, its events, its place in the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Literal

from octavo.core.outputs import FinishReason, RequestOutput, TokenLogprobs
from octavo.formats.tokenizer import Tokenizer
from octavo.server.errors import Problem, describe
from octavo.server.generation import Generation, State
from octavo.server.http import Call
from octavo.server.openai.logprobs import chat_logprobs
from octavo.server.openai.response_store import StoredResponse
from octavo.server.openai.responses_schema import (
    Details,
    InputTokens,
    OutputMessage,
    OutputText,
    OutputTokens,
    ReasoningOptions,
    Response,
    ResponseError,
    ResponseRequest,
    ResponseUsage,
    TextFormat,
    TextOptions,
)
from octavo.server.openai.schema import ChatMessage
from octavo.server.sse import named_event

__all__ = ["Answer"]


class Answer:
    """response: as it is now; those who ask for it while it is made see the same object."""

    def __init__(
        self, call: Call, tokenizer: Tokenizer, body: ResponseRequest, model: str, conversation: Sequence[ChatMessage]
    ) -> None:
        """conversation: all turns before the answer."""
        self._call, self._tokenizer, self._body = call, tokenizer, body
        self._conversation = list(conversation)
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._tokens = self._prompt = self._cached = 0
        self._reason: FinishReason | None = None
        self._sequence = 0
        self._item = f"msg_{call.record.id}"
        self._place = {"item_id": self._item, "output_index": 0, "content_index": 0}
        self.response = Response(
            id=f"resp_{call.record.id}",
            created_at=int(time.time()),
            status="in_progress",
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            model=model,
            previous_response_id=body.previous_response_id,
            reasoning=body.reasoning or ReasoningOptions(),
            store=body.store is not False,
            temperature=1.0 if body.temperature is None else body.temperature,
            text=TextOptions(TextFormat("text")),
            top_p=1.0 if body.top_p is None else body.top_p,
            user=body.user,
            metadata=body.metadata or {},
        )

    def begin(self, cancel: Callable[[], Awaitable[bool]]) -> None:
        """Store it, if it is to be stored. cancel: ends it."""
        if self.response.store:
            self._call.service.responses.put(
                StoredResponse(self.response, self._call.owner, list(self._conversation), cancel)
            )

    def take(self, output: RequestOutput) -> bytes:
        """Add what is new in a state; its event, if there is something to tell."""
        self._prompt, self._cached = len(output.prompt_token_ids), output.metrics.cached_prompt_tokens
        for each in output.outputs:
            self._text.append(each.text)
            self._tokens += len(each.token_ids)
            self._logprobs += each.logprobs or []
            self._reason = each.finish_reason
            if each.text or each.logprobs:
                listed = self._listed(each.logprobs or [])
                return self._event("response.output_text.delta", **self._place, delta=each.text, logprobs=listed)
        return b""

    def end(self) -> Response:
        """It is finished."""
        full = self._reason == "length"
        status: Literal["completed", "incomplete"] = "incomplete" if full else "completed"
        self.response.status = status
        self.response.incomplete_details = Details("max_output_tokens") if full else None
        self._fill(status)
        self._conversation.append(ChatMessage(role="assistant", content="".join(self._text)))
        self._settle()
        return self.response

    def fail(self, error: BaseException, *, cancelled: bool) -> Response:
        """It has been ended by its client, or by an error."""
        if cancelled or isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.response.status = "cancelled"
        else:
            self._fail(describe(error))
        self._fill("incomplete")
        self._settle()
        return self.response

    async def events(self, first: State, rest: AsyncIterator[State], generation: Generation) -> AsyncIterator[bytes]:
        """Server-sent events; what one step brought is one piece."""
        item = OutputMessage(id=self._item, status="in_progress", content=[])
        opening = [
            self._event("response.created", response=self.response),
            self._event("response.in_progress", response=self.response),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._place, part=OutputText(text="")),
        ]
        try:
            yield b"".join([*opening, self.take(first[1])])
            async for _, output in rest:
                piece = self.take(output)
                if piece:
                    yield piece
        except BaseException as error:
            response = self.fail(error, cancelled=generation.cancelled)
            if not isinstance(error, Exception):
                raise
            yield self._event(f"response.{'failed' if response.error else 'incomplete'}", response=response)
        else:
            yield self._closing(self.end())

    def error_event(self, problem: Problem) -> bytes:
        """The last event where the server gives up."""
        self._fail(problem)
        self._settle()
        return self._event("error", code=problem.code, message=problem.message, param=problem.param)

    def _closing(self, response: Response) -> bytes:
        (message,) = response.output
        (part,) = message.content
        events = [
            self._event("response.output_text.done", **self._place, text=part.text, logprobs=part.logprobs),
            self._event("response.content_part.done", **self._place, part=part),
            self._event("response.output_item.done", output_index=0, item=message),
            self._event(f"response.{response.status}", response=response),
        ]
        return b"".join(events)

    def _event(self, name: str, **content: Any) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        return named_event(name, {"type": name, "sequence_number": number, **content})

    def _fail(self, problem: Problem) -> None:
        self.response.status = "failed"
        self.response.error = ResponseError(problem.code or "server_error", problem.message)

    def _fill(self, status: Literal["completed", "incomplete"]) -> None:
        part = OutputText(text="".join(self._text), logprobs=self._listed(self._logprobs))
        self.response.output = [OutputMessage(id=self._item, status=status, content=[part])]
        cached, total = InputTokens(self._cached), self._prompt + self._tokens
        self.response.usage = ResponseUsage(self._prompt, cached, self._tokens, OutputTokens(0), total)

    def _settle(self) -> None:
        """It will not change any more."""
        self._call.service.responses.settle(self.response.id, self._conversation)

    def _listed(self, entries: Sequence[TokenLogprobs]) -> list[Any]:
        return list(chat_logprobs(entries, self._body.top_logprobs or 0, self._tokenizer).content)
