import pytest

from eval.problems import EvalProblem


@pytest.fixture
def problems() -> list[EvalProblem]:
    """Three problems with the answers 10, 11 and 12."""
    return [EvalProblem(f"p{number}", f"What is {number} plus 10?", str(10 + number), "sums") for number in range(3)]
