"""How well a run's metrics are diagnosed: fixed limits on single values, and our rules, on the same synthetic runs.

Runs are drawn with the noise of real ones (`synthetic_runs`): healthy runs, and for each pathology sick runs at three
strengths. At 1.0 a practitioner would call it obvious. Sick runs have 40 to 150 steps, those of flat learning and
over-fitting 60 to 150, healthy ones 20 to 150.

The score is the mean F1 over all pathologies at the obvious strength. A pathology found in a healthy run, or in a run
of another pathology, counts against its precision. `onset_error` is in steps, the median over the runs found.
`healthy_with_a_warning` diagnoses some of the healthy runs after every step, as a trainer does. The generator shares
its assumptions with the rules. `real_runs` therefore counts the faults named in time in small real runs, with faults
that are independent of the rules.
"""

import argparse
import statistics
import time
from collections import Counter, defaultdict
from typing import Any

from grpo.diagnosis.diagnose import Monitor, diagnose
from grpo.diagnosis.history import of_rows
from grpo.stack.problem import UserError
from scripts.bench.harness import Result
from scripts.bench.machine import Copy
from scripts.bench.parts import naive_rules
from scripts.bench.parts.real_runs import SickRun, read_all
from scripts.bench.parts.synthetic_ills import ILLS, LEAST
from scripts.bench.parts.synthetic_runs import SyntheticRun, make

OBVIOUS, WEAKER = 1.0, (0.7, 0.4)
LEAST_SCORE = 0.9
ENOUGH = 20  # runs of each; with fewer, one miss decides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=40, help="runs of each pathology and strength (default: 40)")
    parser.add_argument("--healthy", type=int, default=200, help="healthy runs (default: 200)")
    parser.add_argument("--watched", type=int, default=20, help="healthy runs watched at every step (default: 20)")
    parser.add_argument("--seed", type=int, default=1_000_000, help="seed of the first run (default: 1000000)")


def run(options: argparse.Namespace, copy: Copy) -> Result:
    if min(options.runs, options.healthy, options.watched) < 1 or options.seed < 0:
        raise UserError(
            "an option is out of range", "--runs, --healthy and --watched must be at least 1, and --seed at least 0"
        )
    ours, stock, seconds = scores(options.runs, options.healthy, options.seed)
    weaker = {f"recall_at_{strength}": _recall(options, strength) for strength in WEAKER}
    worst = min(min(ours.precision(name), ours.recall(name)) for name in ILLS)
    return Result(
        what=f"mean F1 of {len(ILLS)} pathologies, {options.runs} runs of each and {options.healthy} healthy ones",
        unit="F1",
        stock=stock.mean_f1(),
        ours=ours.mean_f1(),
        higher_is_better=True,
        details={
            "precision": ours.table(ours.precision),
            "recall": ours.table(ours.recall),
            **weaker,
            "onset_error_steps": {name: statistics.median(errors) for name, errors in ours.errors.items()},
            "worst_precision": min(map(ours.precision, ILLS)),
            "worst_recall": min(map(ours.recall, ILLS)),
            "healthy_with_a_finding": ours.false_alarms / options.healthy,
            "healthy_with_a_warning": _warned(options) / options.watched,
            "median_ms": 1e3 * statistics.median(seconds),
            "precision_stock": stock.table(stock.precision),
            "recall_stock": stock.table(stock.recall),
            "real_runs": _of_real_runs(),
            "healthy_with_a_finding_stock": stock.false_alarms / options.healthy,
        },
        missed=f"a precision or recall is {worst:.2f}, {LEAST_SCORE} at least is wanted"
        if worst < LEAST_SCORE and options.runs >= ENOUGH
        else "",
    )


def scores(runs: int, healthy: int, seed: int) -> tuple["FindingCounts", "FindingCounts", list[float]]:
    """Score our rules and the fixed limits on obvious pathologies, and time ours in seconds per healthy run.

    Args:
        runs: per pathology.
        seed: of the first run.
    """
    ours, stock = FindingCounts(), FindingCounts()
    seconds = []
    for number in range(seed, seed + healthy):
        one = make(number)
        stock.add(None, naive_rules.findings(one.rows, one.evals))
        began = time.perf_counter()
        onsets = _onsets(one)
        seconds.append(time.perf_counter() - began)
        ours.add(None, onsets)
    for name in ILLS:
        for sick in _sick(runs, seed, name, OBVIOUS):
            stock.add(name, naive_rules.findings(sick.rows, sick.evals))
            onsets = _onsets(sick)
            ours.add(name, onsets)
            if name in onsets:
                ours.errors[name].append(onsets[name] - sick.onsets[name])
    return ours, stock, seconds


class FindingCounts:
    """Counts of which findings were made in which runs."""

    def __init__(self) -> None:
        self.right: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.false_alarms = 0
        self.errors: dict[str, list[int]] = defaultdict(list)

    def add(self, truth: str | None, named: Any) -> None:
        if truth is None:
            self.false_alarms += bool(named)
        else:
            self.runs[truth] += 1
            self.right[truth] += truth in named
        self.wrong.update(name for name in named if name != truth)

    def precision(self, name: str) -> float:
        named = self.right[name] + self.wrong[name]
        return self.right[name] / named if named else 0.0

    def recall(self, name: str) -> float:
        return self.right[name] / self.runs[name]

    def mean_f1(self) -> float:
        scores = []
        for name in ILLS:
            precision, recall = self.precision(name), self.recall(name)
            scores.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
        return statistics.fmean(scores)

    def table(self, score: Any) -> dict[str, float]:
        return {name: round(score(name), 3) for name in ILLS}


def _sick(runs: int, first: int, name: str, strength: float) -> list[SyntheticRun]:
    return [make(seed, (name, ILLS[name]), strength, LEAST[name]) for seed in range(first, first + runs)]


def _onsets(run: SyntheticRun) -> dict[str, int]:
    """Return the onset of each pathology that our rules find; the first if there are several."""
    findings = diagnose(of_rows(run.rows, run.evals, run.config)).findings
    return {finding.name: finding.onset for finding in sorted(findings, key=lambda finding: -finding.onset)}


def _recall(options: argparse.Namespace, strength: float) -> dict[str, float]:
    return {
        name: round(
            statistics.fmean(name in _onsets(run) for run in _sick(options.runs, options.seed, name, strength)), 3
        )
        for name in ILLS
    }


def _of_real_runs() -> dict[str, Any]:
    """Return how many faults of real runs are named in time, the missed ones, and the healthy runs with a finding."""
    runs = list(read_all())
    sick = [run for run in runs if isinstance(run, SickRun)]
    healthy = [run for run in runs if not isinstance(run, SickRun)]
    missed = {run.name: run.found_at() for run in sick if not run.is_found_in_time()}
    return {
        "sick": len(sick),
        "named_in_time": len(sick) - len(missed),
        "named_late_or_never": missed,
        "noticed_without_their_own_rules": sum(run.is_noticed_by_other_rules() for run in sick),
        "healthy": len(healthy),
        "healthy_with_a_warning": [run.name for run in healthy if run.named()],
    }


def _warned(options: argparse.Namespace) -> int:
    """Return how many healthy runs would have had a warning at any step."""
    warned = 0
    for seed in range(options.seed, options.seed + options.watched):
        healthy = make(seed)
        monitor = Monitor(healthy.config)
        warned += any(
            monitor.new_onsets(healthy.rows[:end], [row for row in healthy.evals if row["step"] <= end])
            for end in range(1, len(healthy.rows) + 1)
        )
    return warned
