"""`octavo pull`, `list`, `show` and `rm`: the models on this machine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from octavo.cli.progress import DownloadProgress
from octavo.cli.terminal import bold, columns, printable, say
from octavo.core.errors import OctavoError
from octavo.core.memory import format_bytes
from octavo.formats.catalog import CATALOG, CatalogModel
from octavo.formats.gguf import GGUFFile
from octavo.formats.hub_names import quant_of
from octavo.formats.references import resolve
from octavo.formats.store import ModelStore, StoredModel, file_sha256

__all__ = ["list_models", "pull", "remove", "show"]

LABEL_WIDTH = 16


@click.command()
@click.argument("name")
def pull(name: str) -> None:
    """Download a model and print the path of its file.

    NAME is a short name (octavo list --available), or org/repo on Hugging Face, with a quantization or a file name
    after a colon if need be: org/repo:Q4_K_M. An interrupted download goes on where it stopped.
    """
    try:
        click.echo(resolve(name, progress=DownloadProgress()))
    except KeyboardInterrupt:
        say(f"interrupted; `octavo pull {name}` goes on from here")
        raise


@click.command("list")
@click.option("--available", is_flag=True, help="List the short names that `octavo pull` knows instead.")
def list_models(available: bool) -> None:
    """List the models on this machine, and downloads that were interrupted."""
    store = ModelStore.default()
    rows = list(_available_rows(store) if available else _stored_rows(store))
    if not rows:
        click.echo(f"no models in {store.root}; `octavo pull smollm2` downloads the default one")
        return
    header = ("NAME", "SIZE", "LICENCE", "ABOUT", "HERE") if available else ("NAME", "SIZE", "FORMAT", "ORIGIN")
    first, *rest = columns([header, *rows], right=frozenset({1}))
    click.echo("\n".join([bold(first), *rest]))


@click.command()
@click.argument("name")
def show(name: str) -> None:
    """Show what a model is: architecture, size, number formats, tokenizer, licence, SHA-256."""
    store = ModelStore.default()
    try:
        path = resolve(name, download=False, store=store)
    except OctavoError:
        if name not in CATALOG:
            raise
        _print_fields(_catalog_fields(CATALOG[name]))
        return
    with GGUFFile.open(path) as file:
        _print_fields(_file_fields(file))
        _print_fields(_store_fields(path, store, file.string("general.license", "")))


@click.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def remove(names: tuple[str, ...]) -> None:
    """Delete models from the model folder, and what is left of interrupted downloads. Asks nothing."""
    store = ModelStore.default()
    for name in names:
        removed = store.remove(name)
        paths = ", ".join(str(path.relative_to(store.root)) for path in removed.paths)
        click.echo(f"removed {paths} ({format_bytes(removed.freed_bytes)})")


def _stored_rows(store: ModelStore) -> Iterator[tuple[str, str, str, str]]:
    for model in store.models():
        origin = model.record.origin if model.record else "put there by hand"
        yield model.name, format_bytes(model.size_bytes), _format_of(model), origin
    for partial in store.partials():
        yield partial.name, format_bytes(partial.size_bytes), "-", "incomplete; octavo pull goes on with it"


def _available_rows(store: ModelStore) -> Iterator[tuple[str, str, str, str, str]]:
    here = {model.name for model in store.models()}
    for model in CATALOG.values():
        mark = "yes" if model.name in here else "no"
        yield model.name, format_bytes(model.size_bytes), model.licence, model.about, mark


def _format_of(model: StoredModel) -> str:
    """What the file name says; the file itself is asked only if that says nothing."""
    stated = quant_of(model.path.name)
    if stated is not None:
        return stated
    try:
        with GGUFFile.open(model.path) as file:
            return _mix(file)[0][0]
    except OctavoError:
        return "unreadable"


def _mix(file: GGUFFile) -> list[tuple[str, float]]:
    """Number formats and their share of the bytes, largest first."""
    size: Counter[str] = Counter()
    for tensor in file.tensors.values():
        size[tensor.dtype] += tensor.data.size
    total = max(1, sum(size.values()))
    return [(dtype, count / total) for dtype, count in size.most_common()] or [("empty", 1.0)]


def _file_fields(file: GGUFFile) -> Iterator[tuple[str, str]]:
    arch = file.string("general.architecture", "unknown")
    yield "model", file.string("general.name", file.path.stem)
    yield "architecture", arch
    elements = sum(_elements(tensor.shape) for tensor in file.tensors.values())
    yield "parameters", f"{elements / 1e6:,.1f} million"
    yield "layers", _integer(file, f"{arch}.block_count")
    yield "embedding", _integer(file, f"{arch}.embedding_length")
    heads, kv_heads = _integer(file, f"{arch}.attention.head_count"), _integer(file, f"{arch}.attention.head_count_kv")
    yield "heads", f"{heads} ({kv_heads} for keys and values)"
    yield "context", f"{_integer(file, f'{arch}.context_length')} tokens"
    yield "formats", ", ".join(f"{dtype} {share:.1%}" for dtype, share in _mix(file))
    yield "tokenizer", _tokenizer(file)
    yield "chat template", "yes" if file.string("tokenizer.chat_template", "") else "no"
    yield "size", format_bytes(file.size_bytes)


def _store_fields(path: Path, store: ModelStore, stated_licence: str) -> Iterator[tuple[str, str]]:
    record = store.record(path)
    yield "licence", (record.licence if record else None) or stated_licence or "not stated"
    yield "origin", f"{record.origin}, {record.fetched}" if record else "a local file"
    yield "file", str(path)
    if record is not None and store.is_verified(path):
        yield "SHA-256", record.sha256
    else:
        yield "SHA-256", file_sha256(path)


def _catalog_fields(model: CatalogModel) -> Iterator[tuple[str, str]]:
    yield "model", model.about
    yield "size", format_bytes(model.size_bytes)
    yield "licence", model.licence
    yield "origin", model.origin
    yield "SHA-256", model.sha256
    yield "file", f"not downloaded; `octavo pull {model.name}` does that"


def _tokenizer(file: GGUFFile) -> str:
    kind = file.string("tokenizer.ggml.model", "none")
    pre = file.string("tokenizer.ggml.pre", "")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    count = f", {len(tokens):,} tokens" if isinstance(tokens, Sequence) else ""
    return kind + (f" ({pre})" if pre else "") + count


def _integer(file: GGUFFile, key: str) -> str:
    value = file.metadata.get(key)
    return f"{value:,}" if isinstance(value, int) else "not stated"


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _print_fields(fields: Iterator[tuple[str, str]]) -> None:
    for label, value in fields:
        click.echo(f"{label:<{LABEL_WIDTH}}{printable(value)}")
        sys.stdout.flush()  # the SHA-256 of a large file comes seconds after the rest
