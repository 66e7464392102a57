"""Hooks of openrlhf/utils/agent.py, which samples and rewards one response in the engine's Ray actor.

Imports no DeepSpeed.
"""

from typing import TYPE_CHECKING, Any

from grpo.batch import rewards
from grpo.rollout import answering, engine, response_text
from grpo.stack.upstream.tokenizer import FastTokenizer, Tokenizer

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

UNKNOWN_LOG_PROB = float("nan")  # of a token without a log-prob from the engine; 0.0 would be a probability of 1


def prompt_tokens(tokenizer: FastTokenizer, prompt: str) -> list[int]:
    """Return the tokens of a rendered prompt; names of special tokens in its messages stay text."""
    return response_text.tokens_of(tokenizer, prompt)


def ids_only(params: "SamplingParams") -> "SamplingParams":
    """Return the sampling parameters of a call that returns its tokens at the end, and no text."""
    return engine.ids_only(params)


def text_of(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """Return the text for the reward function, which is next: markers appear only where their tokens do."""
    answering.end_sampling()
    return response_text.text_of(tokenizer, tokens)


def score_of(rewards_info: dict[str, Any]) -> Any:
    """Return the score of a reward result; 0.0 is a valid score."""
    return rewards.score_of(rewards_info)
