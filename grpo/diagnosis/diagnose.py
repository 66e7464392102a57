"""Diagnoses a run, finished or in progress: lines of its files in, findings out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.diagnosis.record import RECENT, Record
from grpo.diagnosis.rules import RULES
from grpo.diagnosis.thresholds import CRITICAL, OUT_OF_RANGE, WARNING, WATCH, advise
from grpo.metrics.metric_schema import BY_NAME

SEVERITIES = (CRITICAL, WARNING, WATCH)


@dataclass(frozen=True)
class Finding:
    """One ailment of a run.

    Attributes:
        name: as in docs/tuning.md, or "out_of_range:METRIC".
        tier: of the metric that shows it, see :data:`grpo.metrics.metric_schema.TIERS`.
        severity: "critical", "warning", or "watch": worth a look, no alarm.
        step: the first that shows it.
        value: of the metric.
        text: the numbers.
        remedy: what to change, in the order to try it, with the run's values.
    """

    name: str
    tier: int
    severity: str
    step: int
    value: float
    text: str
    remedy: tuple[str, ...]

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")

    def headline(self) -> str:
        """Return the finding in one line."""
        return f"{self.title} from step {self.step} ({self.severity}): {self.text}"


def diagnose(
    rows: Iterable[Mapping[str, Any]], evals: Iterable[Mapping[str, Any]] = (), config: Mapping[str, Any] | None = None
) -> list[Finding]:
    """Return the findings of a run, the worst first, then by step; one of each name. Takes milliseconds.

    Args:
        rows, evals: lines of metrics.jsonl and eval.jsonl. What is no finite number, or has no step, is left out.
        config: the content of config.json; without it, remedies lack the present values.
    """
    run, found, explained = Record(rows, evals, config), dict[str, Finding](), set[str]()
    for name, severity, shown, text in (one for rule in RULES if run.rows for one in rule(run)):
        metric = shown.name.partition("@")[0].partition("/")[0].partition("-")[0]
        tier = BY_NAME[metric].tier if metric in BY_NAME else 1
        if name == OUT_OF_RANGE + metric and metric in explained:
            continue
        if severity != WATCH and name not in ("off_policy", "passes_differ"):
            explained.add(metric)
        if name not in found or SEVERITIES.index(severity) < SEVERITIES.index(found[name].severity):
            remedy = advise(run, name, shown.step)
            found[name] = Finding(name, tier, severity, shown.step, shown.after, text, remedy)
    return sorted(found.values(), key=lambda one: (SEVERITIES.index(one.severity), one.step))


def alarms(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are not only to watch."""
    return [one for one in findings if one.severity != WATCH]


def describe_no_alarm(findings: Iterable[Finding], steps: int) -> str:
    """Return the verdict of a run without alarms. It is not an all-clear while the run is short."""
    watched = ", ".join(one.title for one in findings)
    return (
        "No findings" + (f"; to watch: {watched}" if watched else "") + ("; trends need 20 steps" if steps < 20 else "")
    )


class Monitor:
    """Watches a run in progress: names each alarm once, and again when it becomes critical."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._config, self._seen = config, dict[tuple[str, str], int]()

    def new_onsets(self, rows: Sequence[Mapping[str, Any]], evals: Iterable[Mapping[str, Any]] = ()) -> list[Finding]:
        """Return the alarms since the last call, given all lines; again what is back after more than 10 steps."""
        found, now = alarms(diagnose(rows, evals, self._config)), len(rows)
        last = {one: max(self._seen.get((one.name, key), -RECENT) for key in (one.severity, CRITICAL)) for one in found}
        self._seen |= {(one.name, one.severity): now for one in found}
        return [one for one in found if now - last[one] > RECENT]
