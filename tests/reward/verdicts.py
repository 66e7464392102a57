"""Verdicts on two answers, each of which is once the gold one."""

from reward.answers import grade


def is_equal(first: str, second: str) -> bool:
    """Whether two answers are equal; the order must not matter."""
    one, other = grade(f"\\boxed{{{first}}}", second).correct, grade(f"\\boxed{{{second}}}", first).correct
    assert one == other, (first, second)
    return one
