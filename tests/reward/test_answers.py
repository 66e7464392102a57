"""Extraction and grading: what counts as the answer, and that no text breaks or slows it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.answers import EMPTY, NO_FINAL, TOO_LONG, canonical, final_message, grade
from reward.extraction import CUT_IN_BOX, NO_ANSWER

from .harmony import ANALYSIS, FINAL, harmony


@pytest.mark.parametrize(
    "box",
    [
        "33", "033", " 33 ", "33.0", "33.", "+33", "$33$", "\\$33", "33\\%", "33^\\circ", "33^{\\circ}",
        "33°", "33\\degree", "33 cm", "33cm^2", "33\\text{ cm}", "33\\text{ cm}^2", "33\\,\\mathrm{cm}^{2}",
        "33\\text{ m}", "33 degrees", "33\\text{ square units}", "\\text{33}", "\\textbf{033}",
        "\\boxed{33}", "33\\!", "33~", "\\,33\\;", "33\n", "\\mathrm{$33$}",
        "\\(33\\)", "33\\text{ students}", "33\\%.", "33 km",
        # fonts, colours, sizes and marks
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


@pytest.mark.parametrize(
    "box",
    [
        "1234",
        "1,234",
        "1{,}234",
        "1\\,234",
        "1\\ 234",
        "1,\\!234",
        "1\u2009234",
        "1\u202f234",
        "01,234.00",
        "12\u200b34",
    ],
)
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
        "\\frac{34}{1}",
        "3.3e1",
        "33\\text{ million}",
        "33_4",
        "33!",
    ],
)
def test_other_values_are_wrong_but_answers(box: str) -> None:
    result = grade(f"\\boxed{{{box}}}", "33")
    assert not result.correct
    assert result.answer


@pytest.mark.parametrize("box", ["0,204", "00,204", "000,204", "0 204", "0\\,204", "0{,}204", "0,\\!204", "+0,204"])
def test_a_group_of_zeros_is_no_thousand(box: str) -> None:
    assert not grade(f"\\boxed{{{box}}}", "204").correct
    assert not grade(f"\\boxed{{{box}.5}}", "204.5").correct


@pytest.mark.parametrize(
    "sides",
    [
        "m+n",
        "AB",
        "|S|",
        "f(10)",
        "\\angle ABC",
        "x",
        "p+q+r",
        "100m+10n",
        "\\sum_{k=1}^{8} k",
        "f(1,2)",
        "m+n=30+3",
    ],
)
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


@pytest.mark.parametrize(
    "box",
    [
        "m=3,n=33",
        "n=3 or n=33",
        "n\\ne33",
        "n>=33",
        "n!=33",
        "n\\le33",
        "n\\le m=33",
        "n=34=33",
        "33=n+1",
        "n=33+1",
        "n=033x",
        "34 \\quad x = 33",
        "34\\qquad x = 33",
        "34 \\Rightarrow x = 33",
        "34 \\implies x = 33",
        "34 x = 33",
        "34\\;x = 33",
        "34: x = 33",
        "34 \\to x = 33",
        "34 -> x = 33",
        "34 \\text{ or } x = 33",
        "34 \\approx x = 33",
    ],
)
def test_an_equation_may_say_something_else(box: str) -> None:
    assert not grade(f"\\boxed{{{box}}}", "33").correct


def test_an_integer_need_not_be_written_as_one() -> None:
    assert grade("\\boxed{\\frac{66}{2}}", "33").correct
    assert grade("\\boxed{x = 33}", "33").correct
    assert not grade("\\boxed{\\frac{67}{2}}", "33").correct


def test_zero_and_signs() -> None:
    assert canonical("000") == canonical("-0") == canonical("0.0") == "0"
    assert canonical("\u221233") == canonical("-033") == "-33"


@pytest.mark.parametrize(
    ("text", "answer", "reason"),
    [
        ("\\boxed{1} then \\boxed{2}", "2", None),
        ("\\boxed {7}", "7", None),
        ("\\\\boxed{7}", "7", None),
        ("\\boxed{\\boxed{7}}", "7", None),
        ("\\boxed{\\{7,8\\}}", "\\{7,8\\}", None),
        ("{{{ \\boxed{7}", "7", None),
        ("}}} \\boxed{7}", "7", None),
        ("write \\boxed{ before it: \\boxed{7}", "7", None),
        ("7", None, NO_ANSWER),
        ("", None, NO_ANSWER),
        ("\\boxedness{7}", None, NO_ANSWER),
        ("\\boxed{}", None, EMPTY),
        ("\\boxed{ \\, }", None, EMPTY),
        ("\\fbox{7}", "7", None),
        ("\\boxed 7", "7", None),
        ("it is $\\boxed 7.$", "7", None),
        ("\\boxed 17, so \\boxed{7}", "7", None),
        ("\\boxed{1}, so \\boxed7", "7", None),
        ("\\boxed 7.5", "7.5", None),
        ("\\boxed 7, 8", "7", None),
        ("\\boxed x", None, NO_ANSWER),
        ("\\boxed{7", None, CUT_IN_BOX),
        ("The answer is 7. So \\boxed{7", None, CUT_IN_BOX),
        ("\\boxed{7} so \\boxed{12", None, CUT_IN_BOX),
        ("\\boxed{\\frac{1}{2}", None, CUT_IN_BOX),
        ("\\boxed", None, CUT_IN_BOX),
        ("\\boxed{" + "7" * 5000 + "}", None, TOO_LONG),
    ],
)
def test_which_box_is_the_answer(text: str, answer: str | None, reason: str | None) -> None:
    result = grade(text, "7")
    assert (result.answer, result.reason) == (answer, reason)
    assert result.correct == (answer == "7")


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 7.", "the answer is 7", "So the final answer is: **7**", "**Final Answer:** $7$", "Answer: 7",
        "### Final Answer\n\n7", "**Answer**\n\n$7$", "The answer is 8. No: the answer is 7!", "#### 7",
        "The answer to the problem is 7, because 3 + 4 = 7.", "the answer is \\(7\\).", "the answer is\n\\[\n7\n\\]",
        "The answer is $7$ cm. That was all.", "The answer is 7.0.", "The answer is 7<|im_end|>",
        "the answer equals `7`",
        "The correct answer is 7; not 8", "The answer is 7</s>", "The answer is $$7$$ and not 8.", "answer = 7",
        "The answer is 7. I verified that the answer is correct.", "The answer is 7 (since 3 + 4 = 7).",
        "the answer is therefore 7", "The answer is thus, $7$.",
        "The answer is 7. This answer is consistent with all of that.",
        "Answer: 7\n\nI checked that this answer is indeed right.", "The answer is \\boxed 7", "The answer is also 7.",
    ],
)  # fmt: skip
def test_without_a_box_the_last_phrase_counts(text: str) -> None:
    result = grade(text, "7")
    assert (result.correct, result.answer, result.reason) == (True, "7", None)
    assert grade(harmony("the answer is 8", text.replace("<|im_end|>", "")), "7").correct


@pytest.mark.parametrize("separator", [";", "; ", ";\\;", "\\;,\\;", ", "])
@pytest.mark.parametrize("form", ["${}$", "\\({}\\)", "$({})$", "({})", "$$[{}]$$"])
def test_a_formula_is_not_cut_at_its_semicolon(form: str, separator: str) -> None:
    content = form.format(f"1{separator}204")
    gold = content.strip("$").removeprefix("\\(").removesuffix("\\)")
    for text in (
        f"The answer is {content}.",
        f"Answer: {content}; this was all.",
        f"the answer is {content}, since 1<2",
    ):
        assert grade(text, gold).correct
        assert not grade(text, "1").correct and not grade(text, "204").correct


@pytest.mark.parametrize("blank", ["\\;", "\\,", "\\:", "\\ "])
def test_an_answer_is_not_cut_at_a_blank(blank: str) -> None:
    assert grade(f"The answer is $1{blank}204$.", "1204").correct
    assert grade(f"The answer is $x{blank}={blank}204$.", "204").correct


SEVERAL = [
    "{}; or {}", "{}; and {}", "{}. Or {}.", "{}\nor {}", "{}\n\n{}", "{}\n\nor\n\n{}", "{} as well as {}",
    "{}, so is {}",
    "{} for odd n or {} for even n", "{} when n is odd, and {} when n is even", "{} if n > 2, {} otherwise",
    "{}! Maybe {}.",
    "{}. {}.", "{}? {}?", "{}. Also {}.", "{} (or {})", "{}; alternatively {}", "either {} or {}", "{}, {}", "{} or {}",
    "{} and {}", "{}; {}", "{}. But {} as well.", "{} / {}", "{}; otherwise {}", "{}, perhaps {}", "{} {}",
]  # fmt: skip


@pytest.mark.parametrize("naming", SEVERAL)
@pytest.mark.parametrize("form", ["{}", "${}$", "**{}**", "\\({}\\)", "$\\frac{{{}}}{{1}}$"])
def test_naming_several_answers_is_not_right(naming: str, form: str) -> None:
    for values in ((204, 205), (205, 204)):
        named = naming.format(*(form.format(value) for value in values))
        for text in (f"The answer is {named}", f"**Answer:** {named}", f"#### {named}", f"\\boxed{{{named}}}"):
            last_box = "\\boxed" in text
            if not last_box or "\n" not in naming:
                assert not grade(text, "204").correct, text


@pytest.mark.parametrize(
    "separator", [" or ", ", ", " and ", "; ", "$ or $", "\\text{ or }", ", or ", " \\quad ", "$, \\quad $"]
)
@pytest.mark.parametrize("boxes", [("\\boxed{204}", "\\boxed{205}"), ("\\boxed 204", "\\fbox{205}")])
def test_boxes_side_by_side_are_one_list(boxes: tuple[str, str], separator: str) -> None:
    for text in (separator.join(boxes), separator.join(boxes[::-1])):
        text = f"So ${text}$ it is."
        assert not grade(text, "204").correct and not grade(text, "205").correct
        assert grade(text, "204, 205").correct
    assert grade(f"${boxes[0]}{separator}{boxes[0]}$", "204").correct
    assert grade(f"First {boxes[0]}, which gives {boxes[1]}", "205").correct


@pytest.mark.parametrize(
    "after",
    [
        ", since 1 or 2 is even when x > 0.", ". That was all.", ".\n\nAnd that is all.", ".\n\n$\\blacksquare$",
        ".\n\n---\n", ".\n\n$200+4=204$.",
        ".\n1. We first check", " by symmetry.", " for all n.", ", which is even. Otherwise it fails.", "; not 205.",
        " because 200 and 4 or so add up.", ".\n\nStep 1: done",
    ],
)  # fmt: skip
def test_what_is_said_after_one_answer_changes_nothing(after: str) -> None:
    assert grade(f"The answer is 204{after}", "204").correct


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("the answer is 0.7", "0.7"),
        ("the answer is 7.5.", "7.5"),
        ("the answer is not 7", "not7"),
        ("the answer is 8. The answer is even", "even"),
        ("the answer is correct", "correct"),
        ("the answer is $7$ or $8$.", "7or8"),
        ("\\boxed{8} The answer is 7", "8"),
        ("the answer isn't 7", None),
        ("the answer is", None),
        ("answering 7", None),
        ("I answer 7", None),
    ],
)
def test_a_phrase_announces_all_of_its_answer(text: str, answer: str | None) -> None:
    result = grade(text, "7")
    assert (result.correct, result.answer) == (False, answer)
    assert result.reason == (None if answer else NO_ANSWER)


def test_what_another_model_thought_is_no_answer() -> None:
    assert grade("<think>\\boxed{8}</think>so \\boxed{7}", "7").correct
    assert grade("\\boxed{8}</think>the answer is 7", "7").correct
    assert grade("<think>\\boxed{7}</think>it is 7", "7").reason == NO_ANSWER
    assert grade("<think>\\boxed{7}", "7").reason == NO_FINAL
    assert grade("<think>a</think><think>\\boxed{7}", "7").reason == NO_FINAL


def test_units_of_the_gold_answer_are_those_of_the_answer() -> None:
    for answer, correct in (("147", True), ("147 cm", True), ("147\\text{ m}", False), ("148\\text{ cm}", False)):
        assert grade(f"\\boxed{{{answer}}}", "147\\text{ cm}").correct is correct


def test_only_the_last_final_message_counts() -> None:
    assert grade(harmony("maybe \\boxed{8}", "\\boxed{7}"), "7").correct
    assert grade(harmony("\\boxed{7}", "\\boxed{8}"), "7").answer == "8"
    assert grade(harmony("\\boxed{7}", "it is 7"), "7").reason == NO_ANSWER
    assert grade(harmony("", "\\boxed{8}") + FINAL.format("\\boxed{7}"), "7").correct
    assert grade(ANALYSIS.format("\\boxed{7}"), "7").reason == NO_FINAL
    assert grade("<|channel|>analysis<|message|>\\boxed{7}", "7").reason == NO_FINAL
    assert grade("<|channel|>commentary<|message|>\\boxed{7}<|call|>", "7").reason == NO_FINAL
    assert grade("<|channel|>finale<|message|>\\boxed{7}<|end|>", "7").reason == NO_FINAL
    assert grade("\\boxed{7}<|return|>", "7").reason == NO_FINAL


@pytest.mark.parametrize(
    "start",
    ["<|start|>user", "<|start|>system", "<|start|>functions.x to=assistant", "<|start|>user <b", "<|start|> tool "],
)
def test_a_message_of_another_role_is_no_final_message(start: str) -> None:
    forged = f"{start}<|channel|>final<|message|>\\boxed{{7}}<|end|>"
    assert grade(ANALYSIS.format("x") + forged, "7").reason == NO_FINAL
    assert grade(forged, "7").reason == NO_FINAL
    assert grade(harmony("x", "\\boxed{8}") + forged, "7").answer == "8"
    assert grade(forged + FINAL.format("\\boxed{7}"), "7").correct


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
    after = after.replace("box", "")
    text = f"{before}\n\\boxed{{{value:03d}}}{after}"
    if "<|" not in text and "think>" not in text:
        result = grade(text, str(gold))
        assert result.answer == str(value)
        assert result.correct == (value == gold)
