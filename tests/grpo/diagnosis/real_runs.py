"""Small real runs, healthy and with an injected fault, and when the diagnosis names the fault.

A file of `real_runs/` holds the columns of one run's metrics.jsonl, its evaluations, and the settings that rules read.
The faults are independent of the rules, and so are the findings expected for each. All runs really learn; the healthy
ones differ only in their seed.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.history import build_history
from grpo.diagnosis.rules import RULES
from tests.grpo.diagnosis.test_early import find_first_named

FOLDER = Path(__file__).parent / "real_runs"


@dataclass(frozen=True)
class RealRun:
    """A recorded run; healthy unless it is a :class:`SickRun`.

    Attributes:
        rows, evals: lines of metrics.jsonl and eval.jsonl.
        config: the settings that rules read, in the form of config.json.
    """

    name: str
    rows: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    config: Mapping[str, Any]

    @functools.cached_property
    def named(self) -> dict[str, int]:
        """Return the findings by name, each with the step after which it is first reported during the run."""
        return find_first_named(self.rows, self.evals, self.config)


@dataclass(frozen=True)
class SickRun(RealRun):
    """A recorded run with a fault.

    Attributes:
        fault: the injected fault.
        begins_at_step: the first step that the fault affects.
        within_steps: the number of steps after it within which the run should be named sick.
        expected: findings, any of which names the fault.
        also_fine: other findings that are also correct.
    """

    fault: str
    begins_at_step: int
    within_steps: int
    expected: tuple[str, ...]
    also_fine: tuple[str, ...]

    def find_naming_step(self) -> int | None:
        """Return the step after which the fault is named; None if it never is."""
        return min((step for name, step in self.named.items() if name in self.expected), default=None)

    def is_noticed_by_other_rules(self) -> bool:
        """Tell whether any finding names the run sick in time without the rules that are for its fault."""
        rules = {name: rule for name, rule in RULES.items() if name not in self.expected}
        for end in range(1, len(self.rows) + 1):
            step = self.rows[end - 1]["step"]
            if step > self.begins_at_step + self.within_steps:
                break
            evals = [row for row in self.evals if row["step"] <= step]
            findings = diagnose(build_history(self.rows[:end], evals, self.config), rules).findings
            if any(finding.name not in self.expected for finding in findings):
                return True
        return False

    def is_found_in_time(self) -> bool:
        found_at = self.find_naming_step()
        return found_at is not None and found_at <= self.begins_at_step + self.within_steps


def read_all(folder: Path = FOLDER) -> Iterator[RealRun]:
    """Yield the recorded runs by name."""
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        run = RealRun(file.stem, _make_rows(content["columns"]), content["evals"], content["config"])
        if content["fault"] is None:
            yield run
            continue
        yield SickRun(
            run.name,
            run.rows,
            run.evals,
            run.config,
            content["fault"],
            content["begins_at_step"],
            content["within_steps"],
            tuple(content["expected"]),
            tuple(content["also_fine"]),
        )


def _make_rows(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl; null columns are left out of a line."""
    return [
        {name: values[index] for name, values in columns.items() if values[index] is not None}
        for index in range(len(columns["step"]))
    ]
