"""The rules that choose problems and split them; none draws at random or depends on the row order.

- AIME: each paper gives three of its 15 problems to eval, one of each third (easy, middle, hard). With
  k = (2 * year + contest) mod 5 these are 1 + k, 6 + (k + 3) mod 5, and 11 + (k + 1) mod 5. Thus five consecutive
  papers hold out every number once. Six papers give 72 and 18. A problem's split depends only on its place in the
  contest: a file with more years does not move it.
- Everything else: `choose_balanced` picks the share for eval (20% unless --eval-fraction says otherwise).
- MATH: problems of level 4 and 5 (or --levels), of which `choose_balanced` picks 45 unless --math-count says otherwise.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from data.problems import Problem

DEFAULT_EVAL_FRACTION = 0.2
MATH_LEVELS = (4, 5)


def is_in_aime_eval(year: int, contest: int, number: int) -> bool:
    """Say whether a problem is held out; the rule is in the module's docstring."""
    third, within = divmod(number - 1, 5)
    return within == (2 * year + contest + 3 * third) % 5


def choose_balanced(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Return `count` problems, or all if there are fewer, in turns from each level and subject, lowest digest first."""
    cells: dict[tuple[int | None, str | None], list[Problem]] = defaultdict(list)
    for problem in sorted(problems, key=lambda one: (one.digest, one.id)):
        cells[problem.level, problem.subject].append(problem)
    turns = {one: turn for members in cells.values() for turn, one in enumerate(members)}
    return sorted(problems, key=lambda one: (turns[one], one.digest, one.id))[:count]


def choose_math(problems: Sequence[Problem], count: int, levels: Sequence[int]) -> tuple[list[Problem], dict[str, int]]:
    """Leave out problems with another level than `levels`, and take `count` of the rest.

    Problems without a level are kept. Returns the problems, and how many were left out, by reason.
    """
    without_level = [problem for problem in problems if problem.level is None]
    hard = [problem for problem in problems if problem.level in levels]
    chosen = choose_balanced(hard, count)
    left_out = {
        f"another level than {' and '.join(map(str, levels))}": len(problems) - len(without_level) - len(hard),
        f"beyond the {count} of MATH": len(hard) - len(chosen),
    }
    return without_level + chosen, left_out


def split(problems: Sequence[Problem], eval_fraction: float | None) -> list[Problem]:
    """Return the problems with their split. With an eval_fraction, AIME is split like everything else."""
    by_place = [one for one in problems if one.paper and eval_fraction is None]
    others = [one for one in problems if not one.paper or eval_fraction is not None]
    count = round((DEFAULT_EVAL_FRACTION if eval_fraction is None else eval_fraction) * len(others))
    held_out = {one.id for one in by_place if one.paper and is_in_aime_eval(*one.paper)}
    held_out |= {one.id for one in choose_balanced(others, count)}
    return [replace(one, split="eval" if one.id in held_out else "train") for one in problems]
