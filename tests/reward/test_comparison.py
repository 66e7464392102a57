"""Equal and unequal answers, through the real worker."""

import pytest

from reward import equivalence
from reward.expression import is_absurd

from .pairs import EQUAL, UNEQUAL
from .verdicts import is_equal


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_equal_answers(a: str, b: str) -> None:
    assert is_equal(a, b)


@pytest.mark.parametrize(("a", "b"), UNEQUAL)
def test_unequal_answers(a: str, b: str) -> None:
    assert not is_equal(a, b)


def test_no_pair_of_the_tables_hangs() -> None:
    equivalence.pool.verdicts.clear()
    before = equivalence.pool.counts.copy()
    for a, b in EQUAL + UNEQUAL:
        equivalence.equal(a, b)
    after = equivalence.pool.counts
    assert [after[how] - before[how] for how in ("hung", "died")] == [0, 0]


@pytest.mark.parametrize(
    "text",
    ["9^{9^9}", "9^9^9", "9^{9^{9^{9}}}", "x^{99999}", "((9!)!)!", "99999!", "2^{(3^{99})}", "x^x^x^x",
     r"\exp(\exp(\exp(99)))", r"\exp{(e^{\exp 9})}", "(((x+1)^{99})^{99})^{99}", "\\left((2^{99})^{99}\\right)",
     r"\sinh(\cosh(\sinh 9))"],
)  # fmt: skip
def test_absurd_sizes_are_detected(text: str) -> None:
    assert is_absurd(text)


@pytest.mark.parametrize(
    "text",
    ["2^{2^{3}}", "e^{x^2}", "5^{12}", "2^{2009}", "(2n)!", "10!", "x^{10}", "e^{e^{x}}", "((x+1)^{2})^{3}",
     "(x+1)^{50}(x+2)^{50}(x+3)^{50}", "2^{100}3^{100}5^{100}", r"e^{x}+e^{2x}+e^{3x}+\exp(y)", "((a^{b})^{c})^{d}"],
)  # fmt: skip
def test_usual_sizes_are_not_absurd(text: str) -> None:
    assert not is_absurd(text)
