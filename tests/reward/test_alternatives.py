r"""Without a box: one answer with an explanation after it is right, several answers never are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.answers import grade

SINGLES = [
    "The answer is 204, since there are 17 primes below 60 and 12 of them work.",
    "The answer is 204. This uses 205 = 5*41.",
    "Answer: 204\n\nExplanation: there are 17 ways to choose the first and 12 ways to choose the second.",
    "The answer is **204**.\n\nWe can verify: 17 * 12 = 204.",
    "The answer is 204. Check: 204 = 17*12, and 204 mod 5 = 4.",
    "The final answer is $204$. Here m = 103 and n = 101.", "The answer is 204 because 204 is divisible by 12.",
    "The answer is 204 (that is, $17 \\cdot 12$).", "The answer is $204 = 12 \\cdot 17$.",
    "The answer is $m+n = 101+103 = 204$.", "The answer is 204, not 205, because the case n = 0 is excluded.",
    "The answer is 204 since $2^8 - 52 = 204$.",
    "Answer: 204. Note that 205 is not reached, because the empty set is excluded.",
    "The answer is 204. I hope it is correct.",
    "The answer is 204.\n\nStep 1: We count the 17 rows.\nStep 2: We count the 12 columns.",
    "The answer is 204. For n = 5 we have 17 choices and for n = 6 we have 187 choices.", "The answer is 204 ways.",
    "Answer: 204\n\n---\nThe 17 rows contribute 12 each.", "The answer is 204.\n\n**Verification:** 204 / 12 = 17.",
    "The answer is $204$, where $m = 101$ and $n = 103$.", "The answer is 204, as 205 fails the condition mod 4.",
    "The answer is 204. (One can check that 205 fails.)", "The answer is 204; all 17 cases were checked.",
    "The answer is 204, which is 17 times 12.", "The answer is 204. In summary, 120 + 84 = 204.",
    "The answer is 204, obtained as 120 + 84.", "The answer is 204, attained at x = 3.",
    "The answer is 204. Thus m+n = 204.", "The answer is 204.\nTherefore, 204.",
    "Final Answer: 204\n\nSo the total is 204.",
    "The answer is 204.\n\n1. First we place the 3 rooks.\n2. Then the 4 knights.",
    "The answer is 204, with equality when a = b = 12.", "#### 204\n\nThe count splits into 120 and 84.",
    "The answer is 204 and this is the maximum.",
    "The answer is 204: 120 from the first case and 84 from the second.",
    "The answer is 204.\n\nNote: The 12 primes are 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31 and 37.",
    "The answer is 204. There are 205 candidates in total, but one is degenerate.",
    "The answer is 204. Alternatively, one can compute 17*12 = 204.",
    "The answer is 204. Alternatively, using generating functions gives the same result.",
    "The answer is 204. Also, 204 = 17·12.", "The answer is 204. In other words, 17 dozen.",
    "The answer is 204! We used 3 lemmas for this.",
    "Answer: 204\n\nLet me double-check: for k=1, 102; for k=2, 102. Total 204.",
    "The answer is 204 (the 205th term is the first one above it).",
    "The answer is 204. Since 1+2+...+20 = 210 and 210 - 6 = 204, we are done.",
    "The answer is 204\n\n(17 choices times 12 choices)",
    "The answer is 204.\n\n| n | count |\n|---|---|\n| 1 | 17 |\n| 2 | 187 |",
    "The answer is 204.\n- 120 triples with a < b\n- 84 triples with a > b",
    "So the answer is 204, i.e., 100 + 104 = 204.", "The answer is 204. QED",
    "The answer is 204.\n\nThis is the remainder when 5204 is divided by 1000.",
    "The answer is 204, because each of the 3 or 4 heads counts.",
    "The answer is 204, since the only roots are 3 and 4.",
    "The answer is $204$ since $\\gcd(m,n)=1$ and $m=101$, $n=103$.",
    "The answer is 204.\n\nHere the smallest such prime is 17.",
    "The answer is 204, because the largest n is 17, giving 12 values for each.",
    "The answer is 204. Recall that $17$ is prime.",
    "Hence the answer is 204, by the formula n(n+1)(2n+1)/6 with n = 8.",
    "The answer is 204 squares: 64 of side 1, 49 of side 2 and so on.",
]  # fmt: skip

HEDGES = [
    "204? No, 205.", "204. If zero counts, 205.", "204 because of odd n or 205", "204 for odd n. For even n: 205",
    "204\n- 205", "204. Wait, 205.", "204. Actually, 205.", "204. Hmm, it could also be 205.",
    "204 (if zero is excluded; 205 if included).", "204, unless zero counts, in which case 205.",
    "204. On second thought, it is 205.", "204. Correction: 205.", "204. Edit: 205", "204 → 205",
    "204, though 205 is also possible.", "204, although it might be 205.", "204. Another possibility is 205.",
    "204. Some would say 205.", "204, 205, or 206.", "204 (205 if ordered).", "204. With zero: 205.",
    "204. Including the empty set, 205.", "204. Including the empty set: $205$", "204 / 205", "204\n* 205",
    "204\n2. 205", "204 vs 205", "204. My second guess is 205.", "204. The alternative is 205.", "204; else 205",
    "204 (not counting zero), 205 (counting zero)", "204 by one convention and 205 by another",
    "204 when n is odd. When n is even, it is 205.", "204. But if we include zero, then we get 205.",
    "204 — or 205", "204... or is it 205?", "204. Or possibly $x = 205$.", "204. It might be 205.",
    "204. Alternatively the count is 205.", "204, most likely; 205 is the other candidate", "204 & 205",
    "204 | 205", "204 in case A, 205 in case B", "204; if not, 205", "204 since zero is excluded, otherwise 205",
    "204, since I assume distinct; 205 if not", "204. Case 2: 205.", "204. Sorry, I meant 205.",
    "204. Scratch that: 205", "204. Therefore 205.", "204. So, with zero, the total becomes 205.",
    "204 if n is odd; if n is even then 205", "204 by symmetry, or 205 by counting",
    "204\n\nIf zero is allowed, the answer would be 205", "204 (some books give 205)", "204.\n\n**205**",
    "204. Then again, maybe 205", "204 as n is odd, 205 as n is even",
    "204, assuming distinct; assuming identical, 205", "204 -- no, 205",
]  # fmt: skip

PHRASES = ["The answer is ", "**Answer:** ", "#### ", "So the final answer is: "]
SEPARATORS = [". ", "; ", "\n", "\n\n", " (", "? ", " — ", "! ", ": "]
LEADS = [
    "", "No, ", "Wait, ", "Actually, ", "Or ", "Perhaps ", "Maybe it's ", "If zero counts, ", "If n > 2, ",
    "Otherwise ",
    "For even n: ", "for even $n$ it is ", "With zero, ", "Another option: ", "Alternatively, ", "It could be ", "- ",
    "I would say ", "Some sources give ", "Then again it is ", "My guess: ", "• ", "2) ", "(b) ", "Part 2: ", "= ",
    "Correction — ", "I meant ", "Make that ", "Or, if zero counts, ", "In the other case ", "But possibly ", "So ",
    "The other root is ", "The value for even n is ", "Alternatively, the answer might be ", "or is it ", "or two or ",
]  # fmt: skip
FORMS = ["{}", "${}$", "**{}**", "\\({}\\)"]
ENDS = [
    ".",
    "",
    "?",
    " too.",
    " if zero counts.",
    " otherwise.",
    " is also possible.",
    ", I think.",
    " (maybe).",
    "\n\nDone.",
]


SINGLES += [
    "The answer is 204.\n\n(The triples are (1,2,3), (2,3,4) and so on.)",
    "The answer is 204, given by $\\binom{18}{2}+51$.",
    "The answer is 204.\n\nRemark. The bound is sharp for $n=17$.",
    "The final answer is **204**. The other 51 arrangements are mirror images.",
    "The answer is 204.\n\nSanity check: for n=1 the formula gives 1, as expected.",
]
HEDGES += [
    "204. Or x = 205.", "204. Or $x = 205$.", "204. Also consider 205.", "204. I'd also accept 205.",
    "204. Candidates: 201 202 203 205.", "204. If zero is included then we'd have 205.",
    "204. The value $x=205$ works too.", "204 as well as 205", "204, respectively 205",
]  # fmt: skip
HEDGES += ["204. A stricter reading gives 205.", "204. Backup answer: 205.", "204 [or 205]", "204. Perhaps (205, 206)."]


@pytest.mark.parametrize("text", SINGLES)
def test_one_answer_with_an_explanation_is_right(text: str) -> None:
    assert grade(text, "204").correct
    assert not grade(text, "205").correct


@pytest.mark.parametrize("hedge", HEDGES)
@pytest.mark.parametrize("phrase", PHRASES)
def test_a_second_answer_makes_both_wrong(phrase: str, hedge: str) -> None:
    assert not grade(phrase + hedge, "204").correct
    assert not grade(phrase + hedge, "205").correct


@given(
    *map(st.sampled_from, (PHRASES, SEPARATORS, LEADS, FORMS, FORMS, ENDS)), st.integers(0, 999), st.integers(0, 999)
)
def test_no_form_of_a_second_answer_is_rewarded(
    phrase: str, separator: str, lead: str, form: str, other_form: str, end: str, answer: int, other: int
) -> None:
    if answer != other:
        text = f"{phrase}{form.format(answer)}{separator}{lead}{other_form.format(other)}{end}"
        assert not grade(text, str(answer)).correct and not grade(text, str(other)).correct


@given(st.sampled_from(PHRASES), st.sampled_from(FORMS), st.sampled_from(FORMS), st.integers(0, 999))
def test_the_same_answer_again_is_no_second_answer(phrase: str, form: str, other_form: str, answer: int) -> None:
    for again in ("{}. Thus {}.", "{}.\n\n{}", "{}. So it is {}.", "{} (that is, {})", "{}. The answer is {}."):
        assert grade(phrase + again.format(form.format(answer), other_form.format(answer)), str(answer)).correct


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 204 if zero is excluded. Otherwise the answer is 205.",
        "The answer is 204. Another answer is 205.",
        "The answer is 204 for odd n. If n is even, the answer is 205.",
        "For odd n the answer is 204. For even n the answer is 205.",
        "One answer is 204. The other answer is 205.",
    ],
)
def test_answers_of_several_phrases_are_several(text: str) -> None:
    assert not grade(text, "204").correct and not grade(text, "205").correct


@pytest.mark.parametrize(
    ("one", "other"), [("$x$", "$y$"), ("$\\pi$", "$e$"), ("even", "odd"), ("A", "B"), ("yes", "no")]
)
@pytest.mark.parametrize("naming", ["{}. Or {}.", "{} (or {})", "{}; maybe {}", "{}. Possibly {}?"])
def test_several_symbols_or_words_are_several_answers(naming: str, one: str, other: str) -> None:
    text = "The answer is " + naming.format(one, other)
    assert not grade(text, one.strip("$")).correct and not grade(text, other.strip("$")).correct
    assert grade(f"The answer is {one}. Or so it seems.", one.strip("$")).correct


def test_a_later_phrase_corrects_an_earlier_one() -> None:
    assert grade("The answer is 205. No: the answer is 204!", "204").correct
    assert grade("The answer is 205. For the original problem, the answer is 204.", "204").correct


@pytest.mark.parametrize("gold", ["204", "205", "206"])
@pytest.mark.parametrize(
    "response",
    [
        "Answer: {}\nAnswer: {}", "#### {}\n#### {}", "The answer is {}. The answer is {}.",
        "**Answer:** {}\n\nThe final answer is ${}$.", "The answer is {}. The answer is 99. The answer is {}.",
    ],
)  # fmt: skip
def test_answers_announced_one_after_the_other_are_several(response: str, gold: str) -> None:
    assert not grade(response.format("204", "205"), gold).correct
    assert not grade(response.format("205", "204"), gold).correct


@pytest.mark.parametrize(
    "response",
    [
        "Answer: 204\nAnswer: 204", "The answer is 101/103, so the answer is 204.",
        "The answer is at most 300. The answer is 204.", "The wrong answer is 12. The answer is 204.",
        "The answer is 2552204 mod 1000, so the answer is 204.",
    ],
)  # fmt: skip
def test_one_answer_may_be_announced_again_or_derived(response: str) -> None:
    assert grade(response, "204").correct


@pytest.mark.parametrize("interval", ["(1,2]", "[1,2)", "(1,2)", "[1,2]", "(1;2]", "[1;2)"])
@pytest.mark.parametrize("form", ["${}$", "\\({}\\)", "$x \\in {}$", "{}"])
@pytest.mark.parametrize("after", ["; done", "; this was all.", ". Done.", ", since $x>1$", "; here $a=5$"])
def test_interval_ends_at_its_closing_bracket(interval: str, form: str, after: str) -> None:
    assert grade(f"The answer is {form.format(interval)}{after}", interval).correct


def test_a_long_explanation_is_graded_before_the_test_times_out() -> None:
    for piece in ("1, ", "if n > 2, ", "$x", "or (", "-- ", "\n- ", "a=", "**"):
        assert grade("The answer is 204.\n\nExplanation\n" + piece * (10**6 // len(piece)), "204").correct
        grade("The answer is 204. " + piece * (10**6 // len(piece)), "204")
