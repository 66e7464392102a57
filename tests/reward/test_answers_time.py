"""Extraction and grading take time in proportion to the text, whatever it is."""

import re
import time
from collections.abc import Callable

import pytest

from reward import equivalence
from reward.answers import grade

from .harmony import harmony

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


def seconds(text: str) -> float:
    """Processor time of grading; the best of three, as other work disturbs the caches."""

    def once() -> float:
        begin = time.process_time()
        grade(text, "\\frac{1}{2}")
        grade(harmony(text, text), "\\frac{1}{2}")
        return time.process_time() - begin

    return min(once() for _ in range(3))


@pytest.mark.parametrize("name", [*JUNK, *NESTED])
def test_long_junk_takes_linear_time(name: str) -> None:
    def text(characters: int) -> str:
        if name in JUNK:
            return JUNK[name] * (characters // len(JUNK[name]))
        opening, closing = NESTED[name]
        times = characters // len(opening + closing)
        return "\\boxed{" + opening * times + closing * times + "}"

    small, large = seconds(text(60_000)), seconds(text(240_000))
    assert large < 10 * small + 0.05  # four times the length; a quadratic search takes 16 times as long


INSIDE = {
    "spaces": " ", "numbers": "33 ", "units": "3 cm ", "wrappers": "\\text{", "digits": "9", "commas": "1,",
    "letters": "x",
    "powers": "9^", "brackets": "[", "sets": "\\{", "fractions": "\\frac", "relations": "x<", "plus-minus": "1\\pm ",
    "matrices": "\\begin{pmatrix}", "subscripts": "1_", "unions": "\\cup ", "factorials": "9!", "roots": "\\sqrt(",
    "square units": "square ", "dots": "1.", "words": "and ", "texts": "\\text{ and }",
    "halves": "{1\\over ", "groups": "{1}", "equations": "x=", "small digits": "½", "plurals": "such things ",
    "per": "m/",
    "exponents": "\\exp(", "conditions": "\\{x|",
}  # fmt: skip


@pytest.mark.parametrize("name", INSIDE)
def test_what_fills_a_box_takes_no_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to MAX_ANSWER_CHARS, in this process; how long algebra may take is tested with the workers."""
    monkeypatch.setattr(equivalence, "_by_algebra", lambda first, second, limit: False)

    def work(characters: int) -> float:
        answer = INSIDE[name] * (characters // len(INSIDE[name]))
        begin = time.process_time()
        for _ in range(4):
            grade(f"\\boxed{{{answer}}}", "\\frac{1}{2}")
            grade(f"\\boxed{{1+{answer}}}", "(1,2)")
        return time.process_time() - begin

    work(100)
    assert min(work(960) for _ in range(2)) < 20 * min(work(240) for _ in range(2)) + 0.1


@pytest.mark.parametrize(
    "form", ["{:03d}", "{} \\text{{ cm}}", "{}^\\circ", "x={}", "{:,} solutions", "\\mathbf{{{}}}", "m+n={}"]
)
def test_an_integer_is_graded_in_half_the_time_of_splitting_its_response_into_words(form: str) -> None:
    """Which takes 0.2 ms for 10 kB: so 10,000 grades a second. Measured in turn, since other work slows both."""
    thought = "Let $x=\\frac{a}{b}$ so then we compute. " * 250
    responses = [
        harmony(thought, f"We get $\\frac{{1}}{{2}}$. So \\boxed{{{form.format(value)}}}.") for value in range(500)
    ]
    word = re.compile("[A-Za-z]+")

    def grading() -> None:
        for value, response in enumerate(responses):
            assert grade(response, f"{value:03d}").correct

    def splitting() -> None:
        for response in responses:
            word.findall(response)

    def cost(work: Callable[[], None]) -> float:
        begin = time.process_time()
        work()
        return time.process_time() - begin

    costs = [(cost(grading), cost(splitting)) for _ in range(5)]
    assert 2 * min(graded for graded, _ in costs) < min(split for _, split in costs)
