"""The output of the diagnosis: findings with their evidence, what is fine, and what could not be judged."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo.run.measure import EXACT_MATCH, SCORE

LEAST_FALL = 0.05  # of correctness, or of a score; a smaller one is no reason to go back to a checkpoint
HELD_OUT_SCORE = "held-out score"  # of evaluations; the column `score` is of the training rollouts
WATCH, WARNING, CRITICAL = "watch", "warning", "critical"


# The names of findings that are more than their words.
_TITLES = {
    "over_fitting": "overfitting",
    "lr_shock": "learning-rate shock",
    "off_policy": "off-policy updates",
    "mismatch": "trainer-engine mismatch",
    "passes_differ": "passes that differ",
    "judge_dependent": "judge-dependent reward",
}


class NotJudged(Exception):
    """A rule lacks steps or columns; the message says which."""


@dataclass(frozen=True)
class Evidence:
    """Numbers of one metric over some steps.

    Attributes:
        first, last: steps, inclusive.
        numbers: by label, such as {"before": 0.6, "after": 0.3}, in the metric's unit.
    """

    metric: str
    first: int
    last: int
    numbers: Mapping[str, float]

    def __str__(self) -> str:
        where = f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"
        numbers = {what: number(value) for what, value in self.numbers.items()}
        if {"range from", "range to"} <= numbers.keys():
            numbers["range from"] += f" to {numbers.pop('range to')}"
        return f"{self.metric}, {where}: " + ", ".join(f"{what} {value}" for what, value in numbers.items())


@dataclass(frozen=True)
class Action:
    """Something to change for the next start.

    Attributes:
        setting: a variable of train_grpo.sh ("LEARNING_RATE"), its option "--resume", or a flag that goes after its
            `--` ("--dual_clip").
        change: the new value, with the present value if it is known.
    """

    setting: str
    change: str
    why: str

    @property
    def is_way_back(self) -> bool:
        """Say whether a new run goes back to an earlier checkpoint."""
        return self.setting == "ADAPTER"

    def __str__(self) -> str:
        return f"{self.setting} {self.change}: {self.why}"


@dataclass(frozen=True)
class Finding:
    """One pathology, reported once.

    Attributes:
        severity: WATCH if noise may explain it, else WARNING or CRITICAL.
        onset: the first step that shows it.
        last: the last step that shows it.
        consequences: findings that it explains. They are not listed separately; their actions follow its own.
    """

    name: str
    severity: str
    onset: int
    last: int
    evidence: tuple[Evidence, ...]
    cause: str
    actions: tuple[Action, ...]
    consequences: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return format_title(self.name)

    @property
    def says_it_fell(self) -> bool:
        """Say whether correctness or the score fell with it, in training or on the held-out problems."""
        measures = ("correct", EXACT_MATCH, SCORE, HELD_OUT_SCORE)
        levels = [one.numbers for one in self.evidence if one.metric in measures and "before" in one.numbers]
        return any(each["before"] - each["after"] > LEAST_FALL * max(1.0, abs(each["before"])) for each in levels)

    def headline(self) -> str:
        """Return the finding in one line, for a log."""
        also = f", with {', '.join(map(format_title, self.consequences))}" if self.consequences else ""
        return f"{self.title} from step {self.onset} ({self.severity}){also}: {'; '.join(map(str, self.evidence))}"

    def lines(self) -> list[str]:
        """Return the finding as lines for display."""
        steps = f"step {self.onset}" if self.last == self.onset else f"steps {self.onset} to {self.last}"
        lines = [f"{self.severity.upper()}: {self.title}, {steps}"]
        lines += [f"    {evidence}" for evidence in self.evidence]
        if self.severity == WATCH:
            return lines
        if self.consequences:
            lines.append(f"    consequences: {', '.join(map(format_title, self.consequences))}")
        lines.append(f"    likely cause: {self.cause}")
        return lines + [f"    try {action}" for action in self.actions]


@dataclass
class Diagnosis:
    """The verdicts of all rules on a run.

    Attributes:
        steps: the number of steps, with the warmup.
        warm_up: how many of them the rules about learning and the learning rate skip.
        findings: by severity, then onset.
        watched: what noise may explain; worth a look.
        fine: what is in order, by rule name.
        not_judged: the reason, by rule name.
        notes: what the reader of the run left out.
    """

    steps: int
    warm_up: int
    findings: list[Finding] = field(default_factory=list)
    watched: list[Finding] = field(default_factory=list)
    fine: dict[str, str] = field(default_factory=dict)
    not_judged: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def describe_no_findings(self) -> str:
        """Return the verdict of a run without findings. It is not an all-clear while some rules cannot judge."""
        rules = len(self.fine) + len(self.not_judged) + len(self.watched)
        to_watch = f"; to watch: {', '.join(one.title for one in self.watched)}" if self.watched else ""
        open_rules = f"; {len(self.not_judged)} of {rules} rules cannot be judged yet" if self.not_judged else ""
        return f"No findings{to_watch}{open_rules}"

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the diagnosis as lines for display."""
        lines = [f"{self.steps} step{'' if self.steps == 1 else 's'}{self._warm_up()}"]
        if not self.findings:
            lines.append(self.describe_no_findings())
        lines += [f"note: {note}" for note in self.notes]
        for finding in (*self.findings, *self.watched):
            lines += ["", *finding.lines()]
        for heading, group in (("in order", self.fine), ("not judged", self.not_judged)):
            if group:
                lines += ["", f"{heading}:"]
                lines += [f"    {format_title(name)}: {text}" for name, text in group.items()]
        return lines

    def _warm_up(self) -> str:
        if not self.warm_up:
            return ""
        steps = "step is" if self.warm_up == 1 else f"{self.warm_up} steps are"
        return f"; the first {steps} the warmup, which rules about learning and the learning rate skip"


def format_title(name: str) -> str:
    """Return the name of a finding or a rule for display."""
    return _TITLES.get(name) or name.replace("_", " ")


def number(value: float) -> str:
    """Return a number for display, with three digits."""
    return f"{value:.0f}" if abs(value) >= 100 and math.isfinite(value) else f"{value:.3g}"
