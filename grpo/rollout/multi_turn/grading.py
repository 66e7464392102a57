"""The score of a conversation that ends with an answer: the same grader as for single answers."""

import asyncio

from grpo.rollout.multi_turn.environment import Message, Score
from reward.answers import grade
from reward.labels import parse_label


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
