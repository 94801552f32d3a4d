"""A server whose engine has no place for one more request."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from helpers.servers import Site, serve_tiny, tiny_spec_of
from octavo.core.params import SamplingParams
from octavo.engine.stream import RequestStream

__all__ = ["busy_site"]


@contextlib.contextmanager
def busy_site(tiny_gguf: Callable[..., Path]) -> Iterator[Site]:
    """One request runs, for longer than any test, and none may wait. The model is called "tiny"."""
    options = {"max_num_seqs": 1, "max_waiting": 0, "max_model_len": 4096, "kv_cache_bytes": 2**22}
    with serve_tiny(tiny_spec_of(tiny_gguf(context_length=4096), "tiny", **options)) as site:
        stream = site.do(_begin(site))
        try:
            yield site
        finally:
            site.do(stream.aclose())


async def _begin(site: Site) -> RequestStream:
    """A request that has got its first token."""
    stream = site.llm.generate([1, 2, 3], SamplingParams(max_tokens=4000, ignore_eos=True))
    await anext(stream)
    return stream
