"""Names on Hugging Face: `org/repo`, `org/repo:Q4_K_M`, `org/repo:folder/file.gguf`, and which file each means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.errors import ModelNotFoundError

__all__ = ["HubReference", "choose_file", "pieces_of", "quant_of"]

PREFERENCE = ("Q4_K_M", "Q4_0", "Q8_0", "Q4_1", "Q4_K_S", "Q5_K_M", "Q6_K", "Q5_0", "Q3_K_M", "BF16", "F16")
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_REPOSITORY = re.compile(rf"(?P<repo>{_PART}/{_PART})(?::(?P<wanted>[^:]+))?")
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])(I?Q[1-8](?:_[A-Z0-9]+)*|BF16|F16|F32|FP16|FP32|MXFP4|TQ[12]_0)(?![A-Za-z0-9])", re.IGNORECASE
)
_PIECE = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True)
class HubReference:
    """A repository and, after a colon, a file name or a quantization; None: the usual choice."""

    repo: str
    wanted: str | None

    @classmethod
    def parse(cls, text: str) -> HubReference | None:
        """Read org/repo[:file-or-quant]; None if the text has not that form or could lead out of a folder."""
        match = _REPOSITORY.fullmatch(text)
        if match is None or ".." in match["repo"] or "--" in match["repo"]:
            return None
        wanted = match["wanted"]
        if wanted is not None and not _is_plain_path(wanted):
            return None
        return cls(match["repo"], wanted)

    def __str__(self) -> str:
        return self.repo if self.wanted is None else f"{self.repo}:{self.wanted}"


def quant_of(filename: str) -> str | None:
    """The quantization that a file name states, in upper case: "Q4_K_M" of "model-q4_k_m.gguf"."""
    found = _QUANT.findall(filename.rsplit("/", 1)[-1].removesuffix(".gguf"))
    return str(found[-1]).upper() if found else None


def pieces_of(path: str) -> list[str]:
    """All files of a split model, in order, from the name of any (NAME-00001-of-00003.gguf); else the path alone."""
    piece = _PIECE.fullmatch(path)
    if piece is None:
        return [path]
    count = int(piece["count"])
    return [f"{piece['stem']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def choose_file(reference: HubReference, paths: Sequence[str]) -> str:
    """The one .gguf file that a reference means; of a split model, its first piece.

    An exact path or file name; else a quantization in any case; else, with nothing wanted, the only file or the
    first of PREFERENCE that there is.
    Raises ModelNotFoundError listing what there is.
    """
    ggufs = [path for path in paths if path.lower().endswith(".gguf") and pieces_of(path)[0] == path]
    if not ggufs:
        raise ModelNotFoundError(f"{reference.repo} has no .gguf file; look for a repository that has (often ...-GGUF)")
    models = [path for path in ggufs if not path.rsplit("/", 1)[-1].lower().startswith("mmproj")]
    if reference.wanted is None:
        found = models if len(models) == 1 else _preferred(models)
    else:
        wanted = reference.wanted
        found = [path for path in ggufs if wanted in (path, path.rsplit("/", 1)[-1])]
        found = found or [path for path in models if _names_quant(path, wanted)]
    if len(found) == 1:
        return found[0]
    raise _not_one(reference, found, ggufs)


def _not_one(reference: HubReference, found: Sequence[str], ggufs: Sequence[str]) -> ModelNotFoundError:
    if found:
        problem = f"{reference} means {len(found)} files"
    elif reference.wanted is None:
        problem = f"{reference} has {len(ggufs)} files and none of a usual quantization"
    else:
        problem = f"{reference.repo} has no {reference.wanted!r}"
    return ModelNotFoundError(f"{problem}; name one as {reference.repo}:FILE, of: {', '.join(found or ggufs)}")


def _preferred(models: Sequence[str]) -> list[str]:
    for quant in PREFERENCE:
        found = [path for path in models if quant_of(path) == quant]
        if found:
            return found
    return []


def _names_quant(path: str, wanted: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(wanted)}(?![A-Za-z0-9_])", name, re.IGNORECASE) is not None


def _is_plain_path(text: str) -> bool:
    bad = not text.isprintable() or "\\" in text or text.startswith("/") or len(text) > 200
    return not bad and not any(part.startswith(".") or not part for part in text.split("/"))
