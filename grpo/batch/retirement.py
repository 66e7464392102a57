"""Problems that a run has solved for a while rest, and come back to be measured again."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any


class Retirement:
    """Leaves out problems whose last groups were solved by every rollout.

    A problem that comes back rests again after one more solved group. A group with a wrong rollout starts the count
    anew. Problems are named by the hash of their prompt, which is shorter in a checkpoint.

    Args:
        after: consecutive solved groups until a problem rests; None: never.
        steps: global steps that it rests.
    """

    def __init__(self, after: int | None, steps: int) -> None:
        self._after, self._steps = after, steps
        self._solved: dict[str, int] = {}  # consecutive solved groups; others are not listed
        self._back: dict[str, int] = {}  # the step from which a problem is drawn again

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain values."""
        return {"solved": dict(self._solved), "back": dict(self._back)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state`."""
        self._solved, self._back = dict(state["solved"]), dict(state["back"])

    def choose_resting(self, step: int, prompts: Sequence[str], in_play: int) -> frozenset[str]:
        """Return the prompts that a global step leaves out.

        At least `in_play` prompts stay, or no batch would be full: those that have rested longest come back early.
        """
        away = [(back, prompt) for prompt in prompts if (back := self._back.get(_name(prompt), 0)) > step]
        return frozenset(prompt for _, prompt in sorted(away, reverse=True)[: max(0, len(prompts) - in_play)])

    def has_rested(self, prompt: str) -> bool:
        """Return whether a problem has rested since its last group with a wrong rollout."""
        return _name(prompt) in self._back

    def note(self, step: int, rates: Iterable[tuple[str, float]]) -> None:
        """Count the groups of a global step: prompt and mean score of each, NaN if no rollout has a score."""
        if self._after is None:
            return
        for prompt, rate in rates:
            name = _name(prompt)
            if math.isnan(rate):
                continue
            if rate < 1:
                self._solved.pop(name, None)
                self._back.pop(name, None)
                continue
            self._solved[name] = self._solved.get(name, 0) + 1
            if self._solved[name] >= self._after:
                self._back[name] = step + self._steps + 1


def _name(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]
