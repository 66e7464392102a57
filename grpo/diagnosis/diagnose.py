"""Diagnoses a run, finished or in progress."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from grpo.diagnosis.finding import (
    CRITICAL,
    Diagnosis,
    Finding,
    NotJudged,
)
from grpo.diagnosis.history import RunHistory, of_rows
from grpo.diagnosis.rules import EXPLAINS, RULES, Rule

FEW = 2  # steps of error in a truncation's onset, which is read from the shares themselves
TOLERANCE = 10  # steps of error in an onset: the levels around it are means of about as many


def diagnose(run: RunHistory, rules: Mapping[str, Rule] = RULES) -> Diagnosis:
    """Apply rules to a run, by default all of them."""
    result = Diagnosis(steps=len(run.rows), warm_up=run.warm_up, notes=list(run.notes))
    findings = []
    for name, rule in rules.items():
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
    """Attach each explained finding to its cause.

    Args:
        end: last step of the run.
    """
    causes: dict[int, int] = {}
    for other, consequence in enumerate(findings):
        possible = [index for index, cause in enumerate(findings) if _explains(cause, consequence, end)]
        if possible:
            causes[other] = min(possible, key=lambda index: findings[index].onset)
    explained: dict[int, list[Finding]] = {}
    for other in causes:
        root = causes[other]
        while root in causes:  # a consequence's own consequences belong to its cause
            root = causes[root]
        explained.setdefault(root, []).append(findings[other])
    return [
        _with_consequences(finding, explained.get(index, []))
        for index, finding in enumerate(findings)
        if index not in causes
    ]


def _with_consequences(cause: Finding, consequences: list[Finding]) -> Finding:
    """Return a finding that names what it explains, as severe as the worst of those."""
    severity = CRITICAL if any(one.severity == CRITICAL for one in consequences) else cause.severity
    return replace(cause, severity=severity, consequences=tuple(one.name for one in consequences))


def _explains(cause: Finding, consequence: Finding, end: int) -> bool:
    """Say whether one finding follows from the other: it began while the other lasted.

    A fall of correctness must begin with its cause, or at the end of it. A condition the run has long tolerated is not
    a cause.
    """
    if consequence is cause or consequence.name not in EXPLAINS.get(cause.name, ()):
        return False
    if consequence.name == "correctness_fall":
        turns = [cause.onset] if cause.last >= end else [cause.onset, cause.last]
        return any(abs(consequence.onset - step) <= TOLERANCE for step in turns)
    if consequence.name == "truncation":  # a length limit that was already too short is unrelated to the cause
        return cause.onset - FEW <= consequence.onset <= cause.last + TOLERANCE
    return cause.onset - TOLERANCE <= consequence.onset <= cause.last + TOLERANCE


class Monitor:
    """Watches a run in progress. Names each onset once, and again when it becomes critical.

    Args:
        config: the contents of config.json.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._config = config or {}
        self._known: list[Finding] = []

    def new_onsets(self, rows: Iterable[Mapping[str, Any]], evals: Iterable[Mapping[str, Any]] = ()) -> list[Finding]:
        """Return what has begun since the last call. Takes milliseconds for a few hundred steps.

        A finding of the same name is a new onset only after steps that did not show the last one. One that becomes
        critical is returned again. A monitor that begins with a resumed run's rows takes everything they show as new:
        call it once and drop the result.

        Args:
            rows: all lines of metrics.jsonl so far.
            evals: all lines of eval.jsonl so far.
        """
        new = []
        for finding in diagnose(of_rows(rows, evals, self._config)).findings:
            same = [known for known in self._known if known.name == finding.name and _overlap(known, finding)]
            if not same or (finding.severity == CRITICAL and all(known.severity != CRITICAL for known in same)):
                new.append(finding)
            for known in same:
                self._known.remove(known)
                finding = replace(finding, onset=min(finding.onset, known.onset), last=max(finding.last, known.last))
            self._known.append(finding)
        return new


def _overlap(known: Finding, finding: Finding) -> bool:
    return finding.onset <= known.last + TOLERANCE and finding.last >= known.onset - TOLERANCE
