"""POST /v1/responses, and what is done with a response afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.async_llm import AsyncLLM
from octavo.server.errors import ApiError
from octavo.server.generation import Generation, Work
from octavo.server.http import Call, Refusal, Reply, Stream
from octavo.server.openai.answer import Answer
from octavo.server.openai.prompts import encode_messages
from octavo.server.openai.responses_schema import Deleted, InputMessage, ResponseRequest
from octavo.server.openai.sampling import LATER, REFUSED, check_salt, sampling_params
from octavo.server.openai.schema import ChatMessage

__all__ = ["RESPONSE_REFUSED", "cancel_response", "create_response", "delete_response", "get_response"]

_TOOLS = "tools are not in this version"
_TEXT_ONLY = "models here read text only; nothing was fetched"

RESPONSE_REFUSED: dict[str, Refusal] = {
    **REFUSED,
    "tools": Refusal(_TOOLS, ([],)),
    "tool_choice": Refusal(_TOOLS, ("none", "auto")),
    "parallel_tool_calls": Refusal(_TOOLS, (True, False)),
    "max_tool_calls": Refusal(_TOOLS),
    "background": Refusal("responses are made while the client waits; use stream", (False,)),
    "conversation": Refusal("conversations are not kept by name; use previous_response_id"),
    "include": Refusal("there is nothing to be included", ([],)),
    "prompt": Refusal("prompts are not kept by name; send input and instructions"),
    "service_tier": Refusal("there is one tier", ("auto", "default")),
    "reasoning.summary": Refusal("reasoning is not summarized"),
    "reasoning.generate_summary": Refusal("reasoning is not summarized"),
    "text.format.type=json_schema": Refusal(LATER),
    "text.format.type=json_object": Refusal(LATER),
    "text.verbosity": Refusal("models here were not trained for it", ("medium",)),
    **{f"input[].content[].type={kind}": Refusal(_TEXT_ONLY) for kind in ("input_image", "input_audio", "input_file")},
    **{f"input[].type={kind}": Refusal(_TOOLS) for kind in ("function_call", "function_call_output")},
    "truncation": Refusal("nothing is left out without a word; send a shorter input", ("disabled",)),
}


async def create_response(call: Call, body: ResponseRequest) -> Reply | Stream:
    call.record.user = body.user
    check_salt(body.cache_salt)
    model = await call.use_model(body.model)
    llm = model.engine
    conversation = _conversation(call, body)
    work = await _work(llm, body, conversation)
    answer = Answer(call, llm.tokenizer, body, model.name if body.model is None else body.model, conversation)
    generation = Generation.start(call, llm, work, "delta" if body.stream else "final")
    answer.begin(generation.cancel)
    states = generation.states()
    try:
        first = await anext(states)
    except BaseException as error:
        answer.fail(error, cancelled=generation.cancelled)
        raise
    if body.stream:
        return Stream(answer.events(first, states, generation), answer.error_event)
    answer.take(first[1])
    return Reply(answer.end())


async def get_response(call: Call) -> Reply:
    return Reply(call.service.responses.get(call.path["id"], call.owner).response)


async def delete_response(call: Call) -> Reply:
    """Ends one that runs, and forgets it."""
    name = call.path["id"]
    stored = call.service.responses.remove(name, call.owner)
    if stored.cancel is not None:
        await stored.cancel()
    return Reply(Deleted(name))


async def cancel_response(call: Call) -> Reply:
    """Ends one that runs; one that has ended is returned as it is."""
    stored = call.service.responses.get(call.path["id"], call.owner)
    if stored.cancel is not None and await stored.cancel():
        stored.response.status = "cancelled"
    return Reply(stored.response)


def _conversation(call: Call, body: ResponseRequest) -> list[ChatMessage]:
    """All turns before the answer, without instructions."""
    turns: list[ChatMessage] = []
    if body.previous_response_id is not None:
        before = call.service.responses.get(body.previous_response_id, call.owner, param="previous_response_id")
        if before.cancel is not None:
            raise ApiError(
                400, "the previous response is not finished", param="previous_response_id", code="invalid_value"
            )
        turns += before.conversation
    if not body.input:
        raise ApiError(400, "input is empty", param="input", code="invalid_value")
    if isinstance(body.input, str):
        return [*turns, ChatMessage(role="user", content=body.input)]
    return [*turns, *[_turn(message) for message in body.input]]


def _turn(message: InputMessage) -> ChatMessage:
    content = message.content
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    return ChatMessage(role=message.role, content=text)


async def _work(llm: AsyncLLM, body: ResponseRequest, conversation: Sequence[ChatMessage]) -> Work:
    params = sampling_params(body, max_tokens=body.max_output_tokens, logprobs=body.top_logprobs)
    told = [] if body.instructions is None else [ChatMessage(role="system", content=body.instructions)]
    effort = None if body.reasoning is None else body.reasoning.effort
    kwargs = {} if effort is None else {"reasoning_effort": effort}
    ids = await encode_messages(llm, [*told, *conversation], chat_template_kwargs=kwargs)
    return Work([ids], params, body.priority or 0, body.cache_salt)
