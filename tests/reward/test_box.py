r"""The last box that is not empty is the answer, whatever the text around it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.answers import TOO_LONG, grade
from reward.extraction import CUT_IN_BOX, NO_ANSWER, extract_boxed


@pytest.mark.parametrize(
    ("text", "answer", "reason"),
    [
        ("\\boxed{1} then \\boxed{2}", "2", None),
        ("\\boxed {7}", "7", None),
        ("\\\\boxed{7}", "7", None),
        ("\\boxed{\\{7,8\\}}", "\\{7,8\\}", None),
        ("{{{ \\boxed{7}", "7", None),
        ("}}} \\boxed{7}", "7", None),
        ("write \\boxed{ before it: \\boxed{7}", "7", None),
        ("7", None, NO_ANSWER),
        ("text", None, NO_ANSWER),
        ("\\boxedness{7}", None, NO_ANSWER),
        ("\\fbox{7}", "7", None),
        ("```\n\\boxed{7}\n```", "7", None),
        ("\\boxed 7", "7", None),
        ("it is $\\boxed 7.$", "7", None),
        ("\\boxed 17, so \\boxed{7}", "7", None),
        ("\\boxed{1}, so \\boxed7", "7", None),
        ("\\boxed 7.5", "7.5", None),
        ("\\boxed 7, 8", "7", None),
        ("\\boxed x", None, NO_ANSWER),
        ("$\\boxed\\frac72$", "\\frac{7}{2}", None),
        ("$\\boxed \\dfrac{7}{2}$", "\\frac{7}{2}", None),
        ("\\boxed{\\text{Answer: }7}", "7", None),
        ("\\boxed{\\text{The final answer is }7}", "7", None),
        ("\\boxed{Answer: 7}", "7", None),
        ("\\boxed{\\text{answer}}", "\\text{answer}", None),
        ("\\boxed{7", None, CUT_IN_BOX),
        ("The answer is 7. So \\boxed{7", None, CUT_IN_BOX),
        ("\\boxed{7} so \\boxed{12", None, CUT_IN_BOX),
        ("\\boxed{\\frac{1}{2}", None, CUT_IN_BOX),
        ("\\boxed", None, CUT_IN_BOX),
        ("\\boxed{" + "7" * 5000 + "}", None, TOO_LONG),
    ],
)
def test_answer_comes_from_the_right_box(text: str, answer: str | None, reason: str | None) -> None:
    result = grade(text, "7")
    assert (result.answer, result.reason) == (answer, reason)
    assert result.correct == (answer == "7")


@pytest.mark.parametrize("depth", [2, 3, 4, 50, 10_000])
def test_nested_boxes_are_one(depth: int) -> None:
    for content in ("7", "\\frac{14}{2}", "x = 7"):
        assert grade("\\boxed{" * depth + content + "}" * depth, "7").correct
    assert grade("\\boxed{m+n = \\fbox{\\boxed{7}}}", "7").correct
    assert not grade("\\boxed{1\\boxed{7}}", "17").correct


EMPTY = ["", " ", "\\,", "$$", "\\text{}", "{}", "\\quad", "\\boxed{}", "~", "\\phantom{0}"]


@pytest.mark.parametrize("empty", EMPTY)
def test_an_empty_box_is_no_box(empty: str) -> None:
    text = f"I put it into \\boxed{{{empty}}}."
    assert grade(f"\\boxed{{7}} {text}", "7").correct
    assert grade(f"{text} \\boxed{{7}}", "7").correct
    assert grade(f"{text} The answer is 7.", "7").correct
    assert grade(text, "7").reason == NO_ANSWER


# (response, answer): the text beside a box is no other answer.
BESIDE = [
    (r"\boxed{204} ($m=101$, $n=103$)", "204"),
    (r"There are \boxed{6} integers: 1, 2, 3, 4, 5, 6.", "6"),
    (r"$x+40=180$ or $x=\boxed{140}$", "140"),
    (r"The roots are $5$ and so \boxed{25}$ and the other root is $-3$, which is rejected.", "25"),
    (r"The full count is $7204$; modulo 1000 this is $\boxed{204}$.", "204"),
    ("$\\boxed{204}$\n\nThe full count is $7204$; modulo 1000 this is 204.", "204"),
    (r"$\boxed{10}\%$", "10"),
    (r"$\boxed{10}\%$", r"10\%"),
    (r"$\boxed{108}~\text{in}^2$", "108"),
    (r"$\boxed{368}\ \text{kW}$", "368"),
    (r"$\$9 - \$3 = \boxed{\$6}$", r"\$6"),
    (r"$\$9 - \$3 = \$\boxed{6}$", r"\$6"),
    (r"$\boxed{3}\sqrt2$", "3"),
    (r"$\boxed{204} = 205$", "204"),
    (r"$205 = \boxed{204}$", "204"),
    (r"$\boxed{20}^\circ\text{C}$", r"20^\circ\text{C}"),
    (r"\boxed{204} in total", "204"),
    (r"Either \boxed{205} for odd or \boxed{204} for even", "204"),
    (r"$\boxed{205}$ pairs, of which one is degenerate: $\boxed{204}$", "204"),
    (r"The probability is $\boxed{\frac{101}{103}}$. Thus $m+n = \boxed{204}$.", "204"),
    (r"$\boxed{\frac{408}{2}} = \boxed{204}$", "204"),
    ("$f(8) = \\boxed{205}$.\n\nThe answer is $\\boxed{204}$.", "204"),
    (r"\boxed{204}\text{ (mod } 1000)", "204"),
    ("\\boxed{204}\n\nThe answer is 205.", "204"),
    ("The answer is 205. \\boxed{204}", "204"),
    ("#### 205\n\\boxed{204}", "204"),
]


@pytest.mark.parametrize(("response", "answer"), BESIDE)
def test_text_beside_the_box_is_not_read(response: str, answer: str) -> None:
    assert grade(response, answer).correct


@pytest.mark.parametrize("before", ["$", "$x = ", "\\[x=", "\\(", "", "It is\n", "$x=\\boxed{7}$ or $x="])
def test_a_minus_sign_before_the_box_is_read(before: str) -> None:
    is_list = "or" in before
    for content, gold in (("5", "-5"), ("\\frac12", "-1/2"), ("x-1", "1-x"), ("-5", "5"), ("5\\%", "-5\\%")):
        assert grade(f"{before}-\\boxed{{{content}}}", f"7, {gold}" if is_list else gold).correct
    assert not grade(f"{before}-\\boxed{{5}}", "7, 5" if is_list else "5").correct


@pytest.mark.parametrize("before", ["$10-", "$10 - ", "- ", "It is\n- ", "the answer -", "the answer - ", "$f(2)-"])
def test_a_difference_or_a_dash_before_the_box_is_not_read(before: str) -> None:
    assert grade(f"{before}\\boxed{{5}}", "5").correct


ANY = st.text(st.characters(exclude_characters="\\%{}$°^"), max_size=60).filter(lambda text: "box" not in text)


@given(ANY, ANY, st.integers(0, 999), st.sampled_from(["", "205", "The answer is 205. ", "$x=205$", "or 205", "= 205"]))
def test_no_text_beside_the_box_changes_the_verdict(before: str, after: str, value: int, other: str) -> None:
    for text in (f"{before} {other} \\boxed{{{value}}} {after}", f"{before} \\boxed{{{value}}} {other} {after}"):
        if "<|" not in text and "think>" not in text:
            assert grade(text, str(value)).answer == str(value)


@pytest.mark.parametrize("hedge", ["or 205", "(or 205)", ". If zero counts, 205.", "\n205", ", or is it 205?", "/ 205"])
def test_hedging_beside_the_box_wins_nothing(hedge: str) -> None:
    assert not grade(f"\\boxed{{204}} {hedge}", "205").correct
    assert not grade(f"\\boxed{{204 {hedge}}}", "205").correct and not grade(f"\\boxed{{204 {hedge}}}", "204").correct


JOINING = [
    ", ", " and ", " or ", "; ", " , and ", "$ or $", "$, $", "$ and $", r"\text{ or }", r"\text{ and }", r" \quad ",
    r"\\ ", " ", "\n", ". ", r" \lor ", "$ or $x=", r" \text{, and } ", "$, $y = ", r" \\ y &= ", r"$, $\theta_1 = ",
    " & ", "$\n- $", "$\n2. $", "$ (b) $", r",\;", "** and **", r"\%, ", r"\text{ cm}, ", r"^\circ, ",
]  # fmt: skip


@pytest.mark.parametrize("joining", JOINING)
@pytest.mark.parametrize("boxes", [("\\boxed{204}", "\\boxed{205}"), ("\\fbox{204}", "\\boxed{205}")])
def test_joined_boxes_are_one_list(boxes: tuple[str, str], joining: str) -> None:
    for text in (joining.join(boxes), joining.join(boxes[::-1])):
        text = f"So ${text}$ it is."
        assert not grade(text, "204").correct and not grade(text, "205").correct
        assert grade(text, "204, 205").correct
    assert grade(f"${boxes[0]}{joining}{boxes[0]}$", "204").correct
    assert grade(f"${boxes[0]}{joining}\\boxed{{\\frac{{408}}{{2}}}}$", "204").correct


@pytest.mark.parametrize(
    "between", [", which gives ", " minus one is ", " pairs or ", " = ", " - ", "/", r"\sqrt{", ": "]
)
def test_other_boxes_are_no_list(between: str) -> None:
    assert grade(f"\\boxed{{205}}{between}\\boxed{{204}}", "204").correct


@pytest.mark.parametrize(
    ("response", "gold", "correct"),
    [
        (r"$\boxed{147}\text{ cm}$", r"147\text{ cm}", True), (r"$\boxed{147}\text{ m}$", r"147\text{ cm}", False),
        (r"$\boxed{147}$ m", r"147\text{ cm}", True), (r"$\boxed{5}\,\mathrm{kg}$", r"5\text{ kilograms}", True),
        (r"$\boxed{5\text{ cm}}\text{ m}$", r"5\text{ cm}", True), (r"$\boxed{50}\%$", "0.5", False),
        (r"\$\boxed{6}", r"6\text{ cents}", False), (r"$\boxed{6}^\circ$", r"6\text{ radians}", False),
        (r"$\boxed{6}\text{ in total}$", r"6\text{ feet}", True), (r"$\boxed{2.5}\text{ million}$", "2.5", True),
        (r"$\boxed{3}\text{ cm}$ and $\boxed{4}\text{ cm}$", "3, 4", True),
    ],
)  # fmt: skip
def test_a_unit_directly_beside_the_box_is_read(response: str, gold: str, correct: bool) -> None:
    assert grade(response, gold).correct is correct


@pytest.mark.parametrize("before", ["$x=1/5$, or ", "The answer is 3. ", "205 or ", ""])
@pytest.mark.parametrize("after", ["", " percent.", ", since there are 5.", ". Or $x=3$.", ", $n=7$"])
def test_gold_of_a_reference_solution_is_the_content_of_its_boxes(before: str, after: str) -> None:
    assert extract_boxed(f"{before}$\\boxed{{20}}${after}") == (("20",), None)
    assert extract_boxed(f"{before}$\\boxed{{20}}$ and $\\boxed{{30}}${after}") == (("20", "30"), None)
