"""Print the table of all metrics as Markdown, from grpo/metrics/metric_schema.py.

    python -m scripts.metrics > docs/metrics.md

Exit code: 0.
"""

import argparse

from grpo.metrics.metric_schema import SCHEMA, TIERS, Metric
from grpo.stack import command

SOURCES = {
    "openrlhf": "OpenRLHF itself",
    "eval": "the held-out evaluation",
    "actor": "the ranks that train",
    "experience": "the rollout, after log-probs and advantages",
    "reward": "the reward function, mean over the samples",
    "rollout": "the executor of a rollout (a thinking budget, an environment), mean over the samples",
    "launcher": "the log of the run",
}
_HEAD = """\
# Metrics

Written by `python -m scripts.metrics > docs/metrics.md` from `grpo/metrics/metric_schema.py`; edit that.

A line of `metrics.jsonl` is one step: its `step`, its `time` in seconds since 1970, the object `seconds` with the
phases, `grad_norms` of the optimizer steps, and the other numbers by their names. A number that could not be had in a
step is left out. A line of `eval.jsonl` has those of the source "eval", the interval `ci_low` and `ci_high`, `n`
problems, `samples`, shares (`ungraded`, `no_final`, `no_answer`, `truncated`), mean lengths, `pass_at_k`, all of it
again `by_source`, and its own `seconds`.

A share is from 0 to 1, a nat a natural logarithm. A value in its healthy range needs no look; outside of it
`scripts.watch` and `scripts.report` mark it. Where the range is empty, what is healthy depends on the run."""


def markdown() -> str:
    """Return the document."""
    parts = [_HEAD, "| source | computed by |\n|---|---|"]
    parts[-1] += "".join(f"\n| {name} | {meaning} |" for name, meaning in SOURCES.items())
    for tier, question in TIERS.items():
        rows = "".join(f"\n{_row(metric)}" for metric in SCHEMA if metric.tier == tier)
        parts.append(f"## {tier}. {question}")
        parts.append("| metric | unit | meaning | healthy | source | only with |\n|---|---|---|---|---|---|" + rows)
    return "\n\n".join(parts) + "\n"


def _row(metric: Metric) -> str:
    cells = [f"`{metric.name}`", metric.unit, metric.meaning, _range(metric), metric.source, metric.when]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _range(metric: Metric) -> str:
    low, high = metric.healthy or (None, None)
    if low is None:
        return "" if high is None else f"up to {high:g}"
    return f"from {low:g}" + ("" if high is None else f" to {high:g}")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    assert __doc__
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m scripts.metrics",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(argv)
    print(markdown(), end="")
    return 0


if __name__ == "__main__":
    command.run(main)
