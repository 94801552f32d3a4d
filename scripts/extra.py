"""Print the requirements of an extra of pyproject.toml, one a line, so that versions are written in one place only.

python scripts/extra.py oracle

Octavo's own extras are left out ("octavo[test]" in "dev"): installing them would build the package a second time.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def main(arguments: list[str]) -> int:
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    if len(arguments) != 1 or arguments[0] not in extras:
        print(f"usage: python scripts/extra.py ({' | '.join(extras)})", file=sys.stderr)
        return 2
    for requirement in extras[arguments[0]]:
        if not requirement.startswith("octavo["):
            print(requirement)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
