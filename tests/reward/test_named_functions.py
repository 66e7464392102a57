r"""Logarithms, greatest common divisors and least common multiples as they are written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.answers import grade

from .verdicts import both


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"\log^2_2(3)", r"(\log_2 3)^2"),
        (r"\log^2_2 3", r"\log_2^2 3"),
        (r"\log^2_2(8)", "9"),
        (r"\lg 100", "2"),
        (r"\lg(1000)", "3"),
        (r"\lg 2", r"\log_{10} 2"),
        (r"\lg{2}", r"\log_{10} 2"),
        (r"\lg^2 100", "4"),
        (r"\frac{\ln 2}{\ln 10}", r"\lg 2"),
        (r"2\lg 5", r"\lg 25"),
        (r"\lg x^2", r"\log_{10} x^2"),
        (r"\gcd(a,b)", r"\gcd(a,b)"),
        (r"\gcd(12,18)\cdot x", "6x"),
        (r"\gcd(\operatorname{lcm}(4,6),18)", "6"),
        (r"\gcd(12,18)^2", "36"),
        (r"\frac{\gcd(12,18)}{5}", r"\frac65"),
        (r"\gcd(12,18),5", "5,6"),
        (r"\gcd(12,18,27)", "3"),
    ],
)
def test_functions_are_read_as_a_mathematician_reads_them(first: str, second: str) -> None:
    assert both(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [(r"\log^2_2(3)", r"\log_2 9"), (r"\lg 2", r"\ln 2"), (r"\lg 100", "10"), (r"\gcd(a,b)", r"\gcd(a,c)")],
)
def test_functions_are_not_confused(first: str, second: str) -> None:
    assert not both(first, second)


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
        assert both(text, str(value)) and not both(text, str(value + 1))
        assert grade(f"\\boxed{{{text} = {value}}}", str(value)).correct


@pytest.mark.parametrize("upright", ["\\operatorname{%s}", "\\mathrm{%s}", "\\text{%s}", "\\operatorname{\\%s}"])
@pytest.mark.parametrize("name", ["sin", "sec", "arctan", "log", "ln"])
@pytest.mark.parametrize("argument", ["(x)", "^2(x)", "^{2}(x)+1"])
def test_a_name_in_an_upright_font_is_the_function(upright, name, argument):
    assert both(upright % name + argument, f"\\{name}{argument}")
    assert not both(upright % name + argument, f"\\cos{argument}")


def test_a_unit_is_no_function():
    assert both("5\\text{sec}", "5\\text{ seconds}")
