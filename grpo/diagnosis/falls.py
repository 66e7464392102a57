"""Since when correctness has fallen, by any rule: what rotation asks before it removes a checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo.diagnosis.finding import Finding, NotJudged
from grpo.diagnosis.history import History, of_rows
from grpo.diagnosis.rules import RULES
from grpo.json_files import read_rows

LEAST = 0.05  # of correctness; what falls less is not why a run is taken back


def read_onsets(run_dir: Path, metrics_dir: Path, now: Mapping[str, Any]) -> list[int]:
    """Return the step at which each open fall of correctness began; takes milliseconds.

    Args:
        now: the line of the step that is saved: metrics.jsonl gets it after the checkpoint.

    Raises:
        OSError, ValueError: where config.json is broken; and whatever a rule may trip over.
    """
    config = run_dir / "config.json"
    settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    rows, evals = (read_rows(metrics_dir / name) for name in ("metrics.jsonl", "eval.jsonl"))
    return onsets(of_rows([*rows, now], evals, settings))


def onsets(run: History) -> list[int]:
    """Return the onsets of all falls of correctness that a run has not got over, also those that others explain."""
    found: list[int] = []
    for rule in RULES.values():
        try:
            verdict = rule(run)
        except NotJudged:
            continue
        if not isinstance(verdict, str):
            found += [finding.onset for finding in verdict if _says_it_fell(finding)]
    return found


def _says_it_fell(finding: Finding) -> bool:
    numbers = [evidence.numbers for evidence in finding.evidence if evidence.metric == "correct"]
    return any(each.get("before", 0.0) - each.get("after", 1.0) > LEAST for each in numbers)
