"""How each problem of a run fared over its steps and evaluations."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.run.run_files import read_samples
from grpo.run.run_state import Run
from scripts.report import scales
from scripts.report.runs import LARGEST, Row
from scripts.report.samples import quote_problem, spread

FILES = 300  # sample files that a table is made from
SHOWN = 500  # problems in a table


@dataclass(frozen=True)
class History:
    """One problem: what is known of each step that drew it, oldest first.

    Attributes:
        drawn: step, and how many of its samples were right; of a reward without correctness, their mean reward.
    """

    id: str
    about: str
    drawn: list[tuple[int, str]]
    last: float


@dataclass(frozen=True)
class Table:
    """The problems of one data file, the least solved first; `left_out` of them are not shown."""

    title: str
    problems: list[History]
    left_out: int

    @property
    def measure(self) -> str:
        """Return what is known of the steps. A run that was resumed with another reward has both."""
        counted = {"/" in text for problem in self.problems for _, text in problem.drawn}
        names = {True: "rollouts that were right", False: "mean score"}
        return " or ".join(name for is_count, name in names.items() if is_count in counted)


def tables(run: Run) -> list[Table]:
    """Return the tables of the training problems and of the held-out ones, if their samples have ids."""
    made = [
        (title, _histories(spread(list(run.files.sample_files(kind).items()), FILES)))
        for kind, title in (("step", "Training problems"), ("eval", "Held-out problems"))
    ]
    return [Table(title, all_[:SHOWN], max(0, len(all_) - SHOWN)) for title, all_ in made if all_]


def _histories(files: Sequence[tuple[int, Path]]) -> list[History]:
    drawn: dict[str, list[tuple[int, str]]] = defaultdict(list)
    last: dict[str, float] = {}
    prompts: dict[str, str] = {}
    for step, file in files:
        for problem, rows in _group_by_problem(read_samples(file)).items():
            prompts[problem] = str(rows[0].get("prompt") or "")
            if known := _result(rows):
                text, last[problem] = known
                drawn[problem].append((step, text))
    histories = [History(id, quote_problem(prompts[id]), drawn[id], last[id]) for id in drawn]
    return sorted(histories, key=lambda one: (one.last, one.id))


def _group_by_problem(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    groups = defaultdict(list)
    for row in rows:
        if isinstance(row.get("id"), str):
            groups[row["id"]].append(row)
    return groups


def _result(rows: Sequence[Row]) -> tuple[str, float] | None:
    """Return a group's result as text and as a number to sort by; None if nothing of it is known."""
    for name in ("correct", "reward"):
        numbers = (row[name] for row in rows if isinstance(row.get(name), int | float))
        values = [value for value in numbers if abs(value) < LARGEST]  # False for nan
        if values:
            mean = statistics.fmean(values)
            is_count = name == "correct" and set(values) <= {0, 1}
            return f"{sum(values):.0f}/{len(values)}" if is_count else scales.text(mean), mean
    return None
