"""Extraction and grading: what counts as the answer, and that no text breaks or slows it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.answers import CUT_IN_BOX, EMPTY_BOX, LONG_BOX, NO_BOX, NO_FINAL, canonical, final_message, grade

ANALYSIS = "<|channel|>analysis<|message|>{}<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>{}<|return|>"


def harmony(thought: str, reply: str) -> str:
    return ANALYSIS.format(thought) + FINAL.format(reply)


@pytest.mark.parametrize(
    "box",
    [
        "33", "033", " 33 ", "33.0", "33.", "+33", "$33$", "\\$33", "33\\%", "33^\\circ", "33^{\\circ}",
        "33°", "33\\degree", "33 cm", "33cm^2", "33\\text{ cm}", "33\\text{ cm}^2", "33\\,\\mathrm{cm}^{2}",
        "33\\text{ m}", "33 degrees", "33\\text{ square units}", "\\text{33}", "\\textbf{033}",
        "\\boxed{33}", "33\\!", "33~", "\\,33\\;", "33\n", "\\mathrm{$33$}",
    ],
)  # fmt: skip
def test_spellings_of_one_integer_are_equal(box: str) -> None:
    result = grade(f"So it is \\boxed{{{box}}}.", "33")
    assert (result.correct, result.answer, result.reason) == (True, "33", None)
    assert grade("\\boxed{33}", box).correct  # golds are padded unevenly, too


@pytest.mark.parametrize("box", ["1234", "1,234", "1{,}234", "1\\,234", "1\\ 234", "1,\\!234"])
def test_thousands_separators(box: str) -> None:
    assert grade(f"\\boxed{{{box}}}", "1234").correct


@pytest.mark.parametrize(
    "box",
    [
        "34",
        "-33",
        "33x",
        "3m",
        "330",
        "3 3",
        "3,3",
        "33,34",
        "33 or 34",
        "33.5",
        "0.33",
        "\\frac{33}{1}",
        "3.3e1",
    ],
)
def test_other_values_are_wrong_but_answers(box: str) -> None:
    result = grade(f"\\boxed{{{box}}}", "33")
    assert not result.correct
    assert result.answer


def test_zero_and_signs() -> None:
    assert canonical("000") == canonical("-0") == canonical("0.0") == "0"
    assert canonical("\u221233") == canonical("-033") == "-33"


@pytest.mark.parametrize(
    ("box", "gold", "correct"),
    [
        ("\\dfrac{1}{2}", "\\frac{1}{2}", True),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})", True),
        ("\\leftarrow", "\\left", False),
        ("3x", "3", False),
        ("\\frac{1}{3}", "\\frac{1}{2}", False),
    ],
)
def test_other_golds_are_compared_as_text(box: str, gold: str, correct: bool) -> None:
    assert grade(f"\\boxed{{{box}}}", gold).correct is correct


@pytest.mark.parametrize(
    ("text", "answer", "reason"),
    [
        ("\\boxed{1} then \\boxed{2}", "2", None),
        ("\\boxed {7}", "7", None),
        ("\\\\boxed{7}", "7", None),
        ("\\boxed{\\boxed{7}}", "7", None),
        ("\\boxed{\\{7\\}}", "\\{7\\}", None),
        ("{{{ \\boxed{7}", "7", None),
        ("}}} \\boxed{7}", "7", None),
        ("write \\boxed{ before it: \\boxed{7}", "7", None),
        ("7", None, NO_BOX),
        ("", None, NO_BOX),
        ("\\boxedness{7}", None, NO_BOX),
        ("\\boxed{}", None, EMPTY_BOX),
        ("\\boxed{ \\, }", None, EMPTY_BOX),
        ("\\boxed{7", None, CUT_IN_BOX),
        ("\\boxed{7} so \\boxed{12", None, CUT_IN_BOX),
        ("\\boxed{\\frac{1}{2}", None, CUT_IN_BOX),
        ("\\boxed", None, CUT_IN_BOX),
        ("\\boxed{" + "7" * 5000 + "}", None, LONG_BOX),
    ],
)
def test_which_box_is_the_answer(text: str, answer: str | None, reason: str | None) -> None:
    result = grade(text, "7")
    assert (result.answer, result.reason) == (answer, reason)
    assert result.correct == (answer == "7")


def test_only_the_last_final_message_counts() -> None:
    assert grade(harmony("maybe \\boxed{8}", "\\boxed{7}"), "7").correct
    assert grade(harmony("\\boxed{7}", "\\boxed{8}"), "7").answer == "8"
    assert grade(harmony("\\boxed{7}", "it is 7"), "7").reason == NO_BOX
    assert grade(harmony("", "\\boxed{8}") + FINAL.format("\\boxed{7}"), "7").correct
    assert grade(ANALYSIS.format("\\boxed{7}"), "7").reason == NO_FINAL
    assert grade("<|channel|>analysis<|message|>\\boxed{7}", "7").reason == NO_FINAL
    assert grade("<|channel|>commentary<|message|>\\boxed{7}<|call|>", "7").reason == NO_FINAL
    assert grade("<|channel|>finale<|message|>\\boxed{7}<|end|>", "7").reason == NO_FINAL
    assert grade("\\boxed{7}<|return|>", "7").reason == NO_FINAL


@pytest.mark.parametrize("end", ["<|return|>", "<|end|>", "<|call|>", "", "<|start|>assistant", "<|endoftext|>"])
def test_a_final_message_ends_at_the_next_marker(end: str) -> None:
    text = f"{ANALYSIS.format('x')}<|start|>assistant<|channel|>final<|message|>\\boxed{{7}}{end}"
    assert final_message(text) == "\\boxed{7}"
    assert grade(text, "7").correct
    if end:
        assert grade(text + "<|channel|>analysis<|message|>\\boxed{9}", "7").answer == "7"


def test_a_constrained_final_header_is_a_final_header() -> None:
    assert final_message("<|channel|>final <|constrain|>text<|message|>hello<|return|>") == "hello"


PIECES = st.sampled_from(
    ["{", "}", "\\", "\\boxed", "\\boxed{", "\\{", "7", " ", "\n", "$", "<|channel|>", "final", "<|message|>",
     "<|return|>", "<|start|>assistant", "\\text{", "^\\circ", "\\,", ",", "cm", "\ud7ff", "\0"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=200), st.text(max_size=20))
def test_any_text_gets_a_consistent_grade(response: str, gold: str) -> None:
    result = grade(response, gold)
    assert (result.answer is None) == (result.reason is not None)
    assert not (result.correct and result.answer is None)
    assert (final_message(response) is None) == (result.reason == NO_FINAL)


@given(st.integers(0, 999), st.integers(0, 999), st.text(max_size=100), st.text(max_size=100))
def test_a_boxed_integer_is_graded_by_its_value(value: int, gold: int, before: str, after: str) -> None:
    after = after.replace("\\boxed", "")
    text = f"{before}\n\\boxed{{{value:03d}}}{after}"
    if "<|" not in text:
        result = grade(text, str(gold))
        assert result.answer == str(value)
        assert result.correct == (value == gold)


JUNK = {
    "braces": "{" * 2_000_000,
    "closing braces": "}" * 2_000_000,
    "open boxes": "\\boxed{" * 300_000,
    "nested boxes": "\\boxed{" * 200_000 + "}" * 200_000,
    "spaces after a box": "\\boxed" + " " * 2_000_000,
    "boxes without braces": "\\boxed " * 300_000,
    "backslashes": "\\" * 2_000_000,
    "headers": "<|channel|>final" * 150_000,
    "spaces in a header": ("<|channel|>" + " " * 1000) * 2_000,
    "constrained headers": "<|channel|>final<|constrain|>" * 80_000,
    "final messages": "<|channel|>final<|message|>\\boxed{1}" * 60_000,
    "spaces in a box": "\\boxed{" + " " * 990 + "}",
    "numbers in a box": "\\boxed{" + "33 " * 330 + "}",
    "units in a box": "\\boxed{" + "3 cm " * 199 + "}",
    "wrappers in a box": "\\boxed{" + "\\text{" * 120 + "}" * 120 + "}",
    "digits": "\\boxed{" + "9" * 990 + "}",
}


@pytest.mark.parametrize("name", JUNK)
def test_megabytes_of_junk_take_linear_time(name: str) -> None:
    junk = JUNK[name]
    begin = time.process_time()
    grade(junk, "7")
    grade(harmony(junk, junk), "7")
    assert time.process_time() - begin < 3.0  # anything quadratic in a megabyte takes hours


def test_ten_thousand_typical_grades_take_a_second() -> None:
    response = harmony(
        "Let $x=\\frac{a}{b}$ so then we compute. " * 200, "We get $\\frac{1}{2}$. " * 30 + "\\boxed{033}"
    )

    def rate() -> float:
        begin = time.process_time()
        for _ in range(2000):
            assert grade(response, "33").correct
        return 2000 / (time.process_time() - begin)

    assert max(rate() for _ in range(3)) > 10_000
