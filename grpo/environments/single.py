"""Single answers: a prompt, one turn, and the grader's verdict, as in a run without an environment or a judge."""

import asyncio

from grpo.environments import environment
from grpo.environments.environment import Message, Score
from reward.answers import grade
from reward.labels import parse_label


class Environment(environment.Environment):
    """A problem, and its answer."""

    async def score(self, messages: list[Message], ending: str) -> Score:
        """Return whether the gold answer is in a message of the final channel."""
        is_final = messages[-1].get("channel") == "final"
        return await grade_messages(messages if is_final else messages[:-1], ending, self.label)


async def grade_messages(messages: list[Message], ending: str, label: str) -> Score:
    """Return 1 for the gold answer in the last message, else 0. A label is that of single answers."""
    last = messages[-1]
    text = last.get("content") or "" if last["role"] == "assistant" and not last.get("tool_calls") else ""
    # The grader reads harmony responses: only a final message has an answer, up to a marker inside it.
    response = f"<|channel|>final<|message|>{text}" + ("<|return|>" if ending == "done" else "")
    prompt = next((str(message.get("content")) for message in messages if message["role"] == "user"), None)
    result = await asyncio.to_thread(grade, response, parse_label(label).answer, prompt)
    correct = float(result.correct)
    return Score(correct, correct, {"correct": correct, "answered": float(result.answer is not None)})
