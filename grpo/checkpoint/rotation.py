"""Which checkpoints a run keeps."""

from collections.abc import Iterable, Sequence


def kept_steps(steps: Sequence[int], scores: dict[int, float], count: int) -> list[int]:
    """Return the steps that stay: the newest, and the best by held-out exact match.

    Args:
        steps: of all checkpoints, ascending.
        scores: exact match by step; of equal ones the latest is the best. A checkpoint without one is never the best.
        count: how many stay. The newest and the best always do, so at 1 there may be two.
    """
    best = max((step for step in steps if step in scores), key=lambda step: (scores[step], step), default=None)
    newest = list(steps[-max(count, 1) :])
    if best is None or best in newest:
        return newest
    return [best, *(newest[1:] if count > 1 else newest)]


def before_falls(steps: Sequence[int], falls: Iterable[int]) -> set[int]:
    """Return the steps that stay beside those: for each fall the newest from before it.

    Args:
        falls: the first steps whose samples show a lower correctness. They were drawn by what the step before has
            saved. That checkpoint may hold the damage, so it is kept only where there is no older one.
    """
    kept = set()
    for fall in falls:
        before = [step for step in steps if step < fall]
        kept |= set([step for step in before if step < fall - 1][-1:] or before[-1:])
    return kept
