r"""A formula that is copied from the problem is no answer: `12+34` says nothing that the problem does not."""

import pytest

from reward.answers import grade, repeats_prompt

SURD = r"\frac{\sqrt8+\sqrt3}{\sqrt2+\sqrt3}"
COPIES = [
    ("12+34", "46", "What is 12 + 34?"), ("12+34", "46", "What is $12+34$?"), ("12+34=12+34", "46", "Find $12+34$."),
    ("x=12+34", "46", "Find $x=12+34$."), ("(12+34)", "46", "What is $12+34$?"), ("12+34", "46", "Find\n12+34\nnow"),
    (SURD, SURD + r"\cdot 1", r"Simplify $\dfrac{\sqrt{8}+\sqrt{3}}{\sqrt{2}+\sqrt{3}}$."),
    ("2^{10}", "1024", "Compute 2^10."), ("3!", "6", "Compute $3!$."), ("12\\cdot 34", "408", "What is 12 * 34?"),
    ("12\\times34", "408", "How much is $12 \\cdot 34\\text{ cm}$?"), ("\\sqrt{16}", "4", "What is √16?"),
    ("\\log_2 8", "3", "Evaluate \\[\\log_{2}8.\\]"), ("\\boxed{12+34}", "46", "What is 12+34?"),
    ("(x+1)(x-1)", "x^2-1", "Expand $(x+1)(x-1)$."),
]  # fmt: skip
ANSWERS = [
    ("46", "46", "What is $12+34$, 46 or 47?"), ("12+34=46", "46", "What is $12+34$?"),
    ("\\frac12", "0.5", "Let $p=\\frac12$."), ("1,000", "1000", "There are 1,000 balls."),
    ("5\\%", "5", "What is 5\\% of 100?"), ("\\sqrt2", "\\sqrt{2}", "The sides are $\\sqrt{2}$ and 3."),
    ("x+1", "1+x", "Simplify $2(x+1)-x-1$."), ("x+1", "1+x", "Simplify $x+1+0$."), ("x", "x", "Let $x$ be real."),
    ("2x+1", "y=2x+1", "The line $y=2x+1$ is one of them."), ("(1,2)", "(1,2)", "The points $(1,2)$ and $(3,4)$."),
    ("3!", "6", "Compute $3!\\cdot 5$."), ("3^2", "9", "Compute $13^2$."), ("2^{10}", "2^{10}", "Which is $2^{10}$?"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "gold", "prompt"), COPIES)
def test_a_copy_is_not_paid(answer: str, gold: str, prompt: str) -> None:
    assert grade(f"\\boxed{{{answer}}}", gold).correct
    assert not grade(f"\\boxed{{{answer}}}", gold, prompt).correct
    assert grade(f"\\boxed{{{gold}}}", gold, prompt).correct


@pytest.mark.parametrize(("answer", "gold", "prompt"), ANSWERS)
def test_numbers_and_the_spelling_of_the_gold_answer_are_answers(answer: str, gold: str, prompt: str) -> None:
    assert grade(f"\\boxed{{{answer}}}", gold, prompt).correct


@pytest.mark.parametrize("piece", ["1 + ", "(", " ", "$1+", "12+34x ", ". ", "\\frac{", "{", "$"])
def test_a_long_prompt_is_read_before_the_test_times_out(piece: str) -> None:
    assert not repeats_prompt("12+34", "46", piece * (10**6 // len(piece)))
