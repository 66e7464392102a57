import pytest

from eval.problems import Problem


@pytest.fixture
def problems() -> list[Problem]:
    """Three problems with the answers 10, 11 and 12."""
    return [Problem(f"p{number}", f"What is {number} plus 10?", str(10 + number), "sums") for number in range(3)]
