"""The tokens of a multi-turn rollout: one row while its history only grows, a new row once it changes.

A turn's prompt is everything before it, token for token, and what the template puts between turns. If the history
renders differently, a new row branches off. Causes are dropped thinking, edited messages, or a tool call rendered
differently than the model wrote it. The prompt of a branch is not trained on. Every sampled token is trained once, in
the row in which the engine drew it.
"""

from collections.abc import Sequence

from grpo.rollout.multi_turn.parts import Codec, Difference, Part
from grpo.rollout.trajectory import Origin, Trajectory


class RolloutHistory:
    """The rows of one rollout; the last one grows.

    Attributes:
        rows: in order of their start.
        differences: why each row after the first began.
        codec: encodes and decodes the tokens.
    """

    def __init__(self, codec: Codec) -> None:
        self.rows: list[Trajectory] = []
        self.differences: list[str] = []
        self.codec = codec
        self._next = Trajectory()
        self._why: str | None = None

    def prompt(self, parts: Sequence[Part]) -> list[int]:
        """Return the prompt for the engine, given a render of the history. Only :meth:`add` keeps it.

        Args:
            parts: the whole render, up to the start of the assistant's turn.
        """
        self._why = None
        if not self.rows:
            self._next = self._begin_trajectory([], parts)
            return list(self._next.tokens)
        before = self.rows[-1]
        gap = self.codec.continuation(before.tokens, parts)
        if isinstance(gap, Difference):
            self._why = describe(self.codec, before.tokens, gap)
            kept = before.tokens[: gap.shared]  # the identical tokens, which also hit the engine's prefix cache
            rest = self.codec.continuation(kept, parts)
            assert not isinstance(rest, Difference)
            self._next = self._begin_trajectory(kept, rest)
        else:
            self._next = Trajectory(list(before.tokens), list(before.origins), list(before.log_probs))
            for tokens, origin in self.codec.encode(gap):
                self._next.append(tokens, origin)
        return list(self._next.tokens)

    def _begin_trajectory(self, kept: Sequence[int], parts: Sequence[Part]) -> Trajectory:
        begun = Trajectory()
        begun.append(kept, Origin.PROMPT)
        for tokens, _ in self.codec.encode(parts):
            begun.append(tokens, Origin.PROMPT)
        return begun

    def add(self, tokens: Sequence[int], log_probs: Sequence[float]) -> None:
        """Keep the last prompt, and the tokens that the engine sampled after it."""
        self._next.append(tokens, Origin.SAMPLED, log_probs)
        self._commit()

    def add_untrained(self, tokens: Sequence[int]) -> None:
        """Keep the last prompt and a turn with unreliable log-probs, which is not trained on."""
        self._next.append(tokens, Origin.FORCED)
        self._commit()

    def add_forced(self, tokens: Sequence[int]) -> None:
        """Insert tokens into the turn that was kept last, such as the end of its thinking."""
        self._next.append(tokens, Origin.FORCED)

    def response(self) -> list[int]:
        """Return the tokens of the last row after its prompt."""
        return self.rows[-1].tokens[self.rows[-1].count(Origin.PROMPT) :] if self.rows else []

    def branch(self, prompt: Sequence[int], why: str) -> None:
        """Let the next turn begin a row with the prompt that the engine really got."""
        self._next, self._why = Trajectory(), why
        self._next.append(prompt, Origin.PROMPT)

    def _commit(self) -> None:
        if self.rows and self._why is None:
            self.rows[-1] = self._next
            return
        if self.rows and self._why is not None:
            self.differences.append(self._why)
        self.rows.append(self._next)
        self._why = None  # what is added next belongs to the same row


def describe(codec: Codec, tokens: Sequence[int], difference: Difference) -> str:
    """Describe where a history first differs from the tokens before it, with both texts."""
    before = codec.decode(tokens[max(0, difference.position - 8) : difference.position])
    return (
        f"position {difference.position}, after {before!r}: sampled {difference.tokens_text!r}, "
        f"rendered {difference.render_text!r}"
    )
