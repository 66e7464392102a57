"""The verdicts of the grader: on other graders' tables, and on what it promises itself."""

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward import equivalence
from reward.answers import CUT_IN_BOX, NO_ANSWER, TOO_LONG, grade

from .harmony import format_harmony
from .outside import PAIRS


def is_equal(answer: str, gold: str) -> bool:
    return grade(f"So it is $\\boxed{{{answer}}}$.", gold).correct


EQUAL = [
    ("sqrt(2)", "\\sqrt{2}"), ("2pi", "2\\pi"), ("\\\\frac{1}{2}", "\\frac12"), ("{1\\over 2}", "\\frac12"),
    ("\\emptyset", "\\varnothing"), ("x^(n+1)", "x^{n+1}"), ("\\mathbb{R}", "(-\\infty,\\infty)"),
    ("\\begin{aligned}204\\end{aligned}", "204"), ("\\begin{equation*}204\\end{equation*}", "204"),
    ("2.50", "\\frac52"),
    ("\\frac{7}{3}\\approx 2.33", "7/3"), ("\\frac{7}{3} \\simeq 2.33", "7/3"),
    ("-\\frac{\\omega\\hbar}{c}", "-\\frac{\\hbar\\omega}{c}"), ("ß", "ß"),
    ("30^\\circ\\text{ units}", "30^\\circ"), ("3²", "9"), ("2½", "\\frac52"), ("x(x+1)", "x^2+x"),
    ("y=2x+1", "2x-y+1=0"),
    ("1011_2", "1011_{\\text{two}}"), ("2, 1", "\\{1,2\\}"), ("1\\pm\\sqrt2", "1-\\sqrt2,1+\\sqrt2"),
    ("[1,2)", "1\\le x<2"),
    ("x>3", "(3,\\infty)"), ("5\\text{ cm}", "5\\text{ centimeters}"), ("5\\text{ square feet}", "5\\text{ ft}^2"),
    ("\\text{(C)}", "C"), ("even", "\\text{Even}"), ("\\text{C,E}", "E, C"), ("x+11, 11+x", "11+x"), ("xy", "yx"),
    ("\\begin{pmatrix}1\\\\\\frac12\\end{pmatrix}", "\\begin{bmatrix} 1 \\\\ 0.5\\end{bmatrix}"),
    ("(x,y)=(1,2)", "(1,2)"),
    ("(3,1)\\cup(5,6]", "(5,6] \\cup (3,1)"), ("\\sin 30^\\circ", "\\frac12"), ("e^{i\\pi}", "-1"), ("2I", "I\\cdot 2"),
    ("\\left[\\begin{array}{cc}1&2\\end{array}\\right]", "\\begin{pmatrix}1&2\\end{pmatrix}"),
    ("3+2\\mathrm{i}", "2i+3"),
    ("0.1\\overline{6}", "\\frac16"), ("x=1, y=2", "(1,2)"), ("x=\\pm 3", "3, -3"), ("\\sqrt[3]{-8}", "-2"),
]  # fmt: skip
UNEQUAL = [
    ("3²", "32"), ("2024-03-12", "2009"), ("555-1234", "-679"), ("1011_2", "1011"), ("1011_2", "1011_3"),
    ("\\pm3", "3"),
    ("(1,2)", "\\{1,2\\}"), ("(1,2)", "(2,1)"), ("(1,2)", "[1,2]"), ("(1,2)", "1,2"), ("1,1", "1"), ("x=5", "y=5"),
    ("x<5", "x\\le5"), ("0.333333", "\\frac13"), ("e", "E"), ("I", "i"), ("ABC", "CAB"),
    ("5\\text{ cents}", "5\\text{ dollars}"),
    ("5\\text{ million}", "5"), ("6\\text{ or more}", "6"), ("81, 256", "81256"), ("50\\%", "0.5"), ("x=5=6", "6"),
    ("3 3", "33"), ("5 xy", "5"), ("\\text{east}", "seat"), ("0,204", "204"), ("2^3^2", "512"),
    ("5\\text{ m/s}", "5\\text{ m/s}^2"),
    ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
    ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}2&1\\end{pmatrix}"), ("\\sqrt{x^2}", "x"), ("x_1", "x_2"),
]  # fmt: skip


CASES = [*PAIRS, *((*pair, True) for pair in EQUAL), *((*pair, False) for pair in UNEQUAL)]


@pytest.mark.parametrize(("gold", "answer", "expected"), CASES)
def test_two_answers(gold: str, answer: str, expected: bool) -> None:
    assert is_equal(answer, gold) is expected
    assert equivalence.equal(gold, answer) is equivalence.equal(answer, gold)


