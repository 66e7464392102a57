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
)


@pytest.mark.parametrize("response", EXPLAINED)
def test_an_explanation_changes_nothing(response):
    assert grade(response, "204").correct


@pytest.mark.parametrize("response", HEDGED)
@pytest.mark.parametrize("gold", ["204", "205"])
def test_another_answer_makes_a_list(response, gold):
    assert not grade(response, gold).correct
