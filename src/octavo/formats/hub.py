"""Models from Hugging Face: list a repository and download one file of it.

The huggingface_hub library names the repository's files, the commit, the tokens and the address; the file itself is
fetched by formats/download.py, so that progress, resuming and checking are the same for every origin.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from octavo.core.errors import DownloadError, ModelNotFoundError, OctavoError
from octavo.formats.download import Progress, Transport, check_space, fetch_file, part_bytes, root_cause
from octavo.formats.hub_names import HubReference, choose_file, pieces_of
from octavo.formats.store import ModelStore

__all__ = ["HubFile", "HubListing", "fetch_from_hub", "list_repository"]

TIMEOUT_S = 20.0


@dataclass(frozen=True)
class HubFile:
    """A file of a repository; SHA-256 (hex) and size where the hub says them."""

    path: str
    size_bytes: int | None
    sha256: str | None


@dataclass(frozen=True)
class HubListing:
    """A repository at one commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]
    licence: str | None


def list_repository(repo: str) -> HubListing:
    """What a repository has now. Raises ModelNotFoundError, DownloadError."""
    from huggingface_hub import HfApi  # a slow import, wanted only for downloads

    try:
        info = HfApi(endpoint=_endpoint()).model_info(repo, files_metadata=True, timeout=TIMEOUT_S)
    except Exception as error:  # requests or httpx underneath, by version: no common class but Exception
        raise _explain(repo, error) from error
    files = tuple(HubFile(file.rfilename, file.size, getattr(file.lfs, "sha256", None)) for file in info.siblings or ())
    licences = [tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")]
    return HubListing(repo, info.sha or "main", files, licences[0] if licences else None)


def fetch_from_hub(reference: HubReference, store: ModelStore, progress: Progress) -> str:
    """Download the file that a reference means, or all of a split one; return its (first) name in the store.

    Files lie under their repository's name. Raises ModelNotFoundError, DownloadError.
    """
    listing = list_repository(reference.repo)
    known = {file.path: file for file in listing.files}
    first = choose_file(reference, list(known))
    missing = [path for path in pieces_of(first) if path not in known]
    if missing:
        raise DownloadError(f"{reference.repo} lacks {', '.join(missing)}, which {first} needs")
    for path in pieces_of(first):
        _fetch_one(listing, known[path], store, progress)
    return f"{reference.repo}:{first}"


def _fetch_one(listing: HubListing, file: HubFile, store: ModelStore, progress: Progress) -> None:
    from huggingface_hub import hf_hub_url

    name = f"{listing.repo}:{file.path}"
    target, staging = store.path(f"{listing.repo}/{file.path}"), store.partial_folder(name)
    url = hf_hub_url(listing.repo, file.path, revision=listing.commit, endpoint=_endpoint())
    transport = Transport(ca_file=_ca_file(), headers=_headers())
    size, sha256 = file.size_bytes, file.sha256
    with store.lock(name, lambda: progress.note(f"another process is downloading {name}; waiting for it")):
        if store.is_verified(target, sha256):
            return
        arrived = staging / target.name
        check_space(name, (size or 0) - part_bytes(arrived), staging)
        progress.begin(target.name, size)
        try:
            digest = fetch_file(
                url, arrived, size_bytes=size, sha256=sha256, transport=transport, on_bytes=progress.update
            )
        finally:
            progress.end()
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(arrived, target)
        origin = f"Hugging Face {listing.repo} at {listing.commit[:12]}"
        store.register(target, name=name, origin=origin, sha256=digest, licence=listing.licence)
        staging.rmdir()


def _endpoint() -> str | None:
    """HF_ENDPOINT as it is now: huggingface_hub reads it once, when imported."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def _headers() -> dict[str, str]:
    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    return {"User-Agent": "octavo"} | ({"Authorization": f"Bearer {token}"} if token else {})


def _ca_file() -> str | None:
    return os.environ.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE") or None


def _explain(repo: str, error: Exception) -> OctavoError:
    """A hub error in one line, with the way out."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return DownloadError(f"{repo} is gated: accept its terms on Hugging Face, then set HF_TOKEN or `hf auth login`")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFoundError(f"Hugging Face has no public repository {repo}; if it is private, set HF_TOKEN")
    local = "give the path of a .gguf file, or a short name (octavo list --available)"
    if isinstance(error, getattr(errors, "OfflineModeIsEnabled", ())):
        return DownloadError(f"{repo} is not in the model folder and HF_HUB_OFFLINE is set; unset it, or {local}")
    return DownloadError(f"cannot reach Hugging Face for {repo}; without it, {local}: {root_cause(error)}")
