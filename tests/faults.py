"""The table of faults in docs/reliability.md: tests that inject one compare what the user sees with its row."""

import re

from tests.docs.pages import page

PAGE = "docs/reliability.md"


def table() -> dict[str, list[str]]:
    """What the user sees, by fault: texts in which N is a number and DIR a path."""
    rows = next(table for table in page(PAGE).tables if table[0][0] == "fault")
    return {row[0]: re.findall(r"`([^`]+)`", row[2]) for row in rows[1:]}


def assert_seen(fault: str, output: str) -> None:
    """Check that the user saw what the table says."""
    for text in table()[fault]:
        pattern = re.escape(text)
        pattern = re.sub(r"\bN\b", r"[\\d.]+", pattern)
        pattern = re.sub(r"\bDIR\b", r"\\S+", pattern)
        assert re.search(pattern, output), f"{fault}: not seen: {text}\n{output}"
