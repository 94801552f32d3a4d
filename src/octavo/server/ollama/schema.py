"""What requests and answers about generation hold. Descriptions and limits here end up in /openapi.json.

Fields of Ollama's API that are not here are refused by name; the REFUSED tables say why.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType

from octavo.server.http import Refusal
from octavo.server.openai.fields import limited
from octavo.server.openai.schema import TokenLogprob

__all__ = [
    "CHAT_REFUSED",
    "GENERATE_REFUSED",
    "OPTIONS_REFUSED",
    "ChatLine",
    "ChatRequest",
    "DoneReason",
    "GenerateLine",
    "GenerateRequest",
    "Generated",
    "Options",
    "OutputMessage",
]

DoneReason = Literal["stop", "length", "load", "unload"]
KeepAlive = float | str
Most = 2**31 - 1


class Options(Struct, kw_only=True, forbid_unknown_fields=True):
    """How to generate; null is the same as left out. Defaults are Ollama's, but for the penalties.

    num_ctx: most tokens of prompt and answer, within the context that the model was loaded with (--max-model-len).
    num_predict: most tokens of the answer; -1 and -2: what the context has room for. num_keep: says what is kept when a
    full context is shifted; here an answer ends instead, so nothing is lost. repeat_last_n: -1: penalties look at the
    whole text, which is what they do here; 0: there are none. repeat_penalty: 1 (off) if left out. seed: -1: any.
    num_thread: 0, or what the server computes with (--threads).
    """

    num_ctx: Annotated[int, limited(1, Most)] | None = None
    num_predict: Annotated[int, limited(-2, Most)] | None = None
    num_keep: int | None = None
    seed: Annotated[int, limited(-(2**63), 2**64 - 1)] | None = None
    temperature: Annotated[float, limited(0, 100)] | None = None
    top_k: Annotated[int, limited(-1, Most)] | None = None
    top_p: Annotated[float, limited(None, 1, exclusiveMinimum=0)] | None = None
    min_p: Annotated[float, limited(0, 1)] | None = None
    repeat_last_n: Annotated[int, limited(-1, Most)] | None = None
    repeat_penalty: Annotated[float, limited(None, 100, exclusiveMinimum=0)] | None = None
    presence_penalty: Annotated[float, limited(-2, 2)] | None = None
    frequency_penalty: Annotated[float, limited(-2, 2)] | None = None
    stop: Annotated[list[Annotated[str, limited(minLength=1)]], limited(maxItems=16)] | None = None
    num_thread: Annotated[int, limited(0)] | None = None


_NO_GPU = "models run on the CPU here"
_SET_AT_START = "it is set when the server starts"
_SAMPLER = "this way of sampling is not in this version; use temperature, top_k, top_p and min_p"

OPTIONS_REFUSED: dict[str, Refusal] = {
    "options.num_batch": Refusal(f"{_SET_AT_START}: --max-num-batched-tokens"),
    "options.num_gpu": Refusal(_NO_GPU, (0, -1)),
    "options.main_gpu": Refusal(_NO_GPU, (0,)),
    "options.low_vram": Refusal(_NO_GPU, (False,)),
    "options.f16_kv": Refusal(f"{_SET_AT_START}: --kv-cache-dtype"),
    "options.use_mmap": Refusal("weights are always read through a map, and packed into memory", (True,)),
    "options.use_mlock": Refusal("memory is not locked in this version", (False,)),
    "options.numa": Refusal("memory is placed where it is first used", (False,)),
    "options.vocab_only": Refusal("models are loaded whole", (False,)),
    "options.logits_all": Refusal("logprobs lists likely tokens", (False,)),
    "options.embedding_only": Refusal("every model embeds and generates", (False,)),
    "options.penalize_newline": Refusal("penalties treat all tokens alike", (True,)),
    "options.tfs_z": Refusal(_SAMPLER, (1,)),
    "options.typical_p": Refusal(_SAMPLER, (1, 0)),
    "options.mirostat": Refusal(_SAMPLER, (0,)),
    "options.mirostat_tau": Refusal(_SAMPLER),
    "options.mirostat_eta": Refusal(_SAMPLER),
    "options.draft_num_predict": Refusal("draft models are not in this version", (0,)),
}

_LATER = "structured output is not in this version"
_TEXT_ONLY = "models here read text only"
_TRUNCATE = "nothing is cut off here: a prompt that is too long is refused"

GENERATE_REFUSED: dict[str, Refusal] = {
    **OPTIONS_REFUSED,
    "format": Refusal(_LATER, ("",)),
    "suffix": Refusal("models here continue text and fill no gaps", ("",)),
    "images": Refusal(_TEXT_ONLY, ([],)),
    "context": Refusal("earlier turns are sent as text, to /api/chat", ([],)),
    "template": Refusal("Ollama's templates are not in this version; send messages to /api/chat, or raw: true", ("",)),
    "truncate": Refusal(_TRUNCATE, (False,)),
    "shift": Refusal("a context that is full is not shifted here: the answer ends", (False,)),
    **{name: Refusal("models here make no images") for name in ("width", "height", "steps")},
}

CHAT_REFUSED: dict[str, Refusal] = {
    **OPTIONS_REFUSED,
    "format": Refusal(_LATER, ("",)),
    "tools": Refusal("tools are not in this version", ([],)),
    "truncate": GENERATE_REFUSED["truncate"],
    "shift": GENERATE_REFUSED["shift"],
    "messages[].images": Refusal(_TEXT_ONLY, ([],)),
    "messages[].tool_calls": Refusal("tools are not in this version", ([],)),
    "messages[].tool_name": Refusal("tools are not in this version", ("",)),
    "messages[].tool_call_id": Refusal("tools are not in this version", ("",)),
    "messages[].thinking": Refusal("answers are not divided into thinking and text in this version", ("",)),
}


class GenerationRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of both kinds. stream: true if left out. think: true is not in this version; false asks templates that
    know thinking (enable_thinking) for none. keep_alive: how long the model stays loaded afterwards, in seconds or as
    "5m"; 0: not at all, below 0: for ever; left out: as the server was told (--keep-alive). top_logprobs: so many of
    the likeliest tokens beside each."""

    model: str
    stream: bool | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, limited(0, 20)] | None = None


class GenerateRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """Without a prompt the model is loaded, or unloaded where keep_alive is 0. raw: the prompt is continued as it is,
    with special tokens where it spells them; else it is a message for the model's chat template, after `system`."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None


class InputMessage(Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str


class ChatRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """Without messages the model is loaded, or unloaded where keep_alive is 0."""

    messages: list[InputMessage] | None = None


class Generated(Struct, kw_only=True):
    """A line of a stream, or the whole answer. Where done is true: why, how many tokens, and times in nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class GenerateLine(Generated, kw_only=True):
    response: str


class OutputMessage(Struct):
    role: Literal["assistant"]
    content: str


class ChatLine(Generated, kw_only=True):
    message: OutputMessage
