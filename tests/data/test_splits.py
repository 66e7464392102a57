"""The rules that choose and split: balance, and independence of the order of rows."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import synthetic
from data.problems import Problem, assign_splits, choose_balanced, is_in_aime_eval
from tests.data.conftest import PAPERS

SUBJECTS = [f"subject {i}" for i in range(7)]


def make_math_problems(number: int, levels: tuple[int, ...] = (4, 5)) -> list[Problem]:
    """`number` problems of each level and subject."""
    return [
        Problem(f"{level} {subject} {i}", "1", "math", level=level, subject=subject)
        for level in levels
        for subject in SUBJECTS
        for i in range(number)
    ]


def make_aime_problems(years: tuple[int, ...] = (2022, 2023, 2024)) -> list[Problem]:
    papers = [(year, contest, number) for year in years for contest in (1, 2) for number in range(1, 16)]
    return [Problem(f"{paper}", "1", "aime", paper=paper) for paper in papers]


def test_the_aime_rule_is_balanced() -> None:
    held_out = [(y, c, n) for y, c in PAPERS for n in range(1, 16) if is_in_aime_eval(y, c, n)]
    turns = [(y, c, (2 * y + c) % 5) for y, c in PAPERS]
    assert held_out == [(y, c, n) for y, c, k in turns for n in (1 + k, 6 + (k + 3) % 5, 11 + (k + 1) % 5)]
    assert set(Counter((year, contest) for year, contest, _ in held_out).values()) == {3}
    thirds = Counter((year, contest, (number - 1) // 5) for year, contest, number in held_out)
    assert set(thirds.values()) == {1} and len(thirds) == 18
    assert set(Counter(number for _, _, number in held_out).values()) == {1, 2}
    # Five papers in a row hold out every number once.
    assert sorted(number for year, contest, number in held_out if (year, contest) != (2024, 2)) == list(range(1, 16))


def test_an_aime_problem_stays_in_its_split_when_others_are_added() -> None:
    some = {one.id: one.split for one in assign_splits(make_aime_problems((2023,)), None)}
    more = {
        one.id: one.split for one in assign_splits(make_aime_problems((2021, 2022, 2023)) + make_math_problems(3), None)
    }
    assert some.items() <= more.items()


@given(st.integers(0, 14 * 6), st.randoms())
def test_a_choice_is_balanced_in_levels_and_subjects(count: int, rng: random.Random) -> None:
    problems = make_math_problems(6)
    chosen = choose_balanced(problems, count)
    assert len(chosen) == count
    cells = Counter({(level, subject): 0 for level in (4, 5) for subject in SUBJECTS})
    cells.update((one.level, one.subject) for one in chosen)
    assert max(cells.values()) - min(cells.values()) <= 1
    assert {one.id for one in choose_balanced(rng.sample(problems, len(problems)), count)} == {one.id for one in chosen}


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_larger_choice_contains_the_smaller(a: int, b: int) -> None:
    small, large = ({one.id for one in choose_balanced(make_math_problems(2), count)} for count in sorted((a, b)))
    assert small <= large
    scarce = [one for one in make_math_problems(10) if one.subject != SUBJECTS[0] or one.text.endswith("0")]
    chosen = choose_balanced(scarce, 45)  # others fill up where a subject runs out
    assert len(chosen) == 45 and Counter(one.subject for one in chosen)[SUBJECTS[0]] == 2


def test_other_problems_are_split_by_a_balanced_fraction() -> None:
    problems = make_math_problems(5)
    held_out = [one for one in assign_splits(problems, None) if one.split == "eval"]
    assert Counter(one.subject for one in held_out) == dict.fromkeys(SUBJECTS, 2)
    assert len([one for one in assign_splits(problems + make_aime_problems(), 0.5) if one.split == "eval"]) == 80


def recompute(question):
    """Compute the answer from the text of the question."""
    _, _, first, operation, second = question.rstrip("?").split()
    return int(first) + int(second) if operation == "plus" else int(first) - int(second)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_answers_follow_from_the_question_and_are_0_to_999(split):
    problems, again = (synthetic.distinct_problems(split, 500) for _ in range(2))
    assert problems == again
    assert {question.split()[3] for question, _ in problems} == {"plus", "minus"}
    answers = [answer for _, answer in problems]
    assert min(answers) < 50 and max(answers) > 950
    for question, answer in problems:
        assert answer == recompute(question)
        assert 0 <= answer <= 999


def test_splits_share_no_problem():
    train, held_out = (
        {question for question, _ in synthetic.distinct_problems(split, 2000)} for split in ("train", "eval")
    )
    assert len(train) == len(held_out) == 2000 and not train & held_out
