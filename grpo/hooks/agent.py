"""Hooks of openrlhf/utils/agent.py, which samples and rewards one response in the engine's Ray actor.

Imports no DeepSpeed.
"""

from grpo.rollout import engine, response_text
from grpo.stack.upstream import Tokenizer
from grpo.train import rewards

prompt_tokens = response_text.encode_text  # names of special tokens in its messages stay text
ids_only = engine.ids_only
score_of = rewards.read_score
UNKNOWN_LOG_PROB = float("nan")  # of a token without a log-prob from the engine; 0.0 would be a probability of 1


def text_of(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """Return the text for the reward function, which is next: markers appear only where their tokens do."""
    engine.end_sampling()
    return response_text.decode_tokens(tokenizer, tokens)
