"""Write the table of the patches into docs/patches.md, from the first sentence of each header's Description.

    python -m scripts.patch_table

Exit code: 0.
"""

import re

from grpo.stack import command
from patches import series

VERSION = "0.9.3"  # the other versions have the same patches
PAGE = series.ROOT.parent / "docs" / "patches.md"
_TABLE = re.compile(r"(?<=^\| patch \| what it does \|\n\|---\|---\|\n)(?:\|.*\n)*", re.MULTILINE)


def make_page() -> str:
    """Return the page with the rows that it should have."""
    rows = "".join(f"| `{patch.stem}` | {_describe(patch.read_text())} |\n" for patch in series.load(VERSION).patches)
    return _TABLE.sub(lambda _: rows, PAGE.read_text(encoding="utf-8"))


def _describe(patch: str) -> str:
    lines = re.search(r"^Description: (.+(?:\n .+)*)", patch, re.MULTILINE)
    text = " ".join(lines[1].split()) if lines else ""
    return re.split(r"(?<=[a-z)])\. ", text)[0].rstrip(".").replace("|", "\\|")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    command.parser("scripts.patch_table", __doc__).parse_args(argv)
    PAGE.write_text(make_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    command.run(main)
