"""Print the table of all metrics as Markdown, from grpo/metrics/metric_schema.py.

    python -m scripts.metrics > docs/metrics.md

Exit code: 0.
"""

from grpo.metrics.metric_schema import SCHEMA, TIERS, Metric
from grpo.stack import command

SOURCES = {
    "openrlhf": "OpenRLHF",
    "eval": "the held-out evaluation",
    "actor": "the training ranks",
    "rows": "the rows of a step, with log-probs and advantages",
    "reward": "the reward function, as a mean over the rollouts",
    "rollout": "the executor of a thinking budget or an environment, as a mean over the rollouts",
    "launcher": "the run log",
}
_HEAD = """\
# Metrics

`python -m scripts.metrics > docs/metrics.md` writes this page from `grpo/metrics/metric_schema.py`; edit that file.

Each line of `metrics.jsonl` is one step. It has:

- `step`, and `time` in seconds since 1970
- `seconds`, an object with the phases
- `grad_norms`, one for each optimizer step
- all other metrics by name; a metric that is not known in a step is left out

Each line of `eval.jsonl` is one evaluation. It has:

- the metrics of the source "eval", with the interval `ci_low` and `ci_high`; with a reward of your own, `score` instead
- the number of graded problems `n`, of all `problems`, and of `samples`
- the shares `ungraded`, `no_final`, `no_answer`, and `truncated`
- mean lengths, `pass_at_k`, and `seconds`
- all of these again for each data source, in `by_source`, and for each of several environments, in `by_environment`
- `greedy`: the numbers of the greedy answers to all problems, unless `EVAL_TEMPERATURE` is 0

A share is a number from 0 to 1. A nat is a unit of natural logarithms. `scripts.watch` and `scripts.report` mark values
outside the healthy range. If no range is given, it depends on the run."""


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
    parser = command.parser("scripts.metrics", __doc__)
    parser.parse_args(argv)
    print(markdown(), end="")
    return 0


if __name__ == "__main__":
    command.run(main)
