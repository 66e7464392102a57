"""Compare two evaluations on the same problems: is B better than A, and which gain could these problems detect?

    python -m eval.compare A B [--json]

A and B are folders of `python -m eval.evaluate`, or files of graded samples such as RUN_DIR/samples/eval_0.jsonl. It
prints the difference of the exact match (B - A) with its 95% interval, paired by problem; the p-value of a two-sided
permutation test over problems; and the smallest gain that such a comparison detects with 80% power at 5%. The interval
and the test are different methods: in a close case they may disagree. Only problems that both have graded count. Of two
runs it also prints the settings that differ. Scores of a reward of your own are compared with each other only.

Exit code: 0 done, 2 the two cannot be compared.
"""

import itertools
import json
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.output import CONFIG, GRADES, read_config, read_records
from grpo.run import estimators, run_state
from grpo.run.eval_metric import EXACT_MATCH, NAMES, SCORE
from grpo.run.records import grades_by_problem
from grpo.run.run_files import RunFiles
from grpo.run.run_state import Run
from grpo.stack import command
from grpo.stack.problem import UserError

# With this many times the samples of the other, and hard problems, the test rejects more often than its level says: at
# 5% in up to 8% of simulated comparisons with 1 and 8 samples, and 15% with 1 and 16. With a factor of 4 it does not.
UNEQUAL = 8


@dataclass(frozen=True)
class Graded:
    """An evaluation: its metric, the grades of each graded problem's samples, and the ids of all its problems."""

    metric: str
    grades: dict[str, list[float]]
    problems: set[str]


def compare_evaluations(a: Graded, b: Graded, names: tuple[str, str] = ("A", "B")) -> dict[str, Any]:
    """Return the comparison of two evaluations.

    - ``measure``; ``graded_a``, ``graded_b``: graded problems, and all.
    - ``a``, ``b``: what was measured on the shared problems; ``n``: their number; ``only_a``, ``only_b``: number of the
      others.
    - ``difference``: b - a, with ``ci_low`` and ``ci_high`` (95%), and ``p_value``.
    - ``better``, ``worse``: problems that b solves more often than a, or less often.
    - ``samples_a``, ``samples_b``: graded samples per problem, at most.
    - ``detectable``: the smallest gain over a with about 80% power at 5%; None if it exceeds 1 - a or is unknown.

    Args:
        names: what an error calls them.

    Raises:
        UserError: if they measure different things, or share no problem that both graded.
    """
    if a.metric != b.metric:
        raise UserError(
            f"{names[0]} measures the {NAMES[a.metric]} and {names[1]} the {NAMES[b.metric]}",
            "compare evaluations with the same reward; eval.evaluate can grade both",
        )
    sides = (a.grades, b.grades)
    shared = [problem for problem in a.grades if problem in b.grades]
    if not shared:
        raise UserError(f"{names[0]} and {names[1]} have no problem in common", "evaluate both on the same data set")
    rates_a, rates_b = ([statistics.fmean(grades[problem]) for problem in shared] for grades in sides)
    differences = [right - left for left, right in zip(rates_a, rates_b, strict=True)]
    draws = min(len(shared) / sum(1 / len(grades[problem]) for problem in shared) for grades in sides)
    mean_a = statistics.fmean(rates_a)
    low: float | None
    high: float | None
    detectable = None
    if a.metric == EXACT_MATCH:
        low, high = estimators.difference_interval(rates_a, rates_b, draws)
        detectable = estimators.detectable_difference(differences, low, high, draws, room=1 - mean_a)
    else:
        low, high = estimators.mean_interval(differences)
        scores = sorted({score for grades in sides for problem in shared for score in grades[problem]})
        step = min((above - below for below, above in itertools.pairwise(scores)), default=0.0)
        if low is not None and high is not None:
            detectable = estimators.detectable_difference(differences, low, high, draws, math.inf, step)
    return {
        "measure": a.metric,
        "a": mean_a,
        "b": statistics.fmean(rates_b),
        "difference": statistics.fmean(differences),
        "ci_low": low,
        "ci_high": high,
        "p_value": estimators.sign_flip_p_value(differences),
        "detectable": detectable,
        "n": len(shared),
        "samples_a": max(len(a.grades[problem]) for problem in shared),
        "samples_b": max(len(b.grades[problem]) for problem in shared),
        "better": sum(difference > 0 for difference in differences),
        "worse": sum(difference < 0 for difference in differences),
        "only_a": len(a.grades.keys() - b.grades.keys()),
        "only_b": len(b.grades.keys() - a.grades.keys()),
        "graded_a": [len(a.grades), len(a.problems)],
        "graded_b": [len(b.grades), len(b.problems)],
    }


