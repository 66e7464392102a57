"""The tokens of a rollout of several turns: one sample as long as its history only grows, a new one where it does not.

A turn's prompt is everything before it, token for token, and what the template puts between turns. Where the render of
the history is another one (thinking left out, messages edited, a tool call that reads otherwise than it was written), a
new sample branches off. Nothing of its prompt is trained there: what was sampled is trained once, in the sample where
the engine has sampled it.
"""

from collections.abc import Sequence

from grpo.rollout.multi_turn.parts import Codec, Difference, Part
from grpo.rollout.trajectory import Origin, Trajectory


class History:
    """The samples of one rollout; the last one grows.

    Attributes:
        samples: in the order in which they began.
        differences: why each but the first one began.
    """

    def __init__(self, codec: Codec) -> None:
        self.samples: list[Trajectory] = []
        self.differences: list[str] = []
        self._codec = codec
        self._next = Trajectory()
        self._why: str | None = None

    def prompt(self, parts: Sequence[Part]) -> list[int]:
        """Return what the engine is to be given for a render of the history. Kept by :meth:`add` only.

        Args:
            parts: the whole render, up to where the assistant goes on.
        """
        self._why = None
        if not self.samples:
            self._next = self._begun([], parts)
            return list(self._next.tokens)
        before = self.samples[-1]
        gap = self._codec.continuation(before.tokens, parts)
        if isinstance(gap, Difference):
            self._why = describe(self._codec, before.tokens, gap)
            kept = before.tokens[: gap.shared]  # the very tokens, also for the engine's prefix cache
            rest = self._codec.continuation(kept, parts)
            assert not isinstance(rest, Difference)
            self._next = self._begun(kept, rest)
        else:
            self._next = Trajectory(list(before.tokens), list(before.origins), list(before.log_probs))
            for tokens, origin in self._codec.encode(gap):
                self._next.append(tokens, origin)
        return list(self._next.tokens)

    def _begun(self, kept: Sequence[int], parts: Sequence[Part]) -> Trajectory:
        begun = Trajectory()
        begun.append(kept, Origin.PROMPT)
        for tokens, _ in self._codec.encode(parts):
            begun.append(tokens, Origin.PROMPT)
        return begun

    def add(self, tokens: Sequence[int], log_probs: Sequence[float]) -> None:
        """Keep the last prompt, and what the engine has sampled after it."""
        self._next.append(tokens, Origin.SAMPLED, log_probs)
        self._commit(self._next, self._why)

    def add_untrained(self, tokens: Sequence[int]) -> None:
        """Keep the last prompt and a turn whose log-probs are not to be trusted: it is not trained on."""
        self._next.append(tokens, Origin.FORCED)
        self._commit(self._next, self._why)

    def branch(self, prompt: Sequence[int], why: str) -> None:
        """Let the turn that comes begin a sample with the prompt that the engine was really given."""
        self._next, self._why = Trajectory(), why
        self._next.append(prompt, Origin.PROMPT)

    def _commit(self, sample: Trajectory, why: str | None) -> None:
        if self.samples and why is None:
            self.samples[-1] = sample
            return
        if self.samples and why is not None:
            self.differences.append(why)
        self.samples.append(sample)


def describe(codec: Codec, tokens: Sequence[int], difference: Difference) -> str:
    """Say where a history differs from the tokens before it, with what stands there."""
    before = codec.decode(tokens[max(0, difference.place - 8) : difference.place])
    return (
        f"position {difference.place}, after {before!r}: sampled {difference.tokens_text!r}, "
        f"rendered {difference.render_text!r}"
    )
