r"""A box next to an equation or phrase with another value: several answers are never right."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.answers import grade

BOXES = ["\\boxed{{{}}}", "$\\boxed{{{}}}$", "\\[\\boxed{{{}}}\\]", "$x = \\boxed{{{}}}$", "**\\boxed{{{}}}**"]
EQUATIONS = [
    "$x={}$",
    "$N = {}$",
    "$f(8)={}$",
    "$|S| = {}$",
    "\\(n={}\\)",
    "$m+n = {}$",
    "x = {}",
    "$x$ = {}",
    "$x = {}$, $y=3$",
]
PLAIN = ["x = {}", "$x$ = {}"]  # without a formula, numbers only
STATING = [
    ", {}", ", {}.", ". {}.", "; {}", " and {}", "\n\n{}", " ({})", ", or {}", ", so {}.", ". Thus {}.", ", then {}.",
    ". We get {}.", ". It is {}.", ": {}", " \\quad {}", ", possibly {}", ". If zero counts, {}.",
    ". {} is also possible.",
    ", with {} as another solution.", ". Since $k=2$, {}.", "\n- {}", ", hence {}", ". Also {}",
    ". Note: {}.", ". Then again, {}.", ". Finally, {}.",
]  # fmt: skip
EXPLAINING = [
    ", where {}.", ", with {}.", " for {}.", ", since {}.", ", because {}.", " (from {}).", " (with {})", ". Here {}.",
    ", as {}.", ", using {}.", ", attained at {}.", " when {}.", ". Here, {}.", "\n\nHere {}.",
    ". Recall that {} was given.",
    "\n\n(We took {}.)", ". In step 2, we set {}.",
]  # fmt: skip
PARTS = ["$m=101$", "$m=101$ and $n=103$", "$m=101$, $n=103$", "m = 101", "$a = 3$, $b = 4$, and $c = 5$"]


@pytest.mark.parametrize("stating", STATING)
@pytest.mark.parametrize("equation", EQUATIONS)
def test_independent_equation_is_another_answer(equation: str, stating: str) -> None:
    for box, other in product(BOXES, (205, 20, "2\\sqrt{3}", "\\frac{2}{3}")):
        if equation in PLAIN and not isinstance(other, int):
            continue
        text = box.format(204) + stating.format(equation.format(other))
        assert not grade(text, "204").correct, text
        assert not grade(text, str(other)).correct, text


@pytest.mark.parametrize("stating", STATING)
@pytest.mark.parametrize("equation", EQUATIONS[:-1])
@pytest.mark.parametrize("value", ["204", "0204", "204.0", "\\frac{408}{2}"])
def test_repeated_value_is_not_another_answer(stating: str, equation: str, value: str) -> None:
    if equation not in PLAIN and "k=2" not in stating:
        text = BOXES[1].format(204) + stating.format(equation.format(value))
        assert grade(text, "204").correct, text


@pytest.mark.parametrize("explaining", EXPLAINING)
@pytest.mark.parametrize("parts", PARTS)
def test_an_equation_that_is_introduced_explains(explaining: str, parts: str) -> None:
    for box in BOXES:
        text = box.format(204) + explaining.format(parts)
        assert grade(text, "204").correct, text


@pytest.mark.parametrize("end", [". ", "\n\n", ".\n"])
def test_a_derivation_may_follow_the_answer(end: str) -> None:
    derivation = "Let $x$ be the side. The base is 5, so $h = 12$, and the legs have $a = 3$, which gives $b = 4$."
    for box in BOXES:
        assert grade(box.format(204) + end + derivation, "204").correct


@pytest.mark.parametrize("form", [", so {}.", ", {}", ". Thus {}.", " ({})"])
def test_equations_may_give_the_parts_of_the_answer(form: str) -> None:
    for first, second, right in ((1, 2, True), (2, 1, False), (1, 3, False)):
        text = "$\\boxed{(1,2)}$" + form.format(f"$x={first}$ and $y={second}$")
        assert grade(text, "(1,2)").correct is right, text


PHRASES = [
    "The answer is ",
    "the final answer is: ",
    "**Answer:** ",
    "**Final Answer:** ",
    "#### ",
    "The answer equals ",
]
FORMS = ["{}", "${}$", "**{}**", "\\({}\\)", "\\[{}\\]", "$x = {}$", "{} cm", "either 204 or {}", "{} or 204"]
LEADING = [
    ". {}",
    ".\n\n{}",
    "\n\n{}",
    ", so {}.",
    ". Hence {}.",
    ", {}",
    "; {}",
    ". Thus the result is {}.",
    " {}",
    " or {}",
]


@given(
    *map(st.sampled_from, (PHRASES, FORMS, LEADING, BOXES)),
    st.integers(31, 999),
    st.integers(31, 999),
    st.text("ab .\n"),
)
def test_a_phrase_that_contradicts_the_box_is_not_paid(
    phrase: str, form: str, leading: str, box: str, said: int, boxed: int, before: str
) -> None:
    if said in (boxed, 204):
        return
    text = f"{before}\n{phrase}" + form.replace("204", str(boxed)).format(said) + leading.format(box.format(boxed))
    assert not grade(text, str(boxed)).correct and not grade(text, str(said)).correct


EQUAL = ["204", "0204", "200+4", "12\\cdot 17", "\\frac{408}{2}", "m+n = 101+103 = 204", "m+n", "2^2\\cdot 51"]


@pytest.mark.parametrize("value", EQUAL)
@pytest.mark.parametrize("phrase", PHRASES)
@pytest.mark.parametrize("leading", LEADING)
def test_a_phrase_that_says_the_same_is_right(value: str, phrase: str, leading: str) -> None:
    text = f"{phrase}${value}${leading.format(BOXES[0].format(204))}"
    if value == "m+n" and " or " in leading:
        return  # two answers
    assert grade(text, "204").correct


@pytest.mark.parametrize(
    "before",
    [
        "The answer is not 205. ", "The answer is at most 300. ", "The answer is $\\le 300$. ",
        "The naive answer is 205. ",
        "For $n=2$, the answer is $5$. ", "The answer is approximately 203.7, rounded up. ",
        "Answer:\n\n1. We count.\n\n",
        "The answer is $\\frac{101}{103}$, so $m+n = $ ", "The answer is 1204, which is ",
        "The answer is the sum of 5 terms. ",
        "The answer is $N \\equiv 1204 \\pmod{1000}$. ", "The answer is $101+103=$", "The answer is an integer. ",
        "The answer is $\\sum_{k=1}^{8} k^2$. ", "The answer is 205. No, the answer is 204. ", "The answer is $m+n$. ",
    ],
)  # fmt: skip
def test_description_of_the_answer_is_not_another_answer(before: str) -> None:
    between = "Modulo 1000 we get " if "1204" in before else ""
    assert grade(f"{before}{between}$\\boxed{{204}}$", "204").correct


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x^2+1", "x^2-1"), ("(1,2)", "(2,1)"), ("\\frac34", "\\frac23"), ("2\\sqrt3", "\\sqrt6"), ("[0,1)", "(0,1]"),
        ("\\pi", "2\\pi"), ("A", "B"), ("(A)", "(B)"), ("0.5", "0.6"), ("\\frac12", "2"), ("x=1, y=2", "x=2, y=1"),
    ],
)  # fmt: skip
def test_contradictions_of_any_kind_are_found(one: str, other: str) -> None:
    for said, boxed in ((one, other), (other, one)):
        assert not grade(f"The answer is ${said}$. $\\boxed{{{boxed}}}$", boxed).correct
        assert grade(f"The answer is ${said}$. $\\boxed{{{said}}}$", said).correct


COUNTS = [
    "\n\n*Explanation.* There are $5$ for even $n$ and $7$ for odd $n$.",
    "\n\nThe count of $k=1$ is $64$; at $k=2$ it is $49$.",
    "\n\nReason. Then $s_k=(9-k)^2$, so we sum these.", ". We place it. When $k=1$ this gives $64$.",
    " since there are 5.", " there are 5.", ", because there are 8.", ". We took 8 terms: $1, 4, 9, \\ldots$.",
    ". We took 3 terms: 1, 4, 9.", ", which uses 8 terms: $1, 4, \\dots, 64$", ", as there are 8 sizes.",
    ". I used 3 cases: 1, 2, 3.",
    ", since the ratio is 3.", ", because we have 8.", " since it is 4 more than 200.",
]  # fmt: skip


@pytest.mark.parametrize("after", COUNTS)
@pytest.mark.parametrize("box", BOXES)
def test_counts_and_reasons_are_not_answers(after: str, box: str) -> None:
    assert grade(box.format(204) + after, "204").correct


@pytest.mark.parametrize(
    "after",
    [
        ". If zero counts, there are 205.",
        ". No, there are 205.",
        ". There are 205.",
        ", or there are 205",
        ". Two options: 204, 205",
    ],
)
def test_a_count_that_corrects_is_another_answer(after: str) -> None:
    assert not grade("\\boxed{204}" + after, "204").correct


@pytest.mark.parametrize("about", ["about", "approximately", "roughly", "nearly"])
@pytest.mark.parametrize(("exact", "rounded", "wrong"), [("\\frac{2}{3}", "0.667", "0.75"), ("12.345", "12.3", "12.9")])
def test_the_answer_may_be_rounded(about: str, exact: str, rounded: str, wrong: str) -> None:
    assert grade(f"$\\boxed{{{exact}}}$, which is {about} {rounded}.", exact).correct
    assert not grade(f"$\\boxed{{{exact}}}$, which is {about} {wrong}.", exact).correct
    assert grade(f"$\\boxed{{2\\sqrt{{3}}}}$, which is {about} 3.46.", "2\\sqrt{3}").correct


def test_an_equation_around_the_box_has_to_be_true() -> None:
    for form in (
        "$205 = {}$",
        "$ 205={}$",
        "${} = 205$",
        "${}$ = 205",
        "${}$ = $205$",
        "\\[205 = {}\\]",
        "${} = 205.$",
    ):
        assert not grade(form.format("\\boxed{204}"), "204").correct
        assert grade(form.replace("205", "204").format("\\boxed{204}"), "204").correct
    for form in ("${} = 12\\cdot 17$", "$12\\cdot 17 = {}$", "${} = 8^2+7^2+\\dots+1^2$", "${} = m+n$"):
        assert grade(form.format("\\boxed{204}"), "204").correct
