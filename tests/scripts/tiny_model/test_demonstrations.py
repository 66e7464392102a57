"""What the tiny model is shown."""

import pytest

from data.synthetic import distinct_problems
from scripts.tiny_model import demonstrations
from scripts.tiny_model.accuracy import is_correct


def test_careful_demonstrations_are_right_and_careless_ones_are_not():
    problems = distinct_problems("train", 200)
    for problem in problems:
        shown = {h: demonstrations.completion(problem, h) for h in demonstrations.HABITS}
        assert is_correct(problem, shown["careful"])
        assert not any(is_correct(problem, text) for habit, text in shown.items() if habit != "careful")
        for text in demonstrations.working(problem).split(","):
            left, right = text.split("=")
            assert eval(left) == int(right)
    assert sum(demonstrations.HABITS.values()) == pytest.approx(1)
