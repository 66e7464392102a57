"""Print the table of all metrics as Markdown, from grpo/metrics/metric_schema.py.

    python -m scripts.metrics > docs/metrics.md

Exit code: 0.
"""

from grpo.metrics.metric_schema import SCHEMA, TIERS, Metric
from grpo.stack import command

_HEAD = """\
# Metrics

This page lists a run's metrics. `python -m scripts.metrics > docs/metrics.md` writes it from
`grpo/metrics/metric_schema.py`: edit that file.

A line of `metrics.jsonl` is a step. It has `step`, `time` (seconds since 1970), `grad_norms` (one for each optimizer
step), `seconds` (of each phase), and every metric that has a value. OpenRLHF's metrics keep their names, and so do the
numbers in `extra_logs` of your own reward.

A line of `eval.jsonl` is an evaluation:

| key | value |
|---|---|
| `exact_match`, or `score` with your own reward | with its 95% interval, `ci_low` to `ci_high` |
| `problems`, `n`, `samples`, `ungraded` | numbers of problems, graded problems, rollouts, ungraded rollouts |
| `no_final`, `no_answer`, `truncated` | shares of rollouts |
| `response_length`, `thinking_length`, `answer_length`, `seconds` | means; the duration |
| `pass_at_k` | for each k, `value` with its interval |
| `by_source`, `by_environment` | all of these for each data source, and for each of several environments |
| `greedy` | the numbers of one greedy answer per problem, unless `--eval_temperature` is 0 |

A share is from 0 to 1. Nats use natural logarithms. `*` is a reward file or an environment. `scripts.watch` and
`scripts.report` mark values outside the healthy range. Without one, it depends on the run."""


def markdown() -> str:
    """Return the document."""
    parts = [_HEAD]
    for tier, question in TIERS.items():
        rows = "".join(f"\n{_row(metric)}" for metric in SCHEMA if metric.tier == tier)
        parts.append(f"## {tier}. {question}")
        parts.append("| metric | meaning | healthy |\n|---|---|---|" + rows)
    return "\n\n".join(parts) + "\n"


def _row(metric: Metric) -> str:
    name = f"`{metric.name}`" + f" ({metric.unit})" * bool(metric.unit)
    cells = [name, metric.meaning + f" (with {metric.when})" * bool(metric.when), _range(metric)]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _range(metric: Metric) -> str:
    low, high = metric.healthy or (None, None)
    if low is None:
        return "" if high is None else f"≤ {high:g}"
    return f"≥ {low:g}" if high is None else f"{low:g} to {high:g}"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.metrics", __doc__)
    parser.parse_args(argv)
    print(markdown(), end="")
    return 0


if __name__ == "__main__":
    command.run(main)
