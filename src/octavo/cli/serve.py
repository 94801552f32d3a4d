"""`octavo serve`: models over HTTP."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.sizes import size
from octavo.cli.terminal import printable, say
from octavo.core.config import DEFAULT_MAX_DECODE_STALL_MS, DEFAULT_MAX_NUM_BATCHED_TOKENS, DEFAULT_MAX_NUM_SEQS
from octavo.core.env import env
from octavo.core.errors import ConfigError, OctavoError
from octavo.core.memory import format_bytes
from octavo.formats.catalog import DEFAULT_MODEL
from octavo.server.config import DEFAULT_HOST, DEFAULT_MAX_WAITING, DEFAULT_PORT, ModelSpec, ServerConfig

if TYPE_CHECKING:
    from octavo.server.record import Observer
    from octavo.server.run import Running
    from octavo.server.tracing import Tracer

__all__ = ["serve"]

_ENGINE = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_waiting",
    "queue_timeout_s",
    "max_decode_stall_ms",
    "kv_cache_dtype",
    "kv_cache_bytes",
    "enable_prefix_caching",
    "prefix_cache_dir",
    "prefix_cache_bytes",
    "threads",
    "seed",
    "chat_template",
)


@click.command()
@click.argument("models", metavar="[NAME=]MODEL ...", nargs=-1)
@click.option("--host", default=DEFAULT_HOST, show_default=True, help="Address to listen on; 0.0.0.0: all.")
@click.option("--port", type=int, default=DEFAULT_PORT, show_default=True, help="0: any that is free.")
@click.option("--api-key", "api_keys", multiple=True, help="A key that requests must bring; may be given repeatedly.")
@click.option("--api-key-file", type=click.Path(dir_okay=False), help="A file of keys, one a line.")
@click.option("--served-model-name", "names", multiple=True, help="What requests call the model; repeatedly: any of.")
@click.option("--allow-origin", "allowed_origins", multiple=True, help="A site whose pages may call; * for all.")
@click.option("--allow-host", "allowed_hosts", multiple=True, help="A further name in the Host header.")
@click.option("--allow-request-chat-template", is_flag=True, help="Let requests bring their own chat templates.")
@click.option(
    "--model-changes/--no-model-changes",
    "allow_model_changes",
    default=None,
    help="Let Ollama's clients pull, copy, delete and use all models.  [default: if only this machine can connect]",
)
@click.option("--request-timeout", "request_timeout_s", type=float, help="Seconds after which a request is ended.")
@click.option("--grace", "grace_s", type=float, default=30.0, show_default=True, help="Seconds to finish on SIGTERM.")
@click.option("--max-body", "max_body_bytes", type=size, default=16 * 2**20, help="Of one request.  [default: 16MiB]")
@click.option("--keep-alive", "keep_alive_s", type=float, help="Unload models idle for so many seconds.")
@click.option("--memory", "memory_bytes", type=size, help="For all models together, such as 8GB.")
@click.option("--max-model-len", type=int, help="Tokens of the context window.  [default: the model's, if it fits]")
@click.option("--max-num-seqs", type=int, default=DEFAULT_MAX_NUM_SEQS, show_default=True, help="That run together.")
@click.option(
    "--max-num-batched-tokens", type=int, default=DEFAULT_MAX_NUM_BATCHED_TOKENS, show_default=True, help="Of one step."
)
@click.option("--max-waiting", type=int, default=DEFAULT_MAX_WAITING, show_default=True, help="Requests in the queue.")
@click.option("--queue-timeout", "queue_timeout_s", type=float, help="Seconds that a request may wait in the queue.")
@click.option(
    "--max-decode-stall-ms",
    type=float,
    default=DEFAULT_MAX_DECODE_STALL_MS,
    show_default=True,
    help="How long a prompt may hold up answers that run.",
)
@click.option("--kv-cache-dtype", default="auto", help="auto, float16, bfloat16 or float32.")
@click.option("--kv-cache-memory", "kv_cache_bytes", type=size, help="Of each model's KV cache.")
@click.option("--prefix-caching/--no-prefix-caching", "enable_prefix_caching", default=True, help="Reuse prompts.")
@click.option("--prefix-cache-dir", type=click.Path(file_okay=False), help="Keep cached prompts there, on disk.")
@click.option("--prefix-cache-size", "prefix_cache_bytes", type=size, help="The most that they may take there.")
@click.option("--threads", type=int, help="Compute threads.  [default: the physical cores that may be used]")
@click.option("--seed", type=int, default=0, help="From which requests without a seed draw theirs.")
@click.option("--chat-template", help="A Jinja template, a file of one, or the name of one of several in the model.")
@click.option("--log-requests/--no-log-requests", default=True, help="One line for each request, on standard error.")
@click.option("--otlp-traces-endpoint", metavar="URL", help="Send OpenTelemetry spans there (needs the extra otel).")
@click.option("-v", "--verbose", is_flag=True, help="Show how models are loaded.")
def serve(models: tuple[str, ...], **options: Any) -> int:
    """Serve models over HTTP, as OpenAI's, Ollama's, TGI's and Anthropic's clients know it.

    MODEL is a short name, a .gguf file or org/repo[:file-or-quant]; NAME is what requests call it. The first one is
    loaded at start, the others when they are asked for. SIGTERM and Ctrl-C let running requests end.

    \b
    octavo serve
    octavo serve ./model.gguf --port 0 --api-key secret
    octavo serve chat=smollm2 code=qwen2.5-coder-1.5b --memory 6GB --keep-alive 600
    """
    if env("OCTAVO_BACKEND") == "native":
        # NumPy's BLAS, which the native backend does not use, starts threads that spin for 50 ms of a core.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from octavo.server.log import log_request  # slow imports: after the command line has been read
    from octavo.server.memory import default_budget
    from octavo.server.models import ModelRegistry
    from octavo.server.run import serve as run

    log_requests, verbose = options.pop("log_requests"), options.pop("verbose")
    tracer = _tracer(options.pop("otlp_traces_endpoint"))
    keep_alive_s, memory_bytes = options.pop("keep_alive_s"), options.pop("memory_bytes")
    specs = _specs(models, options.pop("names"), _engine_options(options))
    config = _config(options)
    if memory_bytes is None and len(specs) > 1:
        memory_bytes = default_budget()
    registry = ModelRegistry(specs, keep_alive_s=keep_alive_s, memory_bytes=memory_bytes)
    _start_log(log_requests=log_requests, verbose=verbose)
    observers: list[Observer] = [log_request] if log_requests else []
    if tracer is not None:
        observers.append(tracer)
    try:
        return run(config, registry, observers=observers, announce=_announce)
    finally:
        if tracer is not None:
            tracer.close()


def _tracer(endpoint: str | None) -> Tracer | None:
    """Makes spans of requests, if they are to be sent anywhere."""
    if endpoint is None:
        return None
    from octavo.server.tracing import Tracer, otlp_provider

    return Tracer(otlp_provider(endpoint))


def _engine_options(options: dict[str, Any]) -> dict[str, Any]:
    """What goes to AsyncLLM, taken out of the options; what was not given is left out."""
    given = {name: options.pop(name) for name in _ENGINE}
    template = given["chat_template"]
    if template is not None and "{" not in template and Path(template).is_file():
        given["chat_template"] = Path(template).read_text("utf-8")
    return {name: value for name, value in given.items() if value is not None}


def _specs(models: tuple[str, ...], names: tuple[str, ...], engine: dict[str, Any]) -> list[ModelSpec]:
    from octavo.server.models import public_name

    given = models or (DEFAULT_MODEL,)
    if names and len(given) > 1:
        raise click.UsageError("--served-model-name names one model; for several write NAME=MODEL")
    specs = []
    for each in given:
        name, _, reference = each.rpartition("=")
        if names and name:
            raise click.UsageError(f"{each!r} has a name already; leave out --served-model-name")
        specs.append(ModelSpec(reference, names or (name or public_name(reference),), engine))
    return specs


def _config(options: dict[str, Any]) -> ServerConfig:
    path, keys = options.pop("api_key_file"), list(options.pop("api_keys"))
    if path is not None:
        keys += [line.strip() for line in Path(path).read_text("utf-8").splitlines() if line.strip()]
        if not keys:
            raise ConfigError(f"--api-key-file {path} holds no key; write one a line")
    hosts = options.pop("allowed_hosts")
    return ServerConfig(api_keys=tuple(keys), allowed_hosts=hosts or None, **options)


def _start_log(*, log_requests: bool, verbose: bool) -> None:
    """Requests, errors and warnings go to standard error; how the engine was set up only if asked for."""
    import logging

    from octavo.server.log import log_to

    log_to(level=logging.INFO if verbose else logging.WARNING)
    logging.getLogger("octavo.server.requests").setLevel(logging.INFO if log_requests else logging.WARNING)


def _announce(running: Running) -> None:
    """Five lines: what is served, and where."""
    for label, value in _facts(running):
        print(f"{label:<9}{printable(value)}")
    sys.stdout.flush()
    host = running.service.config.host
    if not running.service.config.api_keys and host not in ("127.0.0.1", "::1", "localhost"):
        say(f"listening on {host} without an API key: whoever reaches it can use it (--api-key)")


def _facts(running: Running) -> Iterator[tuple[str, str]]:
    first, *others = running.service.registry.models
    plan = first.engine.memory_plan
    available = "" if plan.available_bytes is None else f" of {format_bytes(plan.available_bytes)} available"
    later = f", and {', '.join(each.name for each in others)} when asked for" if others else ""
    yield "model", " or ".join(first.spec.names) + later
    yield "format", _format(first.spec)
    yield (
        "memory",
        f"{format_bytes(plan.weight_bytes)} weights + {format_bytes(plan.kv_cache_bytes)} KV cache + "
        f"{format_bytes(plan.activation_bytes)} buffers{available}",
    )
    yield "context", f"{plan.max_model_len} tokens; the KV cache holds {plan.kv_tokens}"
    yield "serving", running.url


def _format(spec: ModelSpec) -> str:
    """Number format and architecture of a model's file."""
    from octavo.formats.gguf import GGUFFile
    from octavo.formats.hub_names import quant_of
    from octavo.formats.references import resolve

    try:
        path = resolve(spec.reference, download=False)
        with GGUFFile.open(path) as file:
            count: Counter[str] = Counter()
            for tensor in file.tensors.values():
                count[tensor.dtype] += tensor.data.size
            named = file.string("general.name", path.stem)
            arch = file.string("general.architecture", "unknown")
    except OctavoError as error:
        return str(error)
    return f"{quant_of(path.name) or count.most_common(1)[0][0]}, {named} ({arch})"
