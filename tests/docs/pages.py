"""The pages of the documentation, in the parts that the tests look at: prose, code blocks, code spans, links."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = ("docs/metrics.md",)  # written by a program, which has a test of its own
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One Markdown file; `name` is its path from the checkout."""

    name: str

    @property
    def text(self) -> str:
        """The whole file."""
        return (ROOT / self.name).read_text(encoding="utf-8")

    @property
    def blocks(self) -> list[tuple[str, str]]:
        """Language and content of each fenced block."""
        return _FENCE.findall(self.text)

    @property
    def outside(self) -> str:
        """Everything but the fenced blocks."""
        return _FENCE.sub("", self.text)

    @property
    def spans(self) -> list[str]:
        """The code spans outside of fenced blocks."""
        return [span.replace(r"\|", "|") for span in _SPAN.findall(self.outside)]

    @property
    def links(self) -> list[str]:
        """The targets of all links."""
        return [target for _, target in _LINK.findall(_SPAN.sub("", self.outside))]

    @property
    def anchors(self) -> set[str]:
        """The anchors of the headings, as GitHub makes them."""
        plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(self.outside))
        return {heading.replace(" ", "-") for heading in plain}

    @property
    def tables(self) -> list[list[list[str]]]:
        """The tables, as rows of cells; the first row is the header."""
        blocks: list[list[list[str]]] = [[]]
        for line in self.outside.splitlines():
            if not line.startswith("|"):
                blocks.append([])
            elif not re.fullmatch(r"[|\- :]+", line):
                blocks[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        return [table for table in blocks if table]


@cache
def list_pages() -> tuple[Page, ...]:
    """Return the pages that are written by hand: README, CONTRIBUTING, CHANGELOG, and docs/."""
    names = [str(file.relative_to(ROOT)) for file in sorted((ROOT / "docs").rglob("*.md"))]
    return tuple(
        Page(name) for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *names) if name not in GENERATED
    )


def get_page(name: str) -> Page:
    """Return the page of this path."""
    return next(page for page in list_pages() if page.name == name)
