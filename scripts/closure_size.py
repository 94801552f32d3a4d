"""How large is what `pip install octavo` brings: Octavo and all it depends on, in MB (10^6 bytes), one line each.

python scripts/closure_size.py                    print the sizes
python scripts/closure_size.py --limit-mb 150     exit 1 if they add up to more
python scripts/closure_size.py numpy tokenizers   start from these instead of Octavo
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(names: Iterable[str]) -> dict[str, Distribution]:
    """The installed distributions that these names need, themselves included, extras followed where asked for."""
    found: dict[str, Distribution] = {}
    waiting = [(name, frozenset[str]()) for name in names]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        key = (canonicalize_name(name), extras)
        if key in seen:
            continue
        seen.add(key)
        found[key[0]] = distribution(name)
        for requirement in map(Requirement, found[key[0]].requires or []):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((requirement.name, frozenset(requirement.extras)))
    return found


def size_bytes(installed: Distribution) -> int:
    """Files as they lie on the disk, compiled Python included."""
    paths = [path.locate() for path in installed.files or []]
    return sum(path.stat().st_size for path in paths if path.is_file())  # type: ignore[attr-defined]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["octavo"])
    parser.add_argument("--limit-mb", type=float)
    arguments = parser.parse_args()
    try:
        found = closure(arguments.names)
    except PackageNotFoundError as error:
        parser.error(f"{error.name} is not installed in this environment")
    sizes = {f"{name} {installed.version}": size_bytes(installed) / 1e6 for name, installed in found.items()}
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"{size:8.1f}  {name}")
    total = sum(sizes.values())
    print(f"{total:8.1f}  in all")
    if arguments.limit_mb is not None and total > arguments.limit_mb:
        print(f"that is above the limit of {arguments.limit_mb:g} MB")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
