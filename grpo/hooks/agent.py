"""Hooks of openrlhf/utils/agent.py, which samples and rewards one response in the engine's Ray actor.

Imports no DeepSpeed.
"""

from typing import Any

from grpo.batch import rewards
from grpo.rollout import engine, response_text

UNKNOWN_LOG_PROB = float("nan")  # of a token without a log-prob from the engine; 0.0 would be a probability of 1


def ids_only(params: Any) -> Any:
    """Return the sampling parameters of a call that returns its tokens at the end, and no text."""
    return engine.ids_only(params)


def text_of(tokenizer: Any, tokens: list[int]) -> str:
    """Return the text for the reward function: markers appear only where their tokens do."""
    return response_text.text_of(tokenizer, tokens)


def score_of(rewards_info: dict[str, Any]) -> Any:
    """Return the score of a reward result; 0.0 is a valid score."""
    return rewards.score_of(rewards_info)
