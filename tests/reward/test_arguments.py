r"""LaTeX has several forms of an argument: each equals its fully braced form, and no other."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.answers import grade
from reward.arguments import brace
from reward.notation import spell, squeeze

# What an argument is, and how else than in braces it can be given.
ARGUMENTS = {
    "1": ["1", " 1"],
    "9": ["9", " 9", " { 9 }"],
    "x": [" x", " {x}"],
    "19": ["{19}", " { 19 }"],
    "x+1": ["{x+1}", "{ x + 1 }"],
    "\\pi": ["\\pi ", " \\pi ", "{\\pi}"],
    "\\sqrt{2}": ["\\sqrt2", "\\sqrt 2", "\\sqrt{2}", "{\\sqrt2}"],
    "\\frac{1}{3}": ["\\frac13", "\\frac1{3}", "{\\frac{1}3}", "\\dfrac 1 3"],
}
PAIRS = list(product(ARGUMENTS, repeat=2))


def squeeze_spelling(text: str) -> str:
    return squeeze(spell(text))


def is_graded_alike(answer: str, gold: str) -> bool:
    return grade(f"\\boxed{{{answer}}}", gold).correct and grade(f"\\boxed{{{gold}}}", answer).correct


@pytest.mark.parametrize("command", ["\\frac", "\\dfrac", "\\tfrac", "\\cfrac", "\\binom", "\\dbinom"])
def test_two_arguments_in_any_form(command: str) -> None:
    for above, below in PAIRS:
        full = f"{command}{{{above}}}{{{below}}}"
        for first, second in product(ARGUMENTS[above], ARGUMENTS[below]):
            assert squeeze_spelling(f"{command}{first}{second}") == squeeze_spelling(full)
            assert is_graded_alike(f"{command}{first}{second}", full)


@pytest.mark.parametrize("command", ["\\sqrt", "\\sqrt[3]", "\\sqrt [3] ", "x^", "x_", "x ^ ", "e_1^", "\\overline"])
def test_one_argument_in_any_form(command: str) -> None:
    for argument, forms in ARGUMENTS.items():
        full = f"{command}{{{argument}}}+y"
        assert all(squeeze_spelling(f"{command}{form}+y") == squeeze_spelling(full) for form in forms)


def test_other_arguments_are_other_answers() -> None:
    """The spelled text has all of its braces, so that it is equal for equal arguments only."""
    fulls = {squeeze_spelling(f"\\frac{{{above}}}{{{below}}}") for above, below in PAIRS}
    assert len(fulls) == len(PAIRS)
    for command in ("\\sqrt", "x^", "x_"):
        for one, other in combinations(ARGUMENTS, 2):
            assert squeeze_spelling(command + ARGUMENTS[one][0]) != squeeze_spelling(command + ARGUMENTS[other][0])


@pytest.mark.parametrize(
    ("gold", "answer", "other"),
    [
        ("\\frac9{19}", "9/19", "18"),
        ("\\frac1{512}", "2^{-9}", "12/5"),
        ("\\frac1{x+1}", "\\frac{1}{1+x}", "\\frac{1}{x}+1"),
        ("\\frac{17}3", "5\\frac23", "\\frac{1}{7}3"),
        ("\\frac{2}\\sqrt12", "\\frac{1}{\\sqrt3}", "\\frac{2}{\\sqrt1}2"),
        ("\\frac\\sqrt21", "\\sqrt2", "\\sqrt{21}"),
        ("\\frac123", "\\frac32", "\\frac{1}{23}"),
        ("\\frac1\\sqrt2", "\\frac{\\sqrt2}2", "\\frac12"),
        ("\\frac\\pi2", "0.5\\pi", "\\pi"),
        ("3^\\frac12", "\\sqrt3", "\\frac32"),
        ("2^10", "1024", "20"),
        ("10^-2", "0.01", "-20"),
        ("\\sqrt12", "2\\sqrt3", "2"),
        ("2^(x+1)", "2\\cdot2^x", "2^x+1"),
        ("\\sqrt(x+1)", "\\sqrt{1+x}", "\\sqrt{x}+1"),
        ("\\log_28", "3", "\\log_{28}1"),
        ("\\log_10(x)", "\\log_{10}x", "0"),
        ("x^\\pi y", "yx^{\\pi}", "x^{\\pi y}"),
        ("x^2y", "yx^2", "x^{2y}"),
    ],
)
def test_answers_that_equal_the_gold(gold: str, answer: str, other: str) -> None:
    assert is_graded_alike(answer, gold)
    assert not grade(f"\\boxed{{{other}}}", gold).correct


def _list_bare_forms(argument: str, is_greedy: bool, is_last: bool) -> list[str]:
    r"""Forms that may replace `{argument}`. A blank ends a macro's name and may precede any argument.

    In `\frac \sqrt 12` two is the denominator, so the first of two arguments has its numbers in braces.
    """
    forms = [f"{{{argument}}}", f" {{ {argument} }}"]
    if not is_last and "12" in argument:
        return forms
    is_single = len(argument) == 1 or (argument.startswith("\\") and "+" not in argument)
    if is_single or (is_greedy and argument.isdigit()):
        forms += [f" {argument} " if argument[-1].isalpha() else f" {argument}"]
    return forms


atoms = st.sampled_from(["2", "7", "12", "x", "n", "\\pi"]).map(lambda atom: (atom, atom))


def _larger(inner: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    """Pairs of an expression with all braces, and the same one with some of them."""

    @st.composite
    def command(draw: st.DrawFn) -> tuple[str, str]:
        name, count = draw(st.sampled_from([("\\frac", 2), ("\\sqrt", 1), ("\\sqrt[3]", 1), ("y^", 1), ("a_", 1)]))
        full = some = name
        for index in range(count):
            argument, written = draw(inner)
            full += f"{{{argument}}}"
            some += draw(st.sampled_from(_list_bare_forms(written, name != "\\frac", index == count - 1)))
        return full, some

    sums = st.tuples(inner, inner).map(lambda two: (f"{two[0][0]}+{two[1][0]}", f"{two[0][1]} + {two[1][1]}"))
    return command() | sums


@given(st.recursive(atoms, _larger, max_leaves=6), st.recursive(atoms, _larger, max_leaves=6))
def test_any_expression_is_its_fully_braced_form(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert squeeze_spelling(one[1]) == squeeze_spelling(one[0])
    assert (squeeze_spelling(one[1]) == squeeze_spelling(other[1])) == (one[0] == other[0])


PIECES = [
    "\\frac", "\\sqrt", "\\text{", "^", "_", "{", "}", "(", ")", "[", "]", "1", "23", ".5", "x", "+", "-",
    "\\pi", ",", " ",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_bracing_twice_changes_nothing_and_raises_nothing(text: str) -> None:
    assert brace(brace(text)) == brace(text)


@pytest.mark.parametrize("piece", ["\\frac", "\\sqrt", "x^", "2^(", "2^{", "\\frac1", "x_{a", "^-"])
def test_deep_nesting_is_left_as_it_is(piece: str) -> None:
    text = piece * 300
    assert len(brace(text)) <= 3 * len(text)
    assert not grade(f"\\boxed{{{text}1}}", "1").correct
