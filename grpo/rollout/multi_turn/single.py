"""Single answers among environments: a prompt, one turn, and the grader's verdict, as in a run without a judge."""

from grpo.rollout.multi_turn import environment
from grpo.rollout.multi_turn.environment import Message, Score
from grpo.rollout.multi_turn.grading import grade_messages


class Environment(environment.Environment):
    """A problem, and its answer."""

    async def score(self, messages: list[Message], ending: str) -> Score:
        """Return whether the gold answer is in a message of the final channel."""
        is_final = messages[-1].get("channel") == "final"
        return await grade_messages(messages if is_final else messages[:-1], ending, self.label)
