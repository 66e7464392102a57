"""The page: everything shown about runs, in one self-contained text."""

import base64
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from grpo.diagnosis.finding import Diagnosis, Finding, format_title
from grpo.metrics.metric_schema import SCHEMA, TIERS, Metric
from grpo.run import run_settings as settings
from grpo.run.measure import EXACT_MATCH, read_measure
from grpo.run.run_state import Run
from grpo.stack.secrets import secrets
from scripts.report import chart, headline, panels, problems, samples, scales

FOLDER = Path(__file__).parent
SECTIONS = [
    ("problems", "Problems"),
    ("time", "Phases"),
    ("evaluations", "Evaluations"),
    ("configuration", "Configuration"),
    ("missing", "Missing metrics"),
]
SAMPLES = ("samples", "Rollouts")  # after the first charts

GEOMETRY = ("SIZE", "PAD", "WIDTH", "LEFT", "TOP", "INNER_WIDTH", "INNER_HEIGHT")


@dataclass(frozen=True)
class Mark:
    """A finding with its number in the report, and its onset's position in the plot and in the chart.

    Attributes:
        shift: how far the number moves right to avoid overlapping others.
    """

    number: int
    finding: Finding
    x: int
    left: float
    shift: int


def render(runs: Sequence[Run], diagnoses: Mapping[str, Diagnosis] | None = None) -> str:
    """Return the report as HTML. Values of secret environment variables are replaced by their names.

    Args:
        diagnoses: by run name; other runs are shown without a diagnosis.
    """
    diagnoses = diagnoses or {}
    findings = {name: diagnosis.findings for name, diagnosis in diagnoses.items()}
    steps = _steps(runs)
    marks = _marks(runs, findings, steps)
    charts = [chart.draw(panel, steps) for panel in panels.panels(runs)]
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    page = _environment().get_template("page.html")
    entries = [_entry(run, runs, marks.get(run.name)) for run in runs]
    for entry in entries:
        diagnosis = diagnoses.get(entry["run"].name)
        entry["nothing_found"] = diagnosis.describe_no_findings() if diagnosis else ""
        entry["watched"] = diagnosis.watched if diagnosis else []
    text = page.render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=_hash(script),
        data=_data(charts, steps),
        g=chart,
        made=time.strftime("%Y-%m-%d %H:%M:%S"),
        runs=entries,
        phase_names=list(dict.fromkeys(phase.name for entry in entries for phase in entry["phases"])),
        steps=steps,
        findings=bool(findings),
        marks=[mark for of_run in marks.values() for mark in of_run if mark.finding.onset is not None],
        evaluated=_ticks({row["step"] for run in runs for row in run.evals}, steps, chart.INNER_HEIGHT, 6),
        resumed=_ticks(_resumptions(runs), steps, 0, chart.INNER_HEIGHT),
        tiers=_tiers(charts),
        links=_links(_tiers(charts)),
        differences=settings.differences(runs),
        known=len(SCHEMA),
        **_evaluations(runs),
    )
    for name, value in secrets().items():
        text = text.replace(escape(value), escape(f"<{name}>"))
    return text


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": scales.text,
        "duration": headline.duration,
        "healthy": _healthy,
        "finding_title": format_title,
        "lines": lambda value: [value] if isinstance(value, str) else [str(item) for item in value],
    }
    return environment


