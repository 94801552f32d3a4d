"""What the requests and answers of TGI hold. Descriptions and limits here end up in /openapi.json.

Parameters that are not here are refused by name; `REFUSED` says why. As TGI does, an answer is sampled where do_sample
is true or temperature (other than 1), top_k or top_p is given, and greedy otherwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType

from octavo.server.http import Refusal
from octavo.server.openai.fields import limited

__all__ = [
    "GENERATE_REFUSED",
    "REFUSED",
    "STREAM_REFUSED",
    "BestOfSequence",
    "CompatRequest",
    "Details",
    "FinishReason",
    "GenerateRequest",
    "Generated",
    "Info",
    "Parameters",
    "PrefillToken",
    "StreamDetails",
    "StreamEvent",
    "Token",
    "TokenizedToken",
]

FinishReason = Literal["length", "eos_token", "stop_sequence"]
Most = 2**31 - 1


class Parameters(Struct, kw_only=True, forbid_unknown_fields=True):
    """How to generate; null is the same as left out.

    max_new_tokens: 100 if left out. stop: strings that end the answer, which they are part of. truncate: only so many
    tokens of the end of inputs are used; without it, too long inputs are refused. best_of: so many are made and the one
    of the highest log-probability per token returned. details, decoder_input_details: list tokens of the answer, and of
    inputs. top_n_tokens: list so many of the likeliest tokens beside each. seed: of the details is the one given.
    """

    best_of: Annotated[int, limited(1, 128)] | None = None
    decoder_input_details: bool | None = None
    details: bool | None = None
    do_sample: bool | None = None
    frequency_penalty: Annotated[float, limited(-2, 2)] | None = None
    max_new_tokens: Annotated[int, limited(1, Most)] | None = None
    repetition_penalty: Annotated[float, limited(None, 100, exclusiveMinimum=0)] | None = None
    return_full_text: bool | None = None
    seed: Annotated[int, limited(0, 2**64 - 1)] | None = None
    stop: Annotated[list[Annotated[str, limited(minLength=1)]], limited(maxItems=16)] | None = None
    temperature: Annotated[float, limited(None, 100, exclusiveMinimum=0)] | None = None
    top_k: Annotated[int, limited(1, Most)] | None = None
    top_n_tokens: Annotated[int, limited(0, 20)] | None = None
    top_p: Annotated[float, limited(None, 1, exclusiveMinimum=0)] | None = None
    truncate: Annotated[int, limited(1, Most)] | None = None

    @property
    def samples(self) -> bool:
        given = (self.temperature not in (None, 1), self.top_k is not None, self.top_p is not None)
        return bool(self.do_sample) or any(given)


class GenerateRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    inputs: Annotated[str, limited(minLength=1)]
    parameters: Parameters | None = None


class CompatRequest(GenerateRequest, kw_only=True, forbid_unknown_fields=True):
    """The same for a stream or not."""

    stream: bool | None = None


REFUSED: dict[str, Refusal] = {
    "parameters.adapter_id": Refusal("adapters are not in this version"),
    "parameters.grammar": Refusal("structured output is not in this version"),
    "parameters.typical_p": Refusal("typical sampling is not in this version; use top_p", (1,)),
    "parameters.watermark": Refusal("watermarks are not in this version", (False,)),
}
GENERATE_REFUSED = {**REFUSED, "stream": Refusal("this route does not stream; /generate_stream does", (False,))}
STREAM_REFUSED = {**REFUSED, "stream": Refusal("this route always streams; /generate does not", (True,))}


class PrefillToken(Struct):
    """logprob: null for the first."""

    id: int
    text: str
    logprob: float | None


class Token(Struct):
    """text: what it adds to the answer; of special tokens their spelling, which is not part of it. Half a character
    comes with the token that completes it."""

    id: int
    text: str
    logprob: float
    special: bool


class BestOfSequence(Struct, kw_only=True):
    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | UnsetType = UNSET


class Details(Struct, kw_only=True):
    """best_of_sequences: those that were not the best."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | UnsetType = UNSET
    best_of_sequences: list[BestOfSequence] | UnsetType = UNSET


class Generated(Struct):
    generated_text: str
    details: Details | UnsetType = UNSET


class StreamDetails(Struct, kw_only=True):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamEvent(Struct, kw_only=True):
    """One token. index: from 1. generated_text, details: of the last event."""

    index: int
    token: Token
    top_tokens: list[Token] | UnsetType = UNSET
    generated_text: str | None = None
    details: StreamDetails | None = None


class TokenizedToken(Struct):
    """start, stop: its characters in inputs; both 0 for tokens that were put before it."""

    id: int
    text: str
    start: int
    stop: int


class Info(Struct, kw_only=True):
    """model_dtype: of the file, such as Q4_1; null while that is not here. max_input_tokens, max_total_tokens: null
    while the model is not loaded. max_concurrent_requests: that run together. max_client_batch_size: inputs of one
    request."""

    model_id: str
    model_sha: None = None
    model_dtype: str | None
    model_device_type: Literal["cpu"] = "cpu"
    model_pipeline_tag: Literal["text-generation"] = "text-generation"
    max_concurrent_requests: int | None
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int | None
    max_total_tokens: int | None
    max_client_batch_size: int
    router: Literal["octavo"] = "octavo"
    version: str
