"""Single answers among environments: a prompt, one turn, and the grader's verdict, as in a run without a judge."""

from collections.abc import Callable

from grpo.rollout.multi_turn import environment
from grpo.rollout.multi_turn.environment import Message, Score
from grpo.rollout.multi_turn.grading import grade_messages, grade_response


class Environment(environment.Environment):
    """A problem, and its answer.

    Attributes:
        response: returns the answer's text with special tokens; None for a model behind an API, which shows none.
    """

    response: Callable[[], str] | None = None

    async def score(self, messages: list[Message], ending: str) -> Score:
        """Return whether the final answer is the gold one."""
        if self.response is None:
            return await grade_messages(messages, ending, self.label)
        return await grade_response(self.response(), self.label, messages)
