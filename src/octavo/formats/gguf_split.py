"""Models that are split over several GGUF files, as llama.cpp's `gguf-split` writes them.

The files are called NAME-00001-of-00003.gguf and so on. Each is a GGUF file of its own with some of the tensors; the
first has the metadata of the model, and all have `split.no` (from 0), `split.count` and `split.tensors.count`.
"""

from __future__ import annotations

import re
from pathlib import Path

from octavo.core.errors import ModelFormatError, ModelNotFoundError
from octavo.formats.metadata import TypedMetadata

__all__ = ["check_part", "part_paths"]

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def part_paths(file: TypedMetadata) -> list[Path]:
    """The paths of all parts of the model that `file` belongs to, in order; its own alone if it is not split.

    Raises ModelFormatError if the name of the file does not say which part it is, or says another one than its
    metadata; ModelNotFoundError, naming the file, if a part is missing.
    """
    count, index = file.integer("split.count", 1), file.integer("split.no", 0)
    if count == 1 and index == 0:
        return [file.path]
    if not 0 <= index < count:
        raise ModelFormatError(f"{file.path.name}: split.no is {index} and split.count {count}; it must be below")
    named = _NAME.fullmatch(file.path.name)
    if named is None or (int(named["number"]), int(named["count"])) != (index + 1, count):
        raise ModelFormatError(
            f"{file.path.name}: this is part {index + 1} of {count} of a split model; its name must end in "
            f"-{index + 1:05d}-of-{count:05d}.gguf, so that the others can be found beside it"
        )
    paths = []
    for number in range(1, count + 1):
        path = file.path.with_name(f"{named['stem']}-{number:05d}-of-{count:05d}.gguf")
        if not path.is_file():
            raise ModelNotFoundError(f"{file.path.name} is part {index + 1} of {count}; {str(path)!r} is missing")
        paths.append(path)
    return paths


def check_part(part: TypedMetadata, index: int, count: int) -> None:
    """Raises ModelFormatError unless `part` is number `index` of `count`."""
    stated = part.integer("split.no"), part.integer("split.count")
    if stated != (index, count):
        raise ModelFormatError(
            f"{part.path.name}: holds split.no {stated[0]} of split.count {stated[1]}, not {index} of {count} as its "
            "name says; the parts are of different models or were renamed"
        )
