"""Properties of grading: it is reflexive and symmetric, ignores ornaments, computes exactly, and never raises."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward import equivalence
from reward.answers import grade

from .pairs import SHEAR
from .verdicts import is_equal

numbers = st.integers(-99, 999).map(str) | st.sampled_from(
    ["0.25", "\\frac{3}{4}", "1\\frac12", "50\\%", "\\$3", "7_{12}"]
)
atoms = numbers | st.sampled_from(
    [
        "x",
        "y_1",
        "\\pi",
        "\\infty",
        "i",
        "I",
        "AB",
        "\\text{odd}",
        "3\\text{}",
        "3\\mathrm{}",
        "\\{1\\}",
        "½",
        "3\\text{ cm}",
        "45^\\circ",
        "\\emptyset",
    ]
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.builds(
            "{}{}{}".format,
            inner,
            st.sampled_from("+-*/^=<") | st.sampled_from(["\\pm ", "\\le ", "\\cup ", " or "]),
            inner,
        ),
        st.builds("{}{}{}".format, st.sampled_from("[("), several.map(",".join), st.sampled_from("])")),
        several.map(lambda parts: "\\{" + ", ".join(parts) + "\\}"),
        inner.map("\\sqrt{{{}}}".format),
        st.builds("\\frac{{{}}}{{{}}}".format, inner, inner),
        st.builds("\\begin{{pmatrix}}{}&{}\\end{{pmatrix}}".format, inner, inner),
    )


answers = st.recursive(atoms, _larger, max_leaves=4)


@given(answers)
def test_grading_is_reflexive(answer: str) -> None:
    assert is_equal(answer, answer)
    assert is_equal(answer, f" ${answer}$.")


@given(
    answers,
    st.sampled_from(
        ["\\mathbf{{{}}}", "\\large {}", "{{\\bf {}}}", "\\textcolor{{red}}{{{}}}", "{{}}{}", "{}\\blacksquare"]
    ),
)
def test_fonts_and_colours_are_ignored(answer: str, ornament: str) -> None:
    assert is_equal(answer, ornament.format(answer))


@settings(max_examples=60)
@given(answers, answers)
def test_grading_is_symmetric(a: str, b: str) -> None:
    """Except for the last side of an equation, which may be an answer but not a gold answer."""
    assert equivalence.equal(a, b) == equivalence.equal(b, a)


@settings(max_examples=300)
@given(
    answers | st.text(st.sampled_from("{}()[]\\,.^_+-=<>|!'% 019xfpi°½²₂"), max_size=30) | st.text(max_size=30),
    st.text(max_size=10),
)
def test_grading_raises_on_no_text(answer: str, gold: str) -> None:
    grade(f"\\boxed{{{answer}}}", gold), grade(f"\\boxed{{{gold}}}", answer)


@settings(max_examples=50)
@given(st.fractions(max_denominator=50), st.fractions(max_denominator=50))
def test_fractions_are_graded_by_their_value(a, b) -> None:
    spellings = [f"{a.numerator}/{a.denominator}", f"\\frac{{{a.numerator}}}{{{a.denominator}}}"]
    other = f"\\frac{{{3 * b.numerator}}}{{{3 * b.denominator}}}"
    assert all(is_equal(spelling, other) == (a == b) for spelling in spellings)


def format_matrix(*rows: tuple[object, ...]) -> str:
    return r"\begin{pmatrix}" + r"\\".join("&".join(map(str, row)) for row in rows) + r"\end{pmatrix}"


@given(st.integers(0, 3000))
def test_the_power_of_a_shear_is_a_shear(exponent: int) -> None:
    assert is_equal(f"{SHEAR}^{{{exponent}}}", format_matrix((1, exponent), (0, 1)))
    assert is_equal(f"{SHEAR}^{{-{exponent}}}", format_matrix((1, -exponent), (0, 1)))
    assert not is_equal(f"{SHEAR}^{{{exponent}}}", format_matrix((1, exponent + 1), (0, 1)))


@given(st.lists(st.integers(-9, 9), min_size=4, max_size=4))
def test_an_inverse_exists_where_the_determinant_is_not_zero(cells: list[int]) -> None:
    a, b, c, d = cells
    determinant = a * d - b * c
    power = format_matrix((a, b), (c, d)) + "^{-1}"
    if determinant:
        adjugate = format_matrix((d, -b), (-c, a))
        assert is_equal(power, f"\\frac{{1}}{{{determinant}}}" + adjugate)
    else:
        assert not is_equal(power, format_matrix((0, 0), (0, 0))) and not is_equal(power, format_matrix((1, 0), (0, 1)))


@given(
    st.lists(st.integers(1, 999), min_size=2, max_size=4),
    st.sampled_from(["\\{}", "\\operatorname{{{}}}", "\\mathrm{{{}}}", "\\text{{{}}}", "{}"]),
    st.sampled_from([",", ", "]),
    st.sampled_from(["({})", "\\left({}\\right)"]),
)
def test_divisors_and_multiples_of_integers_are_integers(
    numbers: list[int], form: str, comma: str, brackets: str
) -> None:
    for name, value in (("gcd", math.gcd(*numbers)), ("lcm", math.lcm(*numbers))):
        text = form.format(name) + brackets.format(comma.join(map(str, numbers)))
        assert is_equal(text, str(value)) and not is_equal(text, str(value + 1))
        assert grade(f"\\boxed{{{text} = {value}}}", str(value)).correct


@pytest.mark.parametrize("upright", ["\\operatorname{%s}", "\\mathrm{%s}", "\\text{%s}", "\\operatorname{\\%s}"])
@pytest.mark.parametrize("name", ["sin", "sec", "arctan", "log", "ln"])
@pytest.mark.parametrize("argument", ["(x)", "^2(x)", "^{2}(x)+1"])
def test_a_name_in_an_upright_font_is_the_function(upright, name, argument):
    assert is_equal(upright % name + argument, f"\\{name}{argument}")
    assert not is_equal(upright % name + argument, f"\\cos{argument}")