SPELLINGS = [
    "N_{\\text{max}} = 33",
    "=33",
    "33", "033", "33.0", "+33", "$33$", "\\$33", "33\\%", "33^{\\circ}", "33°", "33 cm", "33\\text{ m}",
    "33\\,\\mathrm{cm}^{2}",
    "\\text{33}", "\\boxed{33}", "\\(33\\)", "\\mathbf{33}", "**33**", "33_{10}", "\\textbf{(B) }33", "\uff13\uff13",
    "\u200b33", "33 ordered pairs", "33\\text{ miles per hour}", "m+n = 33", "|S| = 33", "P(A)=33",
    "\\angle ABC = 33^\\circ",
    "100m+n=33", "30+3 = 33", "x = 30+3 = 33", "33 = x",
]  # fmt: skip
OTHERS = [
    "34", "-33", "33x", "3 3", "33,34", "33 or 34", "33.5", "33!", "33_4", "2x=33", "x+1=33", "x^2=33", "30+4=33",
    "33=n+1",
    "34 \\Rightarrow x = 33", "n\\ne33", "n\\le33", "33\\text{ hundredths}", "33 34", "33/34", "33 (or 34)",
]  # fmt: skip


@pytest.mark.parametrize(("box", "expected"), [*((box, True) for box in SPELLINGS), *((box, False) for box in OTHERS)])
def test_spellings_of_one_integer(box: str, expected: bool) -> None:
    assert is_equal(box, "33") is is_equal(box, "033") is expected
    assert not expected or not is_equal(box, "34")


@pytest.mark.parametrize("separator", ["; or ", "; ", ", ", " or ", " and ", "$ or $", " (or ", ", perhaps ", " / "])
@pytest.mark.parametrize("values", [("150", "151"), ("151", "150")])
def test_a_hedge_is_not_paid(separator: str, values: tuple[str, str]) -> None:
    said = separator.join(values) + (")" if "(" in separator else "")
    boxes = separator.join(f"\\boxed{{{value}}}" for value in values)
    for text in (f"The answer is {said}", f"The answer is ${said}$.", f"\\boxed{{{said}}}", f"**Answer:** {said}"):
        assert not grade(text, "150").correct, text
    assert not grade(boxes.replace("\\boxed{151}", "\\boxed{\\boxed{151}}"), "150").correct
    assert not grade(f"${boxes}$", "150").correct


@pytest.mark.parametrize(
    "tail",
    [
        ", maybe 151", ". Or 151.", " (possibly 151)", "\nor 151", "? No, 151", "; if wrong, 151",
        " for n odd and 151 for n even",
    ],
)  # fmt: skip
def test_a_hedge_behind_an_answer_is_not_paid(tail: str) -> None:
    for text in ("\\boxed{150}", "$\\boxed{150}$", "The answer is 150", "**Answer:** 150"):
        assert grade(text, "150").correct
        assert not grade(text + tail, "150").correct, text + tail


def test_a_second_spelling_behind_an_answer_is_no_hedge() -> None:
    for tail in (" or 0.5", ", or 1/2", ". If n = 3, we get 5.", ". Or so it seems."):
        assert grade("\\boxed{\\frac{1}{2}}" + tail, "\\frac12").correct, tail


@pytest.mark.parametrize(
    ("text", "answer", "reason"),
    [
        ("\\boxed{1} then \\boxed{2}", "2", None), ("\\boxed {7}", "7", None), ("\\boxed 7", "7", None),
        ("\\boxed{7} or \\boxed{\\,}", "7", None), ("\\fbox{7}", "7", None), ("{{{ \\boxed{7}", "7", None),
        ("$x = -\\boxed{7}$", "-7", None), ("$\\boxed{7}\\%$", "7", None), ("7", None, NO_ANSWER),
        ("\\boxed{7} so \\boxed{12", None, CUT_IN_BOX), ("\\boxed{" + "7" * 5000 + "}", None, TOO_LONG),
        ("The answer is 8. No: the answer is $7$!", "7", None), ("**Final Answer**\n\n$7$", "7", None),
        ("#### 7", "7", None),
        ("The answer is $7$ cm. That was all.", "7", None), ("The answer is 7, because 3 + 4 = 7.", "7", None),
        ("Final Answer: the area of $ABC$ is 7.", "7", None), ("the answer is\n\\[\n7\n\\]", "7", None),
        ("The answer is 8. \\boxed{7}", "7", None), ("Straße: the answer is 7.", "7", None),
        ("The answer is 7. I verified that the answer is correct.", "7", None),
    ],
)  # fmt: skip
def test_the_answer_is_the_last_box_or_what_the_last_phrase_says(text: str, answer: str, reason: str) -> None:
    result = grade(text, "7")
    assert (result.answer, result.reason, result.correct) == (answer, reason, answer == "7")
    assert grade(format_harmony("\\boxed{8}", text), "7") == result


