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
    "reward": "the reward function; mean over rollouts",
    "rollout": "the executor of a thinking budget or an environment; mean over rollouts",
    "launcher": "the controller",
}
_HEAD = """\
# Metrics

This page lists a run's metrics. `python -m scripts.metrics > docs/metrics.md` writes it from
`grpo/metrics/metric_schema.py`: edit that file. The [glossary](glossary.md) explains the terms.

Each line of `metrics.jsonl` describes one step. It has:

- `step`, `time` in seconds since 1970, and `grad_norms`, one for each optimizer step
- `seconds`, with the time of each phase: its `train` is `seconds.train` below
- all other metrics by name, except those without a value in the step

Each line of `eval.jsonl` describes one evaluation. It has:

- `exact_match`, or `score` with a reward of your own, and its 95% interval from `ci_low` to `ci_high`
- the numbers of `problems`, graded problems (`n`), rollouts (`samples`), and ungraded rollouts (`ungraded`)
- the shares of rollouts without a final message (`no_final`), without an answer (`no_answer`), and `truncated`
- mean lengths (`response_length`, `thinking_length`, `answer_length`) and `seconds`
- `pass_at_k`: for each k, `value` with `ci_low` and `ci_high`
- `by_source`: all of these except `seconds` for each data source; with several environments, also `by_environment`
- `greedy`: the numbers of one greedy answer to each problem, unless `--eval_temperature` is 0

A share is from 0 to 1. Nats use natural logarithms. In names, `*` is a reward file or an environment.
`scripts.watch` and `scripts.report` mark values outside the healthy range. If none is given, it depends on the run."""


def markdown() -> str:
    """Return the document."""
    parts = [_HEAD, "| source | values come from |\n|---|---|"]
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
