"""Which checkpoints a run keeps."""

from collections.abc import Iterable, Sequence

from grpo.run.saved_steps import last_before


def choose_kept_steps(steps: Sequence[int], scores: dict[int, float], count: int) -> list[int]:
    """Return the steps to keep: the newest, and the best by the held-out problems.

    Args:
        steps: the steps of all checkpoints, ascending.
        scores: what was measured on the held-out problems, by step. On a tie the latest is the best. A checkpoint
            without a score is never the best.
        count: how many to keep. The newest and the best are always kept, so a count of 1 may keep two.
    """
    best = max((step for step in steps if step in scores), key=lambda step: (scores[step], step), default=None)
    newest = list(steps[-max(count, 1) :])
    if best is None or best in newest:
        return newest
    return [best, *(newest[1:] if count > 1 else newest)]


def find_steps_before_falls(steps: Sequence[int], falls: Iterable[int]) -> set[int]:
    """Return the steps to keep in addition: for each fall, the newest checkpoint from before it.

    Args:
        falls: the first steps whose rollouts show a lower correctness.
    """
    return {step for fall in falls if (step := last_before(steps, fall)) is not None}
