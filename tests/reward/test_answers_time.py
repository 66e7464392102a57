"""Extraction and grading take linear time for any text.

Quadratic time would exceed the timeout of the tests: 500,000 steps squared take minutes.
"""

import pytest

from reward import equivalence
from reward.answers import final_message, grade

from .harmony import format_harmony

CHARACTERS = 500_000
JUNK = {
    "braces": "{",
    "closing braces": "}",
    "open boxes": "\\boxed{",
    "boxes without braces": "\\boxed ",
    "backslashes": "\\",
    "spaces": "\\boxed" + " " * 50,
    "headers": "<|channel|>final",
    "spaces in a header": "<|channel|>" + " " * 1000,
    "constrained headers": "<|channel|>final<|constrain|>",
    "final messages": "<|channel|>final<|message|>\\boxed{1}",
    "phrases": "the answer is ",
    "spaces in a phrase": "final answer" + " " * 100,
    "colons in a phrase": "answer" + ":*" * 50,
    "listed boxes": "\\boxed{1}, ",
    "empty boxes": "\\boxed{}",
    "boxes around a box": "\\boxed{\\boxed{}}",
    "units": "\\boxed{1}\\text{ cm}",
    "separators in a phrase": "the answer is 3" + ";.,$ " * 50,
    "formulas in a phrase": "the answer is 3. " + "$x" * 50,
    "conditions in a phrase": "the answer is 3 when " + "or 1, " * 50,
    "number signs": "\n#### ",
    "thoughts": "<think></think>",
    "open thoughts": "</think><think>",
    "digits": "9",
    "dots": "the answer is 3. . . ",
}
NESTED = {
    "boxes": ("\\boxed{", "}"),
    "braces in a box": ("{", "}"),
    "powers": ("9^{", "}"),
    "parentheses": ("(", ")"),
    "fractions": ("\\frac{1}{", "}"),
}


@pytest.mark.parametrize("name", [*JUNK, *NESTED])
def test_long_junk_is_graded_before_the_test_times_out(name: str) -> None:
    if name in JUNK:
        text = JUNK[name] * (CHARACTERS // len(JUNK[name]))
    else:
        opening, closing = NESTED[name]
        times = CHARACTERS // len(opening + closing)
        text = "\\boxed{" + opening * times + closing * times + "}"
    for response in (text, format_harmony(text, text)):
        assert not grade(response, "\\frac{1}{2}").correct


INSIDE = {
    "spaces": " ", "numbers": "33 ", "units": "3 cm ", "wrappers": "\\text{", "digits": "9", "commas": "1,",
    "letters": "x",
    "powers": "9^", "brackets": "[", "sets": "\\{", "fractions": "\\frac", "relations": "x<", "plus-minus": "1\\pm ",
    "matrices": "\\begin{pmatrix}", "subscripts": "1_", "unions": "\\cup ", "factorials": "9!", "roots": "\\sqrt(",
    "square units": "square ", "dots": "1.", "words": "and ", "texts": "\\text{ and }",
    "halves": "{1\\over ", "groups": "{1}", "equations": "x=", "small digits": "½", "plurals": "such things ",
    "per": "m/",
    "brackets in powers": "2^(", "bare arguments": "\\frac1", "wide blanks": "\\quad ", "scientific": "1e10",
    "products of matrices": "\\begin{matrix}x\\end{matrix}", "arrays": "\\begin{array}{c}1\\end{array}+",
    "assignments": "x=1,", "exponents": "\\exp(", "conditions": "\\{x|",
}  # fmt: skip


@pytest.mark.parametrize("name", INSIDE)
def test_long_box_is_graded_before_the_test_times_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to MAX_ANSWER_CHARS, in this process; how long algebra may take is tested with the workers."""
    monkeypatch.setattr(equivalence.pool, "equal", lambda first, second, limit: False)
    answer = INSIDE[name] * (960 // len(INSIDE[name]))
    assert not grade(f"\\boxed{{{answer}}}", "\\frac{1}{2}").correct
    assert not grade(f"\\boxed{{1+{answer}}}", "(1,2)").correct


@pytest.mark.parametrize(
    "form", ["{:03d}", "{} \\text{{ cm}}", "{}^\\circ", "x={}", "{:,} solutions", "\\mathbf{{{}}}", "m+n={}"]
)
def test_an_integer_is_graded_without_algebra_by_its_final_message(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So 10,000 integers can be graded per second, without workers and without reading the thoughts."""
    asked: list[str] = []
    monkeypatch.setattr(equivalence.pool, "equal", lambda first, second, limit: asked.append(first))
    thought = "Let $x=\\frac{a}{b}$ so then we compute. " * 250
    for value in range(500):
        final = f"We get $\\frac{{1}}{{2}}$. So \\boxed{{{form.format(value)}}}."
        response = format_harmony(thought, final)
        assert grade(response, f"{value:03d}").correct
        assert final_message(response) == final
    assert not asked
