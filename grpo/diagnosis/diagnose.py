"""Diagnoses a run, finished or in progress."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from grpo.diagnosis.finding import CRITICAL, WARNING, WATCH, Diagnosis, Finding, NotJudged
from grpo.diagnosis.history import RunHistory, build_history
from grpo.diagnosis.rules import EXPLAINS, RULES, Rule

FEW = 2  # steps by which a cause that is read from medians may seem to begin late
EXACT = {"mismatch"}  # causes whose first step is exact
TOLERANCE = 10  # steps of error in an onset: the levels around it are means of about as many


def diagnose(run: RunHistory, rules: Mapping[str, Rule] = RULES) -> Diagnosis:
    """Apply rules to a run, by default all of them."""
    result = Diagnosis(steps=len(run.rows), warm_up=run.warm_up, notes=list(run.notes))
    findings = []
    for name, verdict in verdicts(run, rules):
        if isinstance(verdict, NotJudged):
            result.not_judged[name] = str(verdict)
        elif isinstance(verdict, str):
            result.fine[name] = verdict
        else:
            findings += verdict
    result.watched = [finding for finding in findings if finding.severity == WATCH]
    certain = [finding for finding in findings if finding.severity != WATCH]
    end = int(run.steps[-1]) if len(run.steps) else 0
    result.findings = sorted(
        _attach_consequences(certain, end), key=lambda finding: (finding.severity != CRITICAL, finding.onset)
    )
    return result


def verdicts(
    run: RunHistory, rules: Mapping[str, Rule] = RULES
) -> Iterator[tuple[str, list[Finding] | str | NotJudged]]:
    """Yield the name of each rule, and its verdict or why it has none."""
    for name, rule in rules.items():
        try:
            yield name, rule(run)
        except NotJudged as reason:
            yield name, reason


def _attach_consequences(findings: list[Finding], end: int) -> list[Finding]:
    """Attach each finding to its earliest cause, unless that is itself a consequence.

    Args:
        end: last step of the run.
    """
    causes = [[cause for cause in findings if _explains(cause, one, end)] for one in findings]
    roots = [one for one, of_it in zip(findings, causes, strict=True) if not of_it]
    explained: list[list[Finding]] = [[] for _ in roots]
    alone = []
    for one, of_it in zip(findings, causes, strict=True):
        known = [at for at, root in enumerate(roots) if root in of_it]
        if known:
            explained[min(known, key=lambda at: roots[at].onset)].append(one)
        elif of_it:
            alone.append(one)
    return [_merge_consequences(root, of_it) for root, of_it in zip(roots, explained, strict=True)] + alone


def _merge_consequences(cause: Finding, consequences: list[Finding]) -> Finding:
    """Return a finding that names what it explains, as severe as the worst of those, with the remedies of all.

    The way back to a good checkpoint comes first, then the remedies of the cause.
    """
    all_ = [cause, *consequences]
    severity = CRITICAL if any(one.severity == CRITICAL for one in all_) else cause.severity
    actions = {(action.setting, action.is_way_back): action for one in reversed(all_) for action in one.actions}
    order = list(dict.fromkeys((action.setting, action.is_way_back) for one in all_ for action in one.actions))
    ordered = sorted((actions[key] for key in order), key=lambda action: not action.is_way_back)
    names = tuple(one.name for one in consequences)
    return replace(cause, severity=severity, actions=tuple(ordered), consequences=names)


def _explains(cause: Finding, consequence: Finding, end: int) -> bool:
    """Say whether one finding follows from the other: it began while the other lasted.

    A fall of correctness, and a rise of truncation, must begin with their cause, or at the end of it. A condition that
    the run has long tolerated is not their cause. Nor is what began after the fall: it may follow from the damage.
    """
    if consequence is cause or consequence.name not in EXPLAINS.get(cause.name, ()):
        return False
    if not consequence.says_it_fell and consequence.name != "truncation":
        return cause.onset - TOLERANCE <= consequence.onset <= cause.last + TOLERANCE
    turns = [cause.onset] if cause.last >= end else [cause.onset, cause.last]
    late = 0 if cause.name in EXACT else FEW
    return any(-late <= consequence.onset - step <= TOLERANCE for step in turns)


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
        for finding in diagnose(build_history(rows, evals, self._config)).findings:
            same = [known for known in self._known if known.name == finding.name and _overlap(known, finding)]
            if not same or (finding.severity == CRITICAL and all(known.severity != CRITICAL for known in same)):
                new.append(finding)
            for known in same:
                self._known.remove(known)
                severity = CRITICAL if CRITICAL in (known.severity, finding.severity) else WARNING
                first, last = min(finding.onset, known.onset), max(finding.last, known.last)
                finding = replace(finding, severity=severity, onset=first, last=last)
            self._known.append(finding)
        return new


def _overlap(known: Finding, finding: Finding) -> bool:
    return finding.onset <= known.last + TOLERANCE and finding.last >= known.onset - TOLERANCE
