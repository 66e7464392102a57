r"""The text before `=` in an answer: a name, a constant that must be equal, or an unsolved equation."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.answers import grade

NAMES = re.split(
    ";",
    r"m+n;x;a_{10};x_1;f(10);f(2,3);f(f(2));P(A);P(X=3);P(A\cap B);f'(2);f^{-1}(3);AB;AB^2;AB+CD;AB\cdot CD;"
    r"\frac{AB}{CD};"
    r"AB/CD;[ABC];\frac{[ABC]}{[DEF]};\angle ABC;m\angle A;\triangle ABC;\text{Area};\text{Area of }\triangle ABC;"
    r"\text{Area}(ABC);\operatorname{Area}(ABC);the area;area;Total;\text{the area};\overline{AB};\overline{abc};|S|;"
    r"|A\cup B|;|z|^2;|z-w|^{2};mn;abc;xyz;100m+n;100m+10n;p+q+r;a-b;\frac{m}{n};\frac{a+b}{c};m^2+n^2;\alpha+\beta;"
    r"\theta;\varphi(n);\sum_{k} a_k;\lfloor 100x\rfloor;N \bmod 1000;N_{\max};S_n;(m+n);\mathcal{A};x_1+x_2;x_1x_2;"
    r"S = \frac{n(n+1)}{2};x = 2y;x=3\cdot 68;\text{Total number of ways};\lambda_1",
)
CONSTANTS = re.split(
    ";",
    r"3\cdot 68;204;2+202;2^2\cdot 51;\sqrt{41616};\frac{408}{2};\binom{204}{1};\log_2 2^{204};|{-204}|;\gcd(408,612)",
)
EQUATIONS = re.split(
    ";",
    r"x^2;2x;81x;205x;x+1;2x+1;x+x;x^2+x;x(x+1);n(n+1);2^n;n!;\log x;\log_2 n;\ln x;\sqrt{x};\frac{x}{2};x/2;"
    r"\frac{1}{x};"
    r"-x;2xy;x^2y;x^{3};\sin x;x=205;205=x;x=\sqrt{205};x=205y;(x,y);x+1=2x;e^x;34 \quad x;x\cdot x;xx;\frac{2x}{3};"
    r"a+b+1;2^{n+1};x^n;\{x\};10x;1.5x;-2x;x!",
)
FORMS = ["\\boxed{{{} = {}}}", "\\boxed{{{}={}}}", "The answer is ${} = {}$."]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES + CONSTANTS)
def test_a_name_or_a_true_constant_is_read(name: str, form: str) -> None:
    assert grade(form.format(name, 204), "204").correct
    assert not grade(form.format(name, 204), "205").correct


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("left", EQUATIONS)
def test_unsolved_equation_is_not_an_answer(left: str, form: str) -> None:
    assert not grade(form.format(left, 204), "204").correct


@pytest.mark.parametrize("constant", CONSTANTS)
@pytest.mark.parametrize("wrong", [205, 2])
def test_a_wrong_statement_about_numbers_is_not_paid(constant: str, wrong: int) -> None:
    assert not grade(f"\\boxed{{{constant} = {wrong}}}", str(wrong)).correct
    assert not grade(f"\\boxed{{m+n = {constant} = {wrong}}}", str(wrong)).correct


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 1000))
def test_a_sum_is_right_if_it_is_true(first: int, second: int, said: int) -> None:
    text = f"\\boxed{{{first}+{second}={said}}}"
    assert grade(text, str(said)).correct == (first + second == said)


@given(st.integers(2, 99), st.sampled_from("abkmnxyz"), st.integers(1, 999))
def test_multiple_of_an_unknown_is_not_an_answer(coefficient: int, unknown: str, said: int) -> None:
    assert not grade(f"\\boxed{{{coefficient}{unknown}={said}}}", str(said)).correct
    assert not grade(f"\\boxed{{{unknown}^{{{coefficient}}}={said}}}", str(said)).correct


def test_the_number_may_come_first() -> None:
    assert grade("\\boxed{204 = m+n}", "204").correct and grade("\\boxed{204 = x}", "204").correct
    assert not grade("\\boxed{204 = 2x}", "204").correct


TRIGONOMETRY = [
    r"\tan\theta",
    r"\cos A",
    r"\sin\angle BAC",
    r"\cos^2\theta",
    r"\tan(A+B)",
    r"\sin 2\theta",
    r"\cos(\angle A)",
]
COUNTS = [
    r"\#S", r"E[X]", r"\mathbb{E}[X]", r"\lim_{x\to0}\frac{f(x)}{x}", r"\int_0^1f(x)\,dx", r"\sum_{d\mid n}d",
    r"\max_{x\in S}f(x)",
]  # fmt: skip
GOLDS = [r"\frac12", r"\sqrt2", r"\frac{\pi^2}6", "-\\frac72", "0.35", "1+\\sqrt3", "2\\pi", r"\frac{5}{2}\text{ cm}"]


@pytest.mark.parametrize("gold", GOLDS)
@pytest.mark.parametrize("name", NAMES[::4] + TRIGONOMETRY + COUNTS)
def test_the_number_may_be_any_constant(name: str, gold: str) -> None:
    said = FORMS[len(name) % 3].format(name, gold)
    assert grade(said, gold).correct and not grade(said, "\\frac34").correct


@pytest.mark.parametrize("gold", GOLDS[:3])
@pytest.mark.parametrize("left", [left for left in EQUATIONS if left[0] not in "(\\" or left[1] not in "x{"])
def test_unsolved_equation_is_not_a_constant(left: str, gold: str) -> None:
    assert not grade(f"\\boxed{{{left} = {gold}}}", gold).correct


@pytest.mark.parametrize("name", TRIGONOMETRY + COUNTS + [r"\binom{n}{2}"])
def test_counts_and_angles_are_names_of_integers(name: str) -> None:
    assert grade(f"\\boxed{{{name}=1204}}", "1204").correct and not grade(f"\\boxed{{{name}=1204}}", "1205").correct


@pytest.mark.parametrize(
    ("content", "gold", "correct"),
    [
        (r"\frac24=\frac12", r"\frac12", True), (r"x=\frac24=\frac12", r"\frac12", True),
        (r"\sin 30^\circ=\frac12", r"\frac12", True), (r"\frac34=\frac12", r"\frac12", False),
        (r"x=\frac34=\frac12", r"\frac12", False), (r"\log_23=\frac12", r"\frac12", False),
        (r"y=f(x)=x^2", "x^2", True), (r"f(x)=x(x+1)=x^2+x", "x^2+x", True), (r"y=2x=x^2", "x^2", False),
        (r"A=\pi r^2=4\pi", r"4\pi", True), ("0=x^2", "x^2", False), ("2y=x^2", "x^2", False),
        (r"\lim_{x\to0}\frac{\sin x}{x}=1", "1", True), (r"\sqrt2=1.414", "1.414", False),
        (r"x+y=\frac12", r"\frac12", True), (r"\sin x=\frac12", r"\frac12", False),
        (r"\sqrt2\quad x=\frac12", r"\frac12", False), (r"x=1,y=2", "2", False), ("A\\cup B=[0,1]", "[0,1]", False),
    ],
)  # fmt: skip
def test_every_statement_about_a_number_must_be_true(content: str, gold: str, correct: bool) -> None:
    assert grade(f"\\boxed{{{content}}}", gold).correct is correct
