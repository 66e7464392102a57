"""Compare two evaluations on the same problems: is B better than A, and which gain could these problems detect?

    python -m eval.compare A B [--json]

A and B are folders of `python -m eval.evaluate`, or files of graded samples such as RUN_DIR/samples/eval_0.jsonl. It
prints the difference of the exact match (B - A) with its 95% interval, paired by problem; the p-value of a two-sided
permutation test over problems; and the smallest gain that such a comparison detects with 80% power at 5%. The interval
and the test are different methods: in a close case they may disagree.

Exit code: 0 done, 2 the two cannot be compared.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from eval.output import CONFIG, GRADES, read_config, read_records
from grpo.run import estimators
from grpo.run.records import correct_by_problem
from grpo.stack import command
from grpo.stack.problem import UserError


def compare(a: dict[str, list[float]], b: dict[str, list[float]]) -> dict[str, Any]:
    """Return the comparison of two evaluations.

    - ``a``, ``b``: exact match on the shared problems; ``n``: their number; ``only_a``, ``only_b``: number of the
      others.
    - ``difference``: b - a, with ``ci_low`` and ``ci_high`` (95%), and ``p_value``.
    - ``better``, ``worse``: problems that b solves more often than a, or less often.
    - ``samples_a``, ``samples_b``: graded samples per problem, at most.
    - ``detectable``: the smallest gain over a with about 80% power at 5%; None if it exceeds 1 - a.

    Args:
        a, b: grades, 1.0 or 0.0, of each problem's samples by its id.

    Raises:
        UserError: if they share no problem.
    """
    shared = [problem for problem in a if problem in b]
    if not shared:
        raise UserError("A and B have no problem in common", "evaluate both on one data set")
    rates_a, rates_b = ([statistics.fmean(grades[problem]) for problem in shared] for grades in (a, b))
    differences = [right - left for left, right in zip(rates_a, rates_b, strict=True)]
    draws = min(len(shared) / sum(1 / len(grades[problem]) for problem in shared) for grades in (a, b))
    low, high = estimators.difference_interval(rates_a, rates_b, draws)
    mean_a = statistics.fmean(rates_a)
    return {
        "a": mean_a,
        "b": statistics.fmean(rates_b),
        "difference": statistics.fmean(differences),
        "ci_low": low,
        "ci_high": high,
        "p_value": estimators.sign_flip_p_value(differences),
        "detectable": estimators.detectable_difference(differences, low, high, draws, room=1 - mean_a),
        "n": len(shared),
        "samples_a": max(len(a[problem]) for problem in shared),
        "samples_b": max(len(b[problem]) for problem in shared),
        "better": sum(difference > 0 for difference in differences),
        "worse": sum(difference < 0 for difference in differences),
        "only_a": len(a.keys() - b.keys()),
        "only_b": len(b.keys() - a.keys()),
    }


def read_grades(path: Path) -> dict[str, list[float]]:
    """Return the grades of each problem's samples.

    Raises:
        UserError: if there is no finished evaluation.
    """
    if path.is_dir():
        read_config(path)
        if not (path / GRADES).is_file():
            raise UserError(f"{path} is not finished", "continue it with the command that started it")
        path = path / GRADES
    return correct_by_problem(read_records(path))


def differing_settings(a: Path, b: Path) -> list[str]:
    """Return the names of the settings in which two evaluations differ, if both have a config.json."""
    if not all((path / CONFIG).is_file() for path in (a, b)):
        return []
    old, new = (read_config(path)["identity"] for path in (a, b))
    return [name for name in {**old, **new} if old.get(name) != new.get(name)]


def describe(result: dict[str, Any]) -> list[str]:
    """Return a comparison as lines for display."""
    detectable = result["detectable"]
    lines = [
        f"A {result['a']:.3f}, B {result['b']:.3f} exact match on {result['n']} problems: "
        f"{result['better']} better in B, {result['worse']} worse",
        f"B - A = {result['difference']:+.3f}, 95% interval [{result['ci_low']:+.3f}, {result['ci_high']:+.3f}], "
        f"p = {result['p_value']:.2g}",
        f"these problems cannot detect any gain with 80% power at 5%: A leaves room for {1 - result['a']:.3f}"
        if detectable is None
        else f"the smallest gain that these problems detect with 80% power at 5% is {detectable:.3f}",
    ]
    if result["differing"]:
        lines.append(f"they differ in {', '.join(result['differing'])}")
    return lines


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    assert __doc__
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m eval.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", type=Path, metavar="A")
    parser.add_argument("b", type=Path, metavar="B")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    try:
        result = compare(read_grades(options.a), read_grades(options.b))
        result["differing"] = differing_settings(options.a, options.b)
        if result["samples_a"] != result["samples_b"]:
            result["differing"].append(f"n (samples per problem: {result['samples_a']} and {result['samples_b']})")
    except UserError as error:
        print(f"eval.compare: {error}", file=sys.stderr)
        return 2
    if result["only_a"] or result["only_b"]:
        print(
            f"eval.compare: warning: {result['only_a']} problems are only in A and {result['only_b']} only in B; "
            f"only the {result['n']} common ones count",
            file=sys.stderr,
        )
    print(json.dumps(result, indent=2) if options.json else "\n".join(describe(result)))
    return 0


if __name__ == "__main__":
    command.run(main)