atoms = st.integers(-99, 999).map(str) | st.sampled_from([
    "0.25", "\\frac{3}{4}", "1\\frac12", "50\\%", "\\$3", "7_{12}", "x", "y_1", "\\pi", "i", "AB", "\\text{odd}",
    "3\\text{ cm}",
])  # fmt: skip


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.builds("{}{}{}".format, inner, st.sampled_from(["+", "-", "/", "=", "<", "\\le ", "\\cup ", " or "]), inner),
        st.builds("{}{}{}".format, st.sampled_from("[("), several.map(",".join), st.sampled_from("])")),
        several.map(lambda parts: "\\{" + ", ".join(parts) + "\\}"),
        st.builds("\\frac{{{}}}{{{}}}".format, inner, inner),
    )


answers = st.recursive(atoms, _larger, max_leaves=4)


@given(answers)
def test_grading_is_reflexive(answer: str) -> None:
    assert is_equal(answer, answer) and is_equal(f" ${answer}$.", answer)


@settings(max_examples=60)
@given(answers, answers)
def test_equality_is_symmetric(a: str, b: str) -> None:
    assert equivalence.equal(a, b) == equivalence.equal(b, a)


@settings(max_examples=50)
@given(st.fractions(max_denominator=50), st.fractions(max_denominator=50))
def test_fractions_are_graded_by_their_value(a, b) -> None:
    other = f"\\frac{{{3 * b.numerator}}}{{{3 * b.denominator}}}"
    for spelling in (f"{a.numerator}/{a.denominator}", f"\\frac{{{a.numerator}}}{{{a.denominator}}}"):
        assert is_equal(spelling, other) == (a == b)


PIECES = [
    "{", "}", "\\", "\\boxed{", "7", " ", "$", "<|channel|>final<|message|>", "\\text{", "^", "_", ",", "(", "=", "½",
]  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text(max_size=80), st.text(max_size=10))
def test_any_text_gets_a_consistent_grade(text: str, gold: str) -> None:
    for response in (text, f"\\boxed{{{text}}}"):
        result = grade(response, gold)
        assert (result.answer is None) == (result.reason is not None)
        assert not (result.correct and result.answer is None)


JUNK = [
    "{", "\\boxed{", "\\boxed{}", "\\boxed{1}, ", "the answer is ", "$x", "or 1, ", "\\", " ", "9", "<|channel|>final",
]  # fmt: skip
INSIDE = [
    "9^", "\\frac", "1,", "{", "\\sqrt(", "\\text{", "(", "and ", "x=", "x<", "\\begin{pmatrix}", "1_", "9!", "\\{",
]  # fmt: skip


@pytest.mark.parametrize("piece", JUNK + INSIDE)
def test_junk_is_bounded_before_it_is_read(piece: str) -> None:
    """Quadratic time would take minutes."""
    started = time.process_time()
    assert not grade(piece * (500_000 // len(piece)), "\\frac12").correct
    for repetitions in (500_000 // len(piece), 900 // len(piece)):
        assert not grade(f"\\boxed{{{piece * repetitions}}}", "\\frac12").correct
    assert time.process_time() - started < 20


BOMBS = [
    "9^{9^{9}}", "9^{9^9}", "9^9^9^9", "(9!)!", "((9!)!)!", "2^{99999999}", "999999999!", "\\binom{99999999}{9999999}",
    "(x+1)^{400}(x-1)^{400}", "(((x+1)^{99})^{99})^{99}", "e^{e^{e^{e^9}}}", "\\frac{1}{1+" * 20 + "x" + "}" * 20,
    "{" * 400 + "1" + "}" * 400,
]  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_costs_no_worker(bomb: str) -> None:
    equivalence.equal("x(x+1)", "x^2+x")
    process = equivalence.worker.process
    assert not is_equal(bomb, "7") and not is_equal(bomb, "x+7") and is_equal(bomb, bomb)
    assert equivalence.worker.process is process


@given(st.tuples(st.integers(1, 40), st.integers(2, 40), st.integers(1, 9)), st.tuples(*[st.integers(1, 9)] * 3))
def test_a_surd_equals_itself_alone(surd: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    number, root, below = surd
    gold = f"{number}\\sqrt{{{root}}}/{below}"
    assert is_equal(f"\\frac{{{2 * number}\\sqrt{{{root}}}}}{{{2 * below}}}", gold)
    is_same = Fraction(number, below) ** 2 * root == Fraction(other[0], other[2]) ** 2 * other[1]
    assert is_equal(f"\\frac{{{other[0]}\\sqrt{{{other[1]}}}}}{{{other[2]}}}", gold) == is_same
