"""The diagnosis of a run, and the watch over one that goes on."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from grpo.diagnosis.finding import CRITICAL, Diagnosis, Finding, NotJudged
from grpo.diagnosis.history import History, of_rows
from grpo.diagnosis.rules import EXPLAINS, RULES

FEW = 2  # steps by which the onset of a truncation may be misjudged: it is read from the shares themselves
TOLERANCE = 10  # steps by which an onset may be misjudged: the levels around it are means of about as many


def diagnose(run: History) -> Diagnosis:
    """Apply every rule to a run."""
    result = Diagnosis(steps=len(run.rows), warm_up=run.warm_up, notes=list(run.notes))
    findings = []
    for name, rule in RULES.items():
        try:
            verdict = rule(run)
        except NotJudged as reason:
            result.not_judged[name] = str(reason)
            continue
        if isinstance(verdict, str):
            result.fine[name] = verdict
        else:
            findings += verdict
    findings = _without_consequences(findings, int(run.steps[-1]) if len(run.steps) else 0)
    result.findings = sorted(findings, key=lambda finding: (finding.severity != CRITICAL, finding.onset))
    return result


def _without_consequences(findings: list[Finding], end: int) -> list[Finding]:
    """Name what a finding explains with it, in place of a finding of its own; `end` is the run's last step."""
    causes: dict[int, int] = {}
    for other, consequence in enumerate(findings):
        found = [index for index, cause in enumerate(findings) if _explains(cause, consequence, end)]
        if found:
            causes[other] = min(found, key=lambda index: findings[index].onset)
    explained: dict[int, list[Finding]] = {}
    for other in causes:
        root = causes[other]
        while root in causes:  # what a consequence explains follows from its cause
            root = causes[root]
        explained.setdefault(root, []).append(findings[other])
    return [
        _with_consequences(found, explained.get(index, []))
        for index, found in enumerate(findings)
        if index not in causes
    ]


def _with_consequences(cause: Finding, consequences: list[Finding]) -> Finding:
    """Return a finding that names what it explains, and is as severe as the worst of that."""
    severity = CRITICAL if any(found.severity == CRITICAL for found in consequences) else cause.severity
    return replace(cause, severity=severity, consequences=tuple(found.name for found in consequences))


def _explains(cause: Finding, consequence: Finding, end: int) -> bool:
    """Whether one follows from the other: it began while the other lasted.

    A fall of correctness has to begin with it, or when it was over: what the run has borne for long is not why it fell.
    """
    if consequence is cause or consequence.name not in EXPLAINS.get(cause.name, ()):
        return False
    if consequence.name == "correctness_fall":
        turns = [cause.onset] if cause.last >= end else [cause.onset, cause.last]
        return any(abs(consequence.onset - step) <= TOLERANCE for step in turns)
    if consequence.name == "truncation":  # a length limit that was too short before has nothing to do with the cause
        return cause.onset - FEW <= consequence.onset <= cause.last + TOLERANCE
    return cause.onset - TOLERANCE <= consequence.onset <= cause.last + TOLERANCE


class Monitor:
    """Watches a run that goes on, and names each onset once, and again when it becomes critical.

    Args:
        config: config.json.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._config = config or {}
        self._known: list[Finding] = []

    def new_onsets(self, rows: Iterable[Mapping[str, Any]], evals: Iterable[Mapping[str, Any]] = ()) -> list[Finding]:
        """Return what has begun since the last call; milliseconds for a few hundred steps.

        A finding of the same name is a new onset only after steps that did not show the last one. One that becomes
        critical is returned again. A monitor that
        begins with the rows of a resumed run takes what they show as new: call it once and drop the result there.

        Args:
            rows: all lines of metrics.jsonl so far.
            evals: all lines of eval.jsonl so far.
        """
        new = []
        for found in diagnose(of_rows(rows, evals, self._config)).findings:
            same = [known for known in self._known if known.name == found.name and _overlap(known, found)]
            if not same or (found.severity == CRITICAL and all(known.severity != CRITICAL for known in same)):
                new.append(found)
            for known in same:
                self._known.remove(known)
                found = replace(found, onset=min(found.onset, known.onset), last=max(found.last, known.last))
            self._known.append(found)
        return new


def _overlap(known: Finding, found: Finding) -> bool:
    return found.onset <= known.last + TOLERANCE and found.last >= known.onset - TOLERANCE
