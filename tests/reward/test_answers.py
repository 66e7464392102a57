"""Grading: which spellings are the same integer, and that no text breaks it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.answers import NO_FINAL, canonical, final_message, grade


@pytest.mark.parametrize(
    "box",
    [
        "33", "033", " 33 ", "33.0", "33.", "+33", "$33$", "\\$33", "33\\%", "33^\\circ", "33^{\\circ}",
        "33°", "33\\degree", "33 cm", "33cm^2", "33\\text{ cm}", "33\\text{ cm}^2", "33\\,\\mathrm{cm}^{2}",
        "33\\text{ m}", "33 degrees", "33\\text{ square units}", "\\text{33}", "\\textbf{033}",
        "\\boxed{33}", "33\\!", "33~", "\\,33\\;", "33\n", "\\mathrm{$33$}",
        "\\(33\\)", "33\\text{ students}", "33\\%.", "33 km",
        # fonts, colors, sizes and marks
        "\\mathbf{33}", "\\boldsymbol{33}", "\\underline{33}", "\\textcolor{red}{33}", "\\color{blue}33",
        "\\large 33", "{\\bf 33}", "{\\large{33}}", "\\textbf{\\underline{33}}", "\\mathbf{\\text{33}}",
        "33\\text{ }", "33\\text{}", "{}33", "33\\mathrm{}", "33\\blacksquare", "33~\\square", "33\\hspace{1cm}",
        "**33**", "33_{10}", "33_{\\text{ten}}", "\\textbf{(B) }33", "\\textbf{(B)}\\ 33", "\\text{(B)} \\quad 33",
        # characters
        "\uff13\uff13", "\u200b33\u200b", "3\u200b3", "\ufeff33", "\U0001d7d1\U0001d7d1", "33\uff05", "33\u00a0cm",
        "33℃",
        # units
        "33 solutions", "33 pairs", "33 ordered pairs", "33\\text{ such integers}", "33\\text{ positive divisors}",
        "33\\mathrm{~m}/\\mathrm{s}", "33\\text{ miles per hour}", "33\\text{ km/h}", "33^\\circ\\text{C}",
        "33\\text{ people}", "33\\text{ ways}", "33\\text{ vertices}", "33\\text{ cm}^{2}",
    ],
)  # fmt: skip
def test_spellings_of_one_integer_are_equal(box: str) -> None:
    result = grade(f"So it is \\boxed{{{box}}}.", "33")
    assert (result.correct, result.answer, result.reason) == (True, "33", None)
    assert grade("\\boxed{33}", box).correct  # golds are padded unevenly, too


THOUSANDS = [
    "1234", "1,234", "1{,}234", "1\\,234", "1\\ 234", "1,\\!234", "1\u2009234", "1\u202f234", "01,234.00", "12\u200b34",
]  # fmt: skip
ZEROS = ["0,204", "00,204", "000,204", "0 204", "0\\,204", "0{,}204", "0,\\!204", "+0,204"]


@pytest.mark.parametrize("box", THOUSANDS)
def test_thousands_separators(box: str) -> None:
    assert grade(f"\\boxed{{{box}}}", "1234").correct


@pytest.mark.parametrize("box", ZEROS)
def test_group_of_zeros_is_not_a_thousands_group(box: str) -> None:
    assert not grade(f"\\boxed{{{box}}}", "204").correct
    assert not grade(f"\\boxed{{{box}.5}}", "204.5").correct


@pytest.mark.parametrize(
    "box",
    [
        "34", "-33", "33x", "3m", "330", "3 3", "3,3", "33,34", "33 or 34", "33.5", "0.33", "\\frac{34}{1}", "3.3e1",
        "33\\text{ million}", "33_4", "33!", "\\frac{67}{2}",
        # equations that say something else
        "m=3,n=33", "n=3 or n=33", "n\\ne33", "n>=33", "n!=33", "n\\le33", "n\\le m=33", "n=34=33", "33=n+1", "n=33+1",
        "n=033x", "34 \\quad x = 33", "34\\qquad x = 33", "34 \\Rightarrow x = 33", "34 \\implies x = 33", "34 x = 33",
        "34\\;x = 33", "34: x = 33", "34 \\to x = 33", "34 -> x = 33", "34 \\text{ or } x = 33", "34 \\approx x = 33",
    ],
)  # fmt: skip
def test_other_values_are_wrong_but_answers(box: str) -> None:
    result = grade(f"\\boxed{{{box}}}", "33")
    assert not result.correct
    assert result.answer


SIDES = ["m+n", "AB", "|S|", "f(10)", "\\angle ABC", "x", "p+q+r", "100m+10n", "\\sum_{k=1}^{8} k", "m+n=30+3"]


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("last", ["33", "033", "33^\\circ", "33\\text{ cm}", "\\mathbf{33}", "\\boxed{33}", "33 + 0"])
def test_the_last_side_of_an_equation_is_the_integer(sides: str, last: str) -> None:
    assert grade(f"\\boxed{{{sides} = {last}}}", "033").correct
    assert grade(f"\\boxed{{{sides} &= {last}}}", "33").correct
    assert not grade(f"\\boxed{{{sides} = {last}}}", "34").correct


def test_a_curve_is_not_zero() -> None:
    assert grade("\\boxed{f(10)=0}", "0").correct and grade("\\boxed{m+n = 0}", "0").correct
    assert not grade("\\boxed{y^2 - 4x - 6y + 9 = 0}", "0").correct


def test_an_equation_as_gold_answer_is_not_its_last_side() -> None:
    assert not grade("\\boxed{33}", "m+n = 33").correct
    assert not grade("\\boxed{m+n=33}", "x+y=33").correct


def test_an_integer_need_not_be_written_as_one() -> None:
    assert grade("\\boxed{\\frac{66}{2}}", "33").correct and grade("\\boxed{x = 33}", "33").correct


def test_zero_and_signs() -> None:
    assert canonical("000") == canonical("-0") == canonical("0.0") == "0"
    assert canonical("\u221233") == canonical("-033") == "-33"


def test_units_of_the_gold_answer_are_those_of_the_answer() -> None:
    for answer, correct in (("147", True), ("147 cm", True), ("147\\text{ m}", False), ("148\\text{ cm}", False)):
        assert grade(f"\\boxed{{{answer}}}", "147\\text{ cm}").correct is correct


PIECES = st.sampled_from(
    ["{", "}", "\\", "\\boxed", "\\boxed{", "\\{", "7", " ", "\n", "$", "<|channel|>", "final", "<|message|>",
     "<|return|>", "<|start|>assistant", "\\text{", "^\\circ", "\\,", ",", "cm", "\ud7ff", "\0",
     "\\text{}", "\\mathrm{}", "\\mbox{ }", "\\boxed{7\\text{}}", "\\boxed 7", "=", "_{10}", "\\mathbf", "/", "½", "₂"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=200), st.text(max_size=20))
def test_any_text_gets_a_consistent_grade(response: str, gold: str) -> None:
    result = grade(response, gold)
    assert (result.answer is None) == (result.reason is not None)
    assert not (result.correct and result.answer is None)
    assert (final_message(response) is None) == (result.reason == NO_FINAL)


@given(st.integers(0, 999), st.integers(0, 999), st.text(max_size=100), st.text(max_size=100))
def test_a_boxed_integer_is_graded_by_its_value(value: int, gold: int, before: str, after: str) -> None:
    after = re.sub(r"box|[0-9$]", "", after)  # which may say another answer
    text = f"{before}\n\\boxed{{{value:03d}}}{after}"
    if "<|" not in text and "think>" not in text:
        result = grade(text, str(gold))
        assert result.answer == str(value)
        assert result.correct == (value == gold)
