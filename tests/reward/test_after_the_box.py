"""The text after a box: it may explain the answer, and may not add another."""

import pytest

from reward.answers import grade

EXPLAINED = (
    r"Thus \boxed{204}.",
    r"\[\boxed{204}\] since 205 is odd.",
    r"$\boxed{204}$, because $205 = 5\cdot 41$.",
    r"\boxed{204} \quad (205 fails)",
    r"The answer is $\boxed{204}=\frac{408}{2}$.",
    r"$$\boxed{204}$$ Note: 17 primes below 60 were used.",
    "\\boxed{204}\n\n**Check**: 205 - 1 = 204.",
    r"\boxed{204} dollars",
    r"\boxed{204}\text{ cm}^2",
    r"\boxed{204}. $\blacksquare$",
    r"Answer: $\boxed{204}^\circ$",
    r"$\boxed{204} \pmod{1000}$",
    "\\boxed{204}\n\n1. First we count. 2. Then we add.",
    r"$\boxed{204}$ (option 3)",
    r"\boxed{204}. This took 3 steps.",
    r"$\boxed{204}$, so $m+n=204$.",
    r"\boxed{204}, which is $2^2 \cdot 3 \cdot 17$.",
    "$\\boxed{204}$\n\nThere are 17 rows with 12 squares each, and 17 times 12 is 204.",
    "$\\boxed{204}$.\n\n**Verification:** for $n=5$ we get 17 choices, so 205 is impossible.",
    "\\[\\boxed{204}\\]\n\nHere $m = 101$ and $n = 103$, so $m+n = 204$.",
    "$$\\boxed{204}$$\n\nThe 12 primes used are 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31 and 37.",
    "$\\boxed{204}$.\n\nRemark: replacing 8 by 9 would give a sum of squares with 9 terms.",
    "$\\boxed{204}$ (120 from the first case and 84 from the second).",
    "$\\boxed{204}$, obtained as $120 + 84$.",
    "\\boxed{204} squares: 64 of side 1, 49 of side 2 and so on.",
    "\\boxed{204}\n\n*(The numbers 103 and 101 are coprime.)*",
    "\\boxed{204}\n\n| n | count |\n|---|---|\n| 1 | 17 |\n| 2 | 187 |",
    "\\boxed{204}\n\nThis is the remainder when 5204 is divided by 1000.",
    "\\boxed{204}. I hope it is correct.",
    "\\boxed{204}\n\nThe final answer is 204.",
    "\\boxed{204}\n\n**Answer: 204**",
    "\\[\\boxed{204}\\]\n\n$\\boxed{204}$",
    "\\boxed{204}\n\nExplanation: 205 fails, and 206 is too large.",
    "\\boxed{204}, as $x = 3$ and $y = 4$ are the only roots.",
    "\\boxed{204}\n\nHence the requested sum of $m$ and $n$ is $204$.",
    "$\\boxed{204}$ for $n = 8$.",
    "$x = \\boxed{204}$ when $y = 3$ and $z = 5$.",
    "\\boxed{204}, since $f(3) = 5$ and $f(4) = 7$.",
    "$\\boxed{204}\\approx 2\\cdot 10^2$",
    "$\\boxed{204} = 12 \\cdot 17$.",
    "$\\begin{aligned} m+n &= \\boxed{204} \\end{aligned}$",
    "\\boxed{204} \\text{ (mod } 1000)$",
    "\\boxed{204}\n\nNote that the answer does not depend on the 3 colours.",
    "\\boxed{204}.\n\nA quick check with $k=1$ and $k=2$ yields sums of squares again.",
    "\\boxed{204}\n\nTherefore, the sum is 204 and the proof is complete.",
    "\\boxed{204}! We used 3 lemmas for this.",
    "\\boxed{204} (see Figure 3 and Lemma 2.1).",
    "\\boxed{204}, that is, $17$ dozen.",
    "\\boxed{204}\n\n---\n\n**Summary**\n- 120 triples with a < b\n- 84 triples with a > b",
    "\\boxed{204}. In AIME format this is 204.",
    "\\boxed{204}, i.e. $\\frac{408}{2}$.",
    "\\boxed{204}\n\n(Recall that $1^2 + 2^2 + \\dots + 8^2 = 204$.)",
    "\\boxed{204}. Thus the sequence begins 1, 5, 14, 30, 55 and reaches 204.",
    "\\boxed{204}<|im_end|>",
    "$x=\\boxed{204}\\;\\text{cm}^2$",
    "\\boxed{204}\n\n$\\textbf{(C)}$",
)
HEDGED = (
    r"\boxed{204}, or 205",
    r"\boxed{204}. If zero counts, 205.",
    r"\boxed{204} or maybe 205.",
    r"$\boxed{204}$. No, 205.",
    r"$\boxed{204}$; alternatively $205$.",
    r"\boxed{204}. Otherwise the answer is 205.",
    r"\[\boxed{204}\] or \[205\]",
    "\\boxed{204}\n\nOr 205.",
    r"$\boxed{204} \text{ or } 205$",
    r"\boxed{204}, 205",
    r"\boxed{204} and 205",
    r"\boxed{204} and $205$",
    r"\boxed{204}; 205",
    r"\boxed{204} (205)",
    r"\boxed{204} / 205",
    "\\boxed{204}\n205",
    r"$\boxed{204} \text{ and } 205$",
    r"$\boxed{204}, 205$",
    r"$\boxed{204}; 205$",
    r"$\boxed{204}$, $205$",
    r"$\boxed{204}\lor 205$",
    r"$\boxed{204} \vee 205$",
    r"$x\in\{\boxed{204}, 205\}$",
    r"\boxed{204} is wrong; the answer is 205.",
    r"\boxed{204}. Correction: 205",
    r"\boxed{204}. Final answer: 205",
    "\\boxed{204}\n\n**Final answer:** 205",
    r"\boxed{204}. The answer is 205.",
    r"\boxed{204}. The other answer is 205.",
    r"\boxed{204}. It might also be 205.",
    r"\boxed{204} as well as 205",
    r"\boxed{204}\text{ or }205",
    r"\boxed{204} \quad 205",
    r"\boxed{204} respectively 205",
    r"\boxed{204} & 205",
    r"\boxed{204}, but $x = 205$ works too.",
)
LISTED = (
    "- 205\n- \\boxed{204}",
    r"205 or \boxed{204}",
    r"$205$ or $\boxed{204}$",
    r"$205 \text{ or } \boxed{204}$",
    r"205, \boxed{204}",
    r"$x = 205$ or $x = \boxed{204}$",
    "1. \\boxed{205}\n2. \\boxed{204}",
    r"(a) \boxed{205} (b) \boxed{204}",
    r"\boxed{205} \lor \boxed{204}",
    r"\boxed{205} \vee \boxed{204}",
    r"\boxed{205}~\boxed{204}",
    r"\boxed{205}\\ \boxed{204}",
    r"\boxed{205} & \boxed{204}",
    r"\boxed{205}={\boxed{204}}",
    r"Either \boxed{205} for odd or \boxed{204} for even",
    r"\boxed{205} if n is odd, \boxed{204} if even",
    r"\boxed{205} for case 1, \boxed{204} for case 2.",
    r"\boxed{205} vs \boxed{204}",
    r"\boxed{205} to \boxed{204}",
    r"\boxed{205} plus \boxed{204}",
    r"\boxed{205}, second option \boxed{204}",
    r"\boxed{205} (first guess), \boxed{204} (second guess)",
    r"\boxed{205}, or else it is \boxed{204}",
    r"\boxed{205}, though possibly \boxed{204}",
    r"\boxed{205} and if not that, \boxed{204}",
    r"\boxed{205}. Otherwise it is \boxed{204}.",
)
CONCLUDED = (
    "The first case gives \\boxed{205}. Subtracting the empty set leaves \\boxed{204}.",
    "$f(8) = \\boxed{205}$.\n\nThe answer is $\\boxed{204}$.",
    r"First \boxed{205}, which gives \boxed{204}",
    r"\boxed{205}, so the answer is \boxed{204}.",
    r"We find $m = \boxed{205}$, hence $n = \boxed{204}$.",
    r"From \boxed{205} we then get \boxed{204}.",
    "The probability is $\\boxed{\\frac{101}{103}}$. Thus $m+n = \\boxed{204}$.",
    "**Step 1:** \\boxed{205}\n\n**Step 2:** remove one, which leaves \\boxed{204}",
    "There are \\boxed{205} subsets in total. One is empty. The count is \\boxed{204}.",
    r"$\boxed{\frac{408}{2}} = \boxed{204}$",
    r"For $n > 3$, \boxed{204}",
    r"With $m = 101$ and $n = 103$, \boxed{204}",
    "Since 205 is odd and 206 is even or not, the answer is \\boxed{204}.",
)


@pytest.mark.parametrize("response", LISTED)
def test_values_before_the_box_make_a_list(response):
    assert not grade(response, "204").correct and not grade(response, "205").correct


@pytest.mark.parametrize("response", CONCLUDED)
def test_the_box_of_the_conclusion_counts(response):
    assert grade(response, "204").correct


@pytest.mark.parametrize("response", EXPLAINED)
def test_an_explanation_changes_nothing(response):
    assert grade(response, "204").correct


@pytest.mark.parametrize("response", HEDGED)
@pytest.mark.parametrize("gold", ["204", "205"])
def test_another_answer_makes_a_list(response, gold):
    assert not grade(response, gold).correct
