"""Small runs that were really made, healthy and with a fault put in, and when the diagnosis names what ails them.

The faults, and which findings would name each, were devised without a look at the rules. A file of `real_runs/` holds
the columns of one run's metrics.jsonl, its evaluations, and the settings that rules read. The learning of the faulty
runs is real; so is that of the healthy ones, which differ by their seed.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.diagnosis.diagnose import Monitor

FOLDER = Path(__file__).parents[1] / "real_runs"


@dataclass(frozen=True)
class RealRun:
    """Attributes:
    fault: what was put in; None for a healthy run.
    begins_at_step: the first step that the fault touches.
    within_steps: after how many more the run should be named sick.
    expected: findings any one of which names it.
    also_fine: others that are right beside it.
    rows, evals: lines of metrics.jsonl and eval.jsonl.
    """

    name: str
    fault: str | None
    begins_at_step: int | None
    within_steps: int | None
    expected: tuple[str, ...]
    also_fine: tuple[str, ...]
    rows: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    config: Mapping[str, Any]

    def named(self) -> dict[str, int]:
        """Return the findings by name, each with the step after which it is named while the run goes on."""
        monitor = Monitor(self.config)
        found: dict[str, int] = {}
        for end in range(1, len(self.rows) + 1):
            step = self.rows[end - 1]["step"]
            evals = [row for row in self.evals if row["step"] <= step]
            for finding in monitor.new_onsets(self.rows[:end], evals):
                found.setdefault(finding.name, step)
        return found

    def found_at(self) -> int | None:
        """Return the step after which the fault is named; None where it never is."""
        return min((step for name, step in self.named().items() if name in self.expected), default=None)

    def is_found_in_time(self) -> bool:
        at = self.found_at()
        if at is None or self.begins_at_step is None or self.within_steps is None:
            return False
        return at <= self.begins_at_step + self.within_steps


def read_all(folder: Path = FOLDER) -> Iterator[RealRun]:
    """Yield the recorded runs by name."""
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        columns = content.pop("columns")
        steps = len(columns["step"])
        rows = [
            {name: values[place] for name, values in columns.items() if values[place] is not None}
            for place in range(steps)
        ]
        expected, also_fine = tuple(content.pop("expected")), tuple(content.pop("also_fine"))
        yield RealRun(file.stem, expected=expected, also_fine=also_fine, rows=rows, **content)
