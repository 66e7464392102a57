"""The table of faults in docs/reliability.md: tests that inject one compare what the user sees with its row.

They also measure the seconds that the fault cost. No test judges those; the table has the seconds of one run:

    FAULT_SECONDS=/tmp/seconds.jsonl pytest tests/grpo/launch tests/reward tests/stack
    python -m tests.faults /tmp/seconds.jsonl
"""

import itertools
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.docs.pages import ROOT, get_page

PAGE = "docs/reliability.md"
FILE = "FAULT_SECONDS"  # the variable that names the file of the seconds
SECONDS = 3  # the column


def read_rows() -> list[list[str]]:
    """Return the table's rows: fault, phase, what the user sees, seconds, what is left behind."""
    return next(table for table in get_page(PAGE).tables if table[0][0] == "fault")[1:]


def read_table() -> dict[str, list[str]]:
    """What the user sees, by fault: texts in which N is a number and DIR a path."""
    return {row[0]: re.findall(r"`([^`]+)`", row[2]) for row in read_rows()}


def assert_seen(fault: str, output: str) -> None:
    """Check that the user saw what the table says."""
    for text in read_table()[fault]:
        pattern = re.escape(text)
        pattern = re.sub(r"\bN\b", r"[\\d.]+", pattern)
        pattern = re.sub(r"\bDIR\b", r"\\S+", pattern)
        assert re.search(pattern, output), f"{fault}: not seen: {text}\n{output}"


def note(fault: str, seconds: float) -> None:
    """Note what a fault cost, if somebody asks for it."""
    assert fault in read_table()
    if file := os.environ.get(FILE):
        with Path(file).open("a") as opened:
            opened.write(json.dumps({"fault": fault, "seconds": round(seconds, 1)}) + "\n")


class Stopwatch:
    """The seconds since its start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def seconds(self) -> float:
        """Return them."""
        return time.monotonic() - self._started


def find_longest_gap(steps: Sequence[Mapping]) -> float:
    """Return how much longer the longest step took than the usual one, with all that was tried in between."""
    times = [row["time"] for row in steps]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return max(gaps) - statistics.median(gaps)


def replace_seconds(text: str, seconds: Mapping[str, float]) -> str:
    """Return the page with these seconds in its table; the others stay."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        cells = line.split("|")
        if len(cells) > SECONDS + 2 and (fault := cells[1].strip()) in seconds:
            cells[1 + SECONDS] = f" {seconds[fault]:.0f} "
            lines[number] = "|".join(cells)
    return "".join(lines)


if __name__ == "__main__":
    measured = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    file = ROOT / PAGE
    file.write_text(replace_seconds(file.read_text(), {row["fault"]: row["seconds"] for row in measured}))
    print("not measured:", *sorted(read_table().keys() - {row["fault"] for row in measured}), sep="\n  ")
