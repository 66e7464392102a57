"""The answer of a message is in its last box, or after its last phrase."""

import pytest

from reward.answers import EMPTY, TOO_LONG, grade
from reward.extraction import CUT_IN_BOX, NO_ANSWER, last_box

from .harmony import harmony


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
        ("\\boxed 7, 8", "7, 8", None),
        ("\\boxed x", None, NO_ANSWER),
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


@pytest.mark.parametrize("form", ["$1${}$204$", "\\(1\\){}\\(204\\)", "**1**{}**204**", "`1`{}`204`", "$1${}204"])
@pytest.mark.parametrize("comma", [",", ", ", " ,"])
def test_two_formulas_are_not_a_number(form: str, comma: str) -> None:
    text = f"The answer is {form.format(comma)}."
    assert not grade(text, "1204").correct
    assert grade(text, "1, 204").correct


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
def test_text_after_one_answer_changes_nothing(after: str) -> None:
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
        ("\\boxed{8} The answer is 7", "8, 7"),
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


SENTENCES = [
    "The largest $n$ is {}",
    "the number of such triples is {}",
    "There are {}",
    "The area of $ABC$ equals {}",
    "It is {}",
]


@pytest.mark.parametrize("sentence", SENTENCES)
@pytest.mark.parametrize("form", ["{}", "${}$", "**{}**", "\\({}\\)"])
@pytest.mark.parametrize("phrase", ["Final Answer: ", "**Answer:** ", "The answer: ", "**Final Answer**\n\n"])
def test_the_announced_answer_may_be_a_sentence(phrase: str, form: str, sentence: str) -> None:
    text = phrase + sentence.format(form.format(34))
    for end in (".", "", ". I hope it is correct."):
        assert grade(text + end, "34").correct and not grade(text + end, "35").correct
    for other in (" or 35.", ". Or 35.", "; or 35"):
        assert not grade(text + other, "34").correct and not grade(text + other, "35").correct


@pytest.mark.parametrize(
    "sentence", ["The answer is that $n$ is not {}", "Answer: $n$ is at most {}", "Answer: it is not {}"]
)
def test_a_sentence_may_deny_or_bound(sentence: str) -> None:
    assert not grade(sentence.format(34), "34").correct


@pytest.mark.parametrize("before", ["$x=1/5$, or ", "The answer is 3. ", "205 or ", ""])
@pytest.mark.parametrize("after", ["", " percent.", ", since there are 5.", ". Or $x=3$.", ", $n=7$"])
def test_gold_of_a_reference_solution_is_the_content_of_its_boxes(before: str, after: str) -> None:
    assert last_box(f"{before}$\\boxed{{20}}${after}") == ("20", None)
    assert last_box(f"{before}$\\boxed{{20}}$ and $\\boxed{{30}}${after}") == ("20, 30", None)
