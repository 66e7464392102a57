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
from grpo.stack.problem import UserError

DEFAULT_EVAL_FRACTION = 0.2
MATH_LEVELS = (4, 5)
DEFAULT_MATH_COUNT = 45


def is_in_aime_eval(year: int, contest: int, number: int) -> bool:
    """Say whether a problem is held out; the rule is in the module's docstring."""
    third, within = divmod(number - 1, 5)
    return within == (2 * year + contest + 3 * third) % 5


def choose_balanced(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Return `count` problems, or all if there are fewer, in turns from each level and subject, lowest digest first.

    The turns go diagonally over levels and subjects. If they end within a round, the levels differ by at most one (as
    long as no level and subject runs out).
    """
    cells: dict[tuple[int, str], list[Problem]] = defaultdict(list)
    for problem in problems:
        cells[problem.level or 0, problem.subject or ""].append(problem)
    levels, subjects = (sorted({cell[i] for cell in cells}) for i in (0, 1))

    def turn(cell: tuple) -> tuple[int, int]:
        level, subject = levels.index(cell[0]), subjects.index(cell[1])
        return (level - subject) % len(levels), subject

    ranked = sorted(
        (rank, turn(cell), problem.digest, problem.id, problem)
        for cell, members in cells.items()
        for rank, problem in enumerate(sorted(members, key=lambda one: (one.digest, one.id)))
    )
    return [problem for *_, problem in ranked[: max(count, 0)]]


def choose_math(
    problems: Sequence[Problem], count: int | None, levels: Sequence[int] = MATH_LEVELS
) -> tuple[list[Problem], dict[str, int]]:
    """Leave out problems with another level than `levels`, and take `count` of the rest (None: all).

    Problems without a level are kept. Returns the problems, and how many were left out, by reason.
    """
    without_level = [problem for problem in problems if problem.level is None]
    hard = [problem for problem in problems if problem.level in levels]
    chosen = hard if count is None else choose_balanced(hard, count)
    left_out = {
        f"another level than {_join_levels(levels)}": len(problems) - len(without_level) - len(hard),
        f"beyond the {count} of MATH": len(hard) - len(chosen),
    }
    return without_level + chosen, left_out


def _join_levels(levels: Sequence[int]) -> str:
    return " and ".join(map(str, sorted(levels)))


def split(problems: Sequence[Problem], eval_fraction: float | None) -> list[Problem]:
    """Return the problems with their split. With an eval_fraction, AIME is split like everything else.

    Raises UserError if the fraction is not between 0 and 1.
    """
    fraction = DEFAULT_EVAL_FRACTION if eval_fraction is None else eval_fraction
    if not 0 < fraction < 1:
        raise UserError(f"--eval-fraction is {fraction:g}", "give a number between 0 and 1")
    by_place = [one for one in problems if one.paper and eval_fraction is None]
    others = [one for one in problems if not one.paper or eval_fraction is not None]
    held_out = {one.id for one in by_place if one.paper and is_in_aime_eval(*one.paper)}
    held_out |= {one.id for one in choose_balanced(others, round(fraction * len(others)))}
    return [replace(one, split="eval" if one.id in held_out else "train") for one in problems]


def describe(
    problems: Sequence[Problem],
    eval_fraction: float | None,
    math_count: int | None,
    levels: Sequence[int] = MATH_LEVELS,
) -> list[str]:
    """Return the rules that apply to these problems before they are split, in words for the card."""
    rules = []
    if any(one.level is not None for one in problems):
        number = "all" if math_count is None else f"up to {math_count}"
        rules.append(
            f"MATH: {number} of levels {_join_levels(levels)}, in turns from each level and subject, lowest SHA-256 "
            "first"
        )
    by_rule = [one for one in problems if one.split is None]
    by_place = [one for one in by_rule if one.paper and eval_fraction is None]
    fraction = DEFAULT_EVAL_FRACTION if eval_fraction is None else eval_fraction
    if by_place:
        rules.append("split of AIME: three problems of each paper for eval, by contest place")
    if len(by_place) < len(by_rule):
        rules.append(f"split by content: {fraction:g} for eval, in turns from each level and subject, lowest SHA-256")
    return rules
