"""The tokens of a multi-turn rollout: one row while its history only grows, a new row once it changes.

A turn's prompt is everything before it, token for token, and what the template puts between turns. If the history
renders to other tokens, a new row branches off. Causes are dropped thinking and edited messages. The prompt of a branch
is not trained on. Every sampled token is trained once, in the row in which the engine drew it.
"""

from collections.abc import Callable, Sequence

from grpo.rollout.harmony import Piece
from grpo.rollout.invariant import describe
from grpo.rollout.trajectory import Origin, Trajectory


class RolloutHistory:
    """The rows of one rollout; the last one grows.

    Args:
        decode: returns the text of tokens.

    Attributes:
        rows: in order of their start.
        differences: why each row after the first began.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self.rows: list[Trajectory] = []
        self.differences: list[str] = []
        self._decode = decode
        self._next = Trajectory()
        self._why: str | None = None

    def prompt(self, rendered: Sequence[Piece]) -> list[int]:
        """Return the prompt for the engine, given a render of the whole history. Only :meth:`add` keeps it."""
        render = Trajectory()
        for tokens, origin in rendered:
            render.append(tokens, origin)
        row = self.rows[-1] if self.rows else Trajectory()
        size = len(row.tokens)
        self._why = describe("the history", row.tokens, render.tokens[:size], self._decode)
        if self._why or not self.rows:
            self._begin_row(render.tokens)
        else:
            self._next = Trajectory(
                list(render.tokens),
                row.origins + render.origins[size:],
                row.log_probs + render.log_probs[size:],
            )
        return list(self._next.tokens)

    def _begin_row(self, prompt: Sequence[int]) -> None:
        self._next = Trajectory()
        self._next.append(prompt, Origin.PROMPT)

    def branch(self, prompt: Sequence[int], why: str) -> None:
        """Let the next turn begin a row with the prompt that the engine really got."""
        self._why = why
        self._begin_row(prompt)

    def add(self, tokens: Sequence[int], log_probs: Sequence[float] | None) -> None:
        """Keep the last prompt, and the tokens that the engine sampled after it. Without log-probs, none is trained."""
        self._next.append(tokens, Origin.FORCED if log_probs is None else Origin.SAMPLED, log_probs)
        if not self.rows or self._why is not None:
            self.differences += [self._why] if self.rows and self._why else []
            self.rows.append(self._next)
            self._why = None  # what is added next belongs to the same row
        self.rows[-1] = self._next

    def add_forced(self, tokens: Sequence[int]) -> None:
        """Insert tokens into the turn that was kept last, such as the end of its thinking."""
        self._next.append(tokens, Origin.FORCED)
