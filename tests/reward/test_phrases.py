"""Without a box, the answer is what the last phrase such as "the answer is" announces."""

import pytest

from reward.answers import grade
from reward.extraction import NO_ANSWER

from .harmony import format_harmony


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 7.", "the answer is 7", "So the final answer is: **7**", "**Final Answer:** $7$", "Answer: 7",
        "### Final Answer\n\n7", "**Answer**\n\n$7$", "The answer is 8. No: the answer is $7$!", "#### 7",
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
    assert grade(format_harmony("the answer is 8", text.replace("<|im_end|>", "")), "7").correct


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
    assert not grade(f"{text} or 35.", "34").correct and not grade(f"{text} or 35.", "35").correct
    for other in (". Or 35.", "; or 35"):
        assert not grade(text + other, "35").correct


@pytest.mark.parametrize(
    "sentence", ["The answer is that $n$ is not {}", "Answer: $n$ is at most {}", "Answer: it is not {}"]
)
def test_a_sentence_may_deny_or_bound(sentence: str) -> None:
    assert not grade(sentence.format(34), "34").correct


NAMING = ["{} or {}", "either {} or {}", "{}, {}", "{} and {}", "{}, or {}", "{} (or {})", "{} {}", "{}, perhaps {}"]


@pytest.mark.parametrize("naming", NAMING)
@pytest.mark.parametrize("form", ["{}", "${}$", "**{}**", "\\({}\\)", "$\\frac{{{}}}{{1}}$"])
def test_naming_several_answers_is_not_right(naming: str, form: str) -> None:
    for values in ((204, 205), (205, 204)):
        named = naming.format(*(form.format(value) for value in values))
        for text in (f"The answer is {named}", f"**Answer:** {named}", f"#### {named}", f"\\boxed{{{named}}}"):
            assert not grade(text, "204").correct, text


@pytest.mark.parametrize("hedge", [". If zero counts, 205.", "\n205", "; otherwise 205", " if n is odd, else 205"])
def test_hedging_after_an_answer_wins_nothing(hedge: str) -> None:
    assert not grade(f"The answer is 204{hedge}", "205").correct


def test_the_last_phrase_counts_alone() -> None:
    for text in ("The answer is 205. The answer is 204.", "Answer: 205\nAnswer: 204", "#### 205\n#### 204"):
        assert grade(text, "204").correct and not grade(text, "205").correct


@pytest.mark.parametrize(
    ("text", "gold", "other"),
    [
        ("Answer: $3! = 6$", "6", "3"), ("The answer is $8! = 40320$.", "40320", "8"), ("The answer is 4!", "24", "4"),
        ("The answer is 4!.", "24", "4"), ("The answer is \\(4!\\).", "24", "4"), ("#### n!", "n!", "n"),
        ("The answer is $(n+1)! $", "(n+1)!", "n+1"), ("The answer is $1/2004!$.", "1/2004!", "1/2006!"),
        ("The answer is 4! Each of the 4 has a place.", "24", "4"), ("The answer is **4!**", "24", "4"),
        ("The answer is $4$! It has to be.", "4", "24"), ("The answer is **4**!", "4", "24"),
        ("The answer is \\(4\\)!", "4", "24"), ("The answer is even! I am sure.", "\\text{even}", "\\text{odd}"),
    ],
)  # fmt: skip
def test_an_exclamation_mark_after_a_number_is_a_factorial(text: str, gold: str, other: str) -> None:
    assert grade(text, gold).correct and not grade(text, other).correct


@pytest.mark.parametrize("interval", ["(1,2]", "[1,2)", "(1,2)", "[1,2]", "(1;2]", "[1;2)"])
@pytest.mark.parametrize("form", ["${}$", "\\({}\\)", "$x \\in {}$", "{}"])
@pytest.mark.parametrize("after", ["; done", "; this was all.", ". Done.", ", since $x>1$", "; here $a=5$"])
def test_interval_ends_at_its_closing_bracket(interval: str, form: str, after: str) -> None:
    assert grade(f"The answer is {form.format(interval)}{after}", interval).correct


@pytest.mark.parametrize("piece", ["1, ", "if n > 2, ", "$x", "or (", "-- ", "\n- ", "a=", "**", "! "])
def test_a_long_explanation_is_graded_before_the_test_times_out(piece: str) -> None:
    assert grade("The answer is 204.\n\nExplanation\n" + piece * (10**6 // len(piece)), "204").correct
