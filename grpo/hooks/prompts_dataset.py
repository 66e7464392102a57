"""Hooks of openrlhf/datasets/prompts_dataset.py: prompts from messages, in training and in evaluations."""

from collections.abc import Callable
from functools import partial

from grpo.rollout import chat_template
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.tokenizer import Tokenizer


def render_with(tokenizer: Tokenizer, args: Arguments) -> Callable[..., str]:
    """Return the tokenizer's ``apply_chat_template`` with the run's template variables."""
    # Other command lines of OpenRLHF lack the flags.
    effort, others = getattr(args, "reasoning_effort", None), getattr(args, "template_variables", None)
    return partial(tokenizer.apply_chat_template, **chat_template.variables(effort, others))