def _hash(script: str) -> str:
    """Return the hash that lets a browser run this script and no other, whatever a response contains."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _steps(runs: Sequence[Run]) -> tuple[int, int]:
    steps = [row["step"] for run in runs for row in (*run.metrics, *run.evals)] or [0]
    return min(steps), max(steps)


def _resumptions(runs: Sequence[Run]) -> set[int]:
    return {row["step"] for run in runs for row in run.resumes if isinstance(row.get("step"), int)}


def _ticks(at: set[int], steps: tuple[int, int], top: int, height: int) -> str:
    inside = sorted(step for step in at if steps[0] <= step <= steps[1])
    return "".join(f"M{chart.x(step, steps)} {top}v{height}" for step in inside)


def _marks(
    runs: Sequence[Run], findings: Mapping[str, Sequence[Finding]], steps: tuple[int, int]
) -> dict[str, list[Mark]]:
    marks: dict[str, list[Mark]] = {}
    shown: list[Mark] = []
    for run in runs:
        for finding in findings.get(run.name, ()):
            x = chart.x(steps[0] if finding.onset is None else finding.onset, steps)
            left = chart.LEFT + x * chart.INNER_WIDTH / chart.SIZE
            shift = 8 * sum(finding.onset is not None and abs(other.left - left) < 8 for other in shown)
            shown.append(Mark(len(shown) + 1, finding, x, left, shift))
        if run.name in findings:
            marks[run.name] = shown[-len(findings[run.name]) :] if findings[run.name] else []
    return marks


def _entry(run: Run, runs: Sequence[Run], marks: list[Mark] | None) -> dict[str, Any]:
    return {
        "run": run,
        "when": headline.describe_times(run),
        "tiles": headline.tiles(run, runs[0]),
        "findings": marks,
        "phases": headline.phases(run),
        "changes": settings.changes(run),
        "set_by_user": settings.set_by_user(run),
        "given": settings.read_given(run),
        "settings": settings.settings(run),
        "groups": samples.groups(run, len(runs)),
        "problems": problems.tables(run),
        "missing": panels.missing(run),
    }


def _tiers(charts: Sequence[chart.Chart]) -> list[dict[str, Any]]:
    """Return the non-empty tiers with their charts, those that never change apart; last unknown columns, folded."""
    numbered = [{"number": number, **vars(one)} for number, one in enumerate(charts)]
    titles = {**TIERS, panels.OTHER: "Other columns"}
    tiers = []
    for tier, title in titles.items():
        mine = [one for one in numbered if one["panel"].metric.tier == tier]
        constant = [one for one in mine if one["panel"].is_constant and tier != 1]
        drawn = [one for one in mine if one not in constant]
        if mine:
            about = {"id": f"tier-{tier}", "title": title, "folded": tier == panels.OTHER}
            tiers.append({**about, "charts": drawn, "constant": constant})
    return tiers


def _links(tiers: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the page's sections in order."""
    links = [(tier["id"], tier["title"]) for tier in tiers]
    return [*links[:1], SAMPLES, *links[1:], *SECTIONS]


def _data(charts: Sequence[chart.Chart], steps: tuple[int, int]) -> Markup:
    """Return page.js's data as JSON that cannot close its enclosing element."""
    geometry = {name: getattr(chart, name) for name in GEOMETRY}
    data = {"steps": steps, **geometry, "panels": [one.data for one in charts]}
    return Markup(json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def _healthy(metric: Metric) -> str:
    low, high = metric.healthy or (None, None)
    if low is None:
        return f"healthy up to {scales.text(high or 0.0)}"
    return f"healthy from {scales.text(low)}" + ("" if high is None else f" to {scales.text(high)}")


_LEFT_OUT = ("step", "time", "by_source", "in_environment", "exact_match", "score", "ci_low", "ci_high")


def _evaluations(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the table of evaluations: all problems, and each data source if there are several."""
    rows = []
    for run in runs:
        for line in run.evals:
            sources = line.get("by_source")
            parts = list(sources.items()) if isinstance(sources, dict) and len(sources) > 1 else []
            for source, part in [("all", line), *parts]:
                if isinstance(part, dict):
                    cells = _cells(part, panels.get_title([line]))
                    rows.append({"run": run.name, "step": line["step"], "source": source, "cells": cells})
    return {"eval_rows": rows, "eval_columns": list(dict.fromkeys(name for row in rows for name in row["cells"]))}


def _cells(result: dict[str, Any], exact_match: str) -> dict[str, str]:
    measure = read_measure(result)
    cells = {exact_match if measure == EXACT_MATCH else measure: _rate(result, measure)}
    pass_at_k = result.get("pass_at_k")
    if isinstance(pass_at_k, dict):
        cells |= {
            f"pass@{k}": _rate(part, "value") for k, part in pass_at_k.items() if k != "1" and isinstance(part, dict)
        }
    if isinstance(greedy := result.get("greedy"), dict):
        cells["greedy"] = _rate(greedy, read_measure(greedy))
    for name, value in result.items():
        if name not in _LEFT_OUT and isinstance(value, int | float):
            cells[name] = scales.text(value)
    return cells


def _rate(result: dict[str, Any], key: str) -> str:
    value, low, high = (result.get(name) for name in (key, "ci_low", "ci_high"))
    if not isinstance(value, int | float):
        return ""
    has_interval = isinstance(low, int | float) and isinstance(high, int | float)
    return f"{value:.3f}" + (f" [{low:.3f}, {high:.3f}]" if has_interval else "")
