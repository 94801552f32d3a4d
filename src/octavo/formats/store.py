"""The model folder: readable file names, a small JSON record beside each file, a lock for each model.

    models/
      SmolLM2-135M-Instruct.Q4_1.gguf         a model with a short name
      SmolLM2-135M-Instruct.Q4_1.gguf.json    its record: where it came from, SHA-256, when
      org/repo/model-Q4_K_M.gguf              a model from Hugging Face, under its repository
      .partial/NAME/                          what an interrupted download left, to go on from
      .locks/NAME.lock                        held while NAME is downloaded

A file whose size and time of change are those of its record is trusted as verified: hashing a 1.1 GB model again at
each start would take seconds. Files that a person puts into the folder are listed too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from octavo.core.env import env
from octavo.core.errors import ModelError, ModelNotFoundError
from octavo.formats.hub_names import pieces_of

__all__ = ["ModelStore", "Partial", "Record", "Removed", "StoredModel", "file_sha256"]


@dataclass(frozen=True)
class Record:
    """What is known of a file since it was downloaded or verified.

    Attributes:
        name: the reference that leads to it: a short name, or org/repo:file.
        origin: where it came from, in words.
        sha256: of the content, as verified.
        size_bytes, mtime_ns: of the file when it was verified.
        fetched: when, as an ISO 8601 time in UTC.
        licence: as its publisher states it, if known.
    """

    name: str
    origin: str
    sha256: str
    size_bytes: int
    mtime_ns: int
    fetched: str
    licence: str | None = None


@dataclass(frozen=True)
class StoredModel:
    """A model in the folder: one file, or the pieces of a split one in order.

    size_bytes is of all pieces; `record` is that of the first, None for a file that Octavo did not put there.
    """

    name: str
    paths: tuple[Path, ...]
    size_bytes: int
    record: Record | None

    @property
    def path(self) -> Path:
        """The file to open."""
        return self.paths[0]


@dataclass(frozen=True)
class Partial:
    """What an interrupted download left."""

    name: str
    folder: Path
    size_bytes: int


@dataclass(frozen=True)
class Removed:
    """What `ModelStore.remove` deleted."""

    paths: tuple[Path, ...]
    freed_bytes: int


class ModelStore:
    """A folder of model files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def default(cls) -> ModelStore:
        """The folder that OCTAVO_MODELS names, or its default."""
        return cls(env("OCTAVO_MODELS"))

    def path(self, relative: str) -> Path:
        """Where the file of this relative name lies or will lie. Raises ModelNotFoundError for names that lead out."""
        parts = PurePosixPath(relative).parts
        bad = not parts or relative.startswith("/") or not relative.isprintable() or "\\" in relative
        if bad or any(part.startswith(".") for part in parts):
            raise ModelNotFoundError(f"{relative!r} cannot be a file name in the model folder")
        return self.root.joinpath(*parts)

    def models(self) -> list[StoredModel]:
        """The models in the folder, by name."""
        found = []
        for path in self.root.rglob("*.gguf"):
            relative = path.relative_to(self.root)
            names = pieces_of(path.name)
            if path.name != names[0] or not path.is_file() or any(part.startswith(".") for part in relative.parts):
                continue
            paths = tuple(each for each in map(path.with_name, names) if each.is_file())
            record = self.record(path)
            name = record.name if record else relative.as_posix()
            found.append(StoredModel(name, paths, sum(each.stat().st_size for each in paths), record))
        return sorted(found, key=lambda model: model.name.lower())

    def find(self, name: str) -> StoredModel | None:
        """The model of this name; its file's name, alone or relative to the folder, will do too."""
        models = self.models()
        for model in models:
            if name in (model.name, model.path.relative_to(self.root).as_posix()):
                return model
        same_file = [model for model in models if model.path.name == name]
        return same_file[0] if len(same_file) == 1 else None

    def record(self, path: Path) -> Record | None:
        """The record beside a file; None if there is none that can be read."""
        try:
            fields = json.loads(_record_path(path).read_text("utf-8"))
            return Record(**fields)
        except (OSError, ValueError, TypeError):
            return None

    def is_verified(self, path: Path, sha256: str | None = None) -> bool:
        """Whether the file is the one verified earlier (and then had this SHA-256), by its size and time of change."""
        record = self.record(path)
        if record is None or (sha256 is not None and record.sha256 != sha256):
            return False
        try:
            stat = path.stat()
        except OSError:
            return False
        return (stat.st_size, stat.st_mtime_ns) == (record.size_bytes, record.mtime_ns)

    def register(self, path: Path, *, name: str, origin: str, sha256: str, licence: str | None = None) -> Record:
        """Write the record of a file that was just verified."""
        stat = path.stat()
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        record = Record(name, origin, sha256, stat.st_size, stat.st_mtime_ns, now, licence)
        temporary = _record_path(path).with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(record), indent=1) + "\n", "utf-8")
        os.replace(temporary, _record_path(path))
        return record

    def partial_folder(self, name: str) -> Path:
        """Where the pieces of a model gather while it is downloaded."""
        return self.root / ".partial" / _quoted(name)

    def partials(self) -> list[Partial]:
        """Downloads that were interrupted or are under way."""
        folder = self.root / ".partial"
        found = []
        for each in sorted(folder.iterdir()) if folder.is_dir() else []:
            size = sum(path.stat().st_size for path in each.rglob("*") if path.is_file())
            found.append(Partial(urllib.parse.unquote(each.name), each, size))
        return found

    def remove(self, name: str) -> Removed:
        """Delete a model, its record and what is left of its download.

        Raises ModelNotFoundError if the folder has nothing of this name, ModelError while it is being downloaded.
        """
        model = self.find(name)
        with self.lock(model.name if model else name, on_wait=lambda: _busy(name)):
            return self._remove(name, model)

    def copy(self, name: str, new: str) -> StoredModel:
        """Give a model of the folder another name, which takes no room: hard links to its files.

        Raises ModelNotFoundError if the folder has nothing of this name, ModelError if the new one is taken or cannot
        be had.
        """
        model = self.find(name)
        if model is None:
            raise ModelNotFoundError(f"no model {name!r} in {self.root}")
        stem = new.replace(":", "-")
        targets = [self.path(each) for each in _numbered(stem, len(model.paths))]
        if self.find(new) is not None or any(target.exists() for target in targets):
            raise ModelError(f"there is a model {new!r} already; choose another name, or remove it first")
        targets[0].parent.mkdir(parents=True, exist_ok=True)
        try:
            for source, target in zip(model.paths, targets, strict=True):
                self._link(source, target, new, f"{model.name} by another name")
        except OSError as error:
            for target in targets:
                target.unlink(missing_ok=True)
                _record_path(target).unlink(missing_ok=True)
            reason = error.strerror or str(error)
            raise ModelError(f"{name} cannot be linked as {new!r}: {reason.lower()}") from error
        return StoredModel(new, tuple(targets), model.size_bytes, self.record(targets[0]))

    def _link(self, source: Path, target: Path, name: str, origin: str) -> None:
        record = self.record(source)
        sha256 = record.sha256 if record and self.is_verified(source) else file_sha256(source)
        os.link(source, target)
        self.register(target, name=name, origin=origin, sha256=sha256, licence=record.licence if record else None)

    def _remove(self, name: str, model: StoredModel | None) -> Removed:
        paths: list[Path] = []
        freed = 0
        for path in model.paths if model is not None else ():
            freed += path.lstat().st_size
            path.unlink()
            _record_path(path).unlink(missing_ok=True)
            _remove_empty_folders(path.parent, self.root)
            paths.append(path)
        for partial in self.partials():
            if partial.name == name or (model is not None and partial.name == model.name):
                import shutil  # slow to import, and rarely needed

                shutil.rmtree(partial.folder)
                paths.append(partial.folder)
                freed += partial.size_bytes
        if not paths:
            known = ", ".join(each.name for each in self.models()) or "nothing"
            raise ModelNotFoundError(f"no model {name!r} in {self.root}; there is: {known}")
        return Removed(tuple(paths), freed)

    @contextlib.contextmanager
    def lock(self, name: str, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock of a model; on_wait is called first if another process has it."""
        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{_quoted(name)}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def file_sha256(path: Path, on_bytes: Callable[[int], None] = lambda done: None) -> str:
    """SHA-256 of a file as lower-case hex; on_bytes is told how many bytes are done."""
    import hashlib  # slow to import, and rarely needed

    hasher, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
            done += len(chunk)
            on_bytes(done)
    return hasher.hexdigest()


def _busy(name: str) -> None:
    raise ModelError(f"{name} is being downloaded by another process; remove it when that has ended")


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _numbered(stem: str, count: int) -> list[str]:
    """File names of a model of `count` pieces (see `pieces_of`)."""
    return [f"{stem}.gguf"] if count == 1 else pieces_of(f"{stem}-00001-of-{count:05d}.gguf")


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _remove_empty_folders(folder: Path, root: Path) -> None:
    with contextlib.suppress(OSError):  # the first that is not empty ends it
        while folder != root and root in folder.parents:
            folder.rmdir()
            folder = folder.parent