def read_grades(path: Path) -> Graded:
    """Return what an evaluation graded. Raises UserError if there is no finished evaluation."""
    if path.is_dir():
        read_config(path)
        if not (path / GRADES).is_file():
            raise UserError(f"{path} is not finished", "continue it with the command that started it")
        path = path / GRADES
    rows = read_records(path)
    metric, grades = grades_by_problem(rows)
    return Graded(metric, grades, {row["id"] for row in rows})


def find_differences_of_runs(a: Path, b: Path) -> dict[str, list[str]]:
    """Return the settings, with both values, in which the runs of two files of samples differ; {} for other files."""
    folders = [path.absolute().parents[1] for path in (a, b)]
    if folders[0] == folders[1] or not all(RunFiles(folder).is_run() for folder in folders):
        return {}
    return run_state.differences([Run(folder) for folder in folders])


def find_differences(a: Path, b: Path) -> list[str]:
    """Return the names of the settings in which two evaluations differ, if both have a config.json."""
    if not all((path / CONFIG).is_file() for path in (a, b)):
        return []
    configs = [read_config(path) for path in (a, b)]
    rewards = ([(one["sha256"], one["weight"]) for one in config.get("reward") or ()] for config in configs)
    old, new = (config["identity"] | {"reward": files} for config, files in zip(configs, rewards, strict=True))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if "adapter_sha256" in names:
        names = [name for name in names if name != "adapter_scale"]
    without = " and ".join(side for side, one in (("A", old), ("B", new)) if not one.get("adapter_sha256"))
    adapter = f"adapter ({without} has none)" if without else "adapter"
    return [adapter if name == "adapter_sha256" else name.removesuffix("_sha256") for name in names]


def describe(result: dict[str, Any]) -> list[str]:
    """Return a comparison as lines for display."""
    detectable, is_share = result["detectable"], result["measure"] == EXACT_MATCH  # or what an environment solved
    name = "pass@1" if is_share else NAMES[SCORE]
    interval = "" if result["ci_low"] is None else f"95% interval [{result['ci_low']:+.3f}, {result['ci_high']:+.3f}], "
    lines = [
        f"{name} on {result['n']} problems: A {result['a']:.3f}, B {result['b']:.3f}; "
        f"B is better on {result['better']} and worse on {result['worse']}",
        f"B - A = {result['difference']:+.3f}, {interval}p = {result['p_value']:.2g}",
    ]
    if detectable is not None:
        lines.append(f"smallest gain that these problems detect with 80% power at 5%: {detectable:.3f}")
    elif is_share:
        largest = 1 - result["a"]
        lines.append(f"even the largest possible gain, {largest:.3f}, would not be detected with 80% power at 5%")
    else:
        lines.append("smallest detectable gain: unknown, since fewer than 6 problems count, or all changed equally")
    if result["differing"]:
        lines.append(f"settings that differ: {', '.join(result['differing'])}")
    return lines + [f"  {name}: {old} in A, {new} in B" for name, (old, new) in result["settings"].items()]


def warnings(result: dict[str, Any]) -> list[str]:
    """Return what limits a comparison: other problems, ungraded ones, unequal numbers of samples."""
    lines = [
        f"in {name}, {result[key][0]} of {result[key][1]} problems were graded"
        for name, key in (("A", "graded_a"), ("B", "graded_b"))
        if result[key][0] < result[key][1]
    ]
    if result["only_a"] or result["only_b"]:
        lines.append(
            f"{result['only_a']} problems are only in A and {result['only_b']} only in B; "
            f"only the {result['n']} common ones count"
        )
    few, many = sorted((result["samples_a"], result["samples_b"]))
    if many >= UNEQUAL * few:
        lines.append(
            f"p may be too small: with {few} and {many} samples per problem, the test finds differences that do not "
            f"exist more often than its level says, mainly on hard problems; evaluate both with {many}"
        )
    return lines


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("eval.compare", __doc__)
    parser.add_argument("a", type=Path, metavar="A")
    parser.add_argument("b", type=Path, metavar="B")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    try:
        result = compare_evaluations(read_grades(options.a), read_grades(options.b))
        result["differing"] = find_differences(options.a, options.b)
        result["settings"] = find_differences_of_runs(options.a, options.b)
        if result["samples_a"] != result["samples_b"]:
            result["differing"].append(f"n (samples per problem: {result['samples_a']} and {result['samples_b']})")
    except (UserError, OSError) as error:
        print(f"eval.compare: {error}", file=sys.stderr)
        return 2
    for warning in warnings(result):
        print(f"eval.compare: warning: {warning}", file=sys.stderr)
    print(json.dumps(result, indent=2) if options.json else "\n".join(describe(result)))
    return 0


if __name__ == "__main__":
    command.run(main)
