"""Logits into tokens."""

from octavo.sampling.logprobs import Ranked, prompt_logprobs
from octavo.sampling.sampler import Sampled, sample
from octavo.sampling.state import SamplerState

__all__ = ["Ranked", "Sampled", "SamplerState", "prompt_logprobs", "sample"]
