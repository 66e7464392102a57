r"""Functions that are given by cases are equal if they are equal piece by piece."""

import pytest

from .verdicts import both

ABSOLUTE = r"\begin{cases} x & \text{if } x \ge 0 \\ -x & \text{if } x < 0 \end{cases}"
PARITY = r"\begin{cases}1&\text{if } n \text{ is even}\\0&\text{otherwise}\end{cases}"


@pytest.mark.parametrize(
    "same",
    [
        r"\begin{cases} -x, & x<0,\\ x, & x \geq 0.\end{cases}",
        r"\begin{cases}x&\text{for }0\le x\\-x&\text{when }x<0\end{cases}",
        r"\left\{\begin{array}{ll} x & \text{if } x\ge 0 \\ -x & \text{if $x<0$}\end{array}\right.",
        r"\begin{cases} 2x-x & \text{if } x \ge 0 \\ x(-1) & \text{if } 0>x \end{cases}",
        r"\begin{cases} x & x \in [0,\infty) \\ -x & \text{if } x < 0 \end{cases}",
        r"\begin{cases} x & \mbox{if } x \ge 0 \\ -x & \mbox{if } x < 0 \end{cases}",
        r"f(x) = \begin{cases} x & x \ge 0 \\ -x & x < 0 \end{cases}",
    ],
)
def test_the_same_pieces_are_the_same_function(same: str) -> None:
    assert both(same, ABSOLUTE)


@pytest.mark.parametrize(
    "other",
    [
        r"\begin{cases} x & x > 0 \\ -x & x<0\end{cases}",
        r"\begin{cases} x & x < 0 \\ -x & x\ge 0\end{cases}",
        r"\begin{cases} x & x \ge 0\end{cases}",
        r"\begin{cases} x & x \ge 0 \\ -x & x<0\\ 0 & x=7\end{cases}",
        r"\begin{cases} x & x \ge 0 \\ -2x & x<0\end{cases}",
        r"\begin{pmatrix} x & x\ge0\\-x&x<0\end{pmatrix}",
        "x", "-x", "x,-x",
    ],
)  # fmt: skip
def test_other_pieces_are_another_function(other: str) -> None:
    assert not both(other, ABSOLUTE)


def test_conditions_may_be_words() -> None:
    assert both(r"\begin{cases}0&\text{otherwise}\\1&\text{if $n$ is even}\end{cases}", PARITY)
    assert both(r"\begin{cases}1,&n \text{ is even,}\\0,&\text{else.}\end{cases}", PARITY)
    assert not both(r"\begin{cases}0&\text{if $n$ is even}\\1&\text{otherwise}\end{cases}", PARITY)
    assert not both(r"\begin{cases}1&\text{if $n$ is odd}\\0&\text{otherwise}\end{cases}", PARITY)


def test_equations_without_conditions_are_a_list() -> None:
    assert both(r"\begin{cases}x=1\\y=2\end{cases}", "x=1,y=2") and both(r"\begin{cases}x=1\\y=2\end{cases}", "(1,2)")
    assert not both(r"\begin{cases}x=1\\y=2\end{cases}", "(2,1)")
