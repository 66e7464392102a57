from itertools import islice

import pytest

from data import synthetic


def recompute(question):
    """Compute the answer from the text of the question."""
    _, _, first, operation, second = question.rstrip("?").split()
    return int(first) + int(second) if operation == "plus" else int(first) - int(second)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_answers_follow_from_the_question_and_are_0_to_999(split):
    problems = list(islice(synthetic.problems(split, 3), 500))
    assert {p.operation for p in problems} == {"plus", "minus"}
    answers = [p.answer for p in problems]
    assert min(answers) < 50 and max(answers) > 950
    for problem in problems:
        assert problem.answer == recompute(problem.question)
        assert 0 <= problem.answer <= 999


def test_same_seed_same_problems_and_another_seed_others():
    first, again, other = (list(islice(synthetic.problems("train", s), 50)) for s in (1, 1, 2))
    assert first == again != other


def test_splits_share_no_problem():
    train, held_out = (synthetic.distinct_problems(split, 2000) for split in ("train", "eval"))
    assert len({p.question for p in train}) == len({p.question for p in held_out}) == 2000
    assert not {p.question for p in train} & {p.question for p in held_out}
