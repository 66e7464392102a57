"""Write one HTML file that shows runs: results, curves, phases, settings, samples. It needs no network.

    python -m scripts.report RUN_DIR [RUN_DIR ...] [--out FILE]

Runs may be in progress, ended in any way, resumed, or from other versions. Several runs share each chart. The report
compares their settings, and their last evaluation with that of the first run, paired by problem.

Exit code: 0 done, 2 a directory is not a run, or the file cannot be written.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
from bokeh.embed import components
from bokeh.resources import Resources
from markupsafe import Markup, escape

from grpo.diagnosis.diagnose import Finding, alarms, describe_no_alarm, diagnose
from grpo.metrics.metric_schema import TIERS, flat
from grpo.run import run_state
from grpo.run.run_state import Run
from grpo.stack import command, json_files, secrets
from grpo.stack.problem import UserError
from scripts.report import charts, numbers, rollouts

COLORS = {"critical": "#d62728", "warning": "#ff7f0e"}


def render(runs: Sequence[Run], diagnoses: Mapping[str, Sequence[Finding]]) -> str:
    """Return the page. What the environment's secrets contain is replaced by their names."""
    found = [finding for run in runs for finding in alarms(diagnoses[run.name])]
    marks = [(finding.step, COLORS[finding.severity]) for finding in found]
    marks += [(row["step"], charts.GREY) for run in runs for row in run.resumes if isinstance(row.get("step"), int)]
    drawn = charts.draw_all(runs, marks)
    figures = {str(at): chart.figure for at, chart in enumerate(drawn) if chart.figure}
    script, divs = components(figures) if figures else ("", {})
    tiers = {title: [(at, each) for at, each in enumerate(drawn) if each.metric.tier == tier]
             for tier, title in {**TIERS, charts.OTHER: "Other columns"}.items()}  # fmt: skip
    evaluations = [(run.name, row["step"], flat(row)) for run in runs for row in run.evals]
    columns = dict.fromkeys(name for _, _, cells in evaluations for name in cells)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    page = environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8")).render(
        runs=[(run, numbers.summarize(run, runs[0]), diagnoses[run.name], rollouts.choose(run, len(runs) > 3),
               numbers.share_phases(run)) for run in runs],
        alarms=alarms,
        describe_no_alarm=describe_no_alarm,
        colors=charts.Category10_10,
        tiers=tiers,
        divs={int(at): Markup(div) for at, div in divs.items()},
        columns=[name for name in columns if name not in ("step", "time")],
        evaluations=evaluations,
        differences=run_state.differences(runs) if len(runs) > 1 else {},
        edits={run.name: run_state.list_edits(run) for run in runs},
        changes={run.name: run_state.changes(run) for run in runs},
        settings={run.name: run_state.settings(run) for run in runs},
        made=time.strftime("%Y-%m-%d %H:%M"),
    )  # fmt: skip
    for name, value in secrets.secrets().items():
        page = page.replace(escape(value), escape(f"<{name}>"))
    # Last, and as they are: Bokeh's own code, and the numbers as JSON.
    return page + Resources(mode="inline", components=["bokeh"]).render() + script


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.report", __doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: report.html in the first RUN_DIR")
    options = parser.parse_args(argv)
    out = options.out or options.folders[0] / "report.html"
    try:
        runs = read_runs(options.folders)
        page = render(runs, {run.name: diagnose(run.metrics, run.evals, run.config) for run in runs})
        json_files.replace(out, page)
    except (UserError, OSError) as error:
        print(f"scripts.report: {error}", file=sys.stderr)
        return 2
    print(out)
    return 0


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read the directories, each under as many last parts of its path as tell it from the others.

    Raises:
        UserError: if one is not a run directory, or is given twice.
    """
    paths = [folder.resolve() for folder in folders]
    if len(set(paths)) < len(paths):
        raise UserError("a run is named twice", "name each run once")
    depth = 1
    while len(names := {path: "/".join(path.parts[-depth:]) for path in paths}) > len(set(names.values())):
        depth += 1
    return [Run(path, names[path]) for path in paths]


if __name__ == "__main__":
    command.run(main)
