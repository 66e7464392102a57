r"""Powers of matrices are computed, inverses too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .verdicts import both

SHEAR = r"\begin{pmatrix}1&1\\0&1\end{pmatrix}"


def matrix(*rows: tuple[object, ...]) -> str:
    return r"\begin{pmatrix}" + r"\\".join("&".join(map(str, row)) for row in rows) + r"\end{pmatrix}"


@given(st.integers(0, 3000))
def test_the_power_of_a_shear_is_a_shear(exponent: int) -> None:
    assert both(f"{SHEAR}^{{{exponent}}}", matrix((1, exponent), (0, 1)))
    assert both(f"{SHEAR}^{{-{exponent}}}", matrix((1, -exponent), (0, 1)))
    assert not both(f"{SHEAR}^{{{exponent}}}", matrix((1, exponent + 1), (0, 1)))


@given(st.lists(st.integers(-9, 9), min_size=4, max_size=4))
def test_an_inverse_exists_where_the_determinant_is_not_zero(cells: list[int]) -> None:
    a, b, c, d = cells
    determinant = a * d - b * c
    power = matrix((a, b), (c, d)) + "^{-1}"
    if determinant:
        adjugate = matrix((d, -b), (-c, a))
        assert both(power, f"\\frac{{1}}{{{determinant}}}" + adjugate)
    else:
        assert not both(power, matrix((0, 0), (0, 0))) and not both(power, matrix((1, 0), (0, 1)))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2" + SHEAR + "^2", matrix((2, 4), (0, 2))),
        (SHEAR + "^2" + SHEAR, matrix((1, 3), (0, 1))),
        (SHEAR + "^2+" + SHEAR, matrix((2, 3), (0, 2))),
        (r"\left(\begin{array}{cc}1&1\\0&1\end{array}\right)^{3}", r"\begin{bmatrix}1&3\\0&1\end{bmatrix}"),
        (matrix((0, "a"), (1, 0)) + "^2", matrix(("a", 0), (0, "a"))),
        (matrix((0, 1), (1, 0)) + "^{-1}", matrix((0, 1), (1, 0))),
    ],
)
def test_powers_are_factors_and_terms(first: str, second: str) -> None:
    assert both(first, second)


def test_a_power_without_a_value_equals_nothing() -> None:
    assert not both(matrix((1, 2)) + "^2", matrix((1, 4)))
    assert not both(matrix((2, 1), (1, 1)) + "^{9999}", matrix((1, 4), (1, 1)))
