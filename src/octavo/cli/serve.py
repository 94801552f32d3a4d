"""`octavo serve`: models over HTTP."""

from __future__ import annotations

import click

from octavo.server.config import DEFAULT_HOST, DEFAULT_PORT

__all__ = ["serve"]


@click.command()
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option("--host", default=DEFAULT_HOST)
@click.option("--port", type=int, default=DEFAULT_PORT)
def serve(models: tuple[str, ...], host: str, port: int) -> int:
    """Serve."""
    from octavo.server.config import ModelSpec, ServerConfig
    from octavo.server.models import ModelRegistry, public_name
    from octavo.server.run import serve as run

    specs = [ModelSpec(each, (public_name(each),)) for each in models or ("smollm2",)]
    config = ServerConfig(host=host, port=port)
    return run(config, ModelRegistry(specs), announce=lambda running: print(running.url, flush=True))
