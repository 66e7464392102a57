"""Hooks of openrlhf/datasets/prompts_dataset.py: prompts from messages, in training and in evaluations."""

from collections.abc import Callable

from grpo.rollout import chat_template, harmony, response_text
from grpo.stack.upstream import Arguments, Tokenizer


def render_with(tokenizer: Tokenizer, args: Arguments) -> Callable[..., str]:
    """Return a replacement for the tokenizer's ``apply_chat_template`` that returns a prompt's text as it is served."""
    # Other command lines of OpenRLHF lack the flags.
    given = [getattr(args, name, None) for name in ("reasoning_effort", "template_variables", "template_date")]
    render = harmony.renderer(tokenizer, chat_template.variables(*given))
    return lambda chat, **_: response_text.decode_tokens(tokenizer, render(chat))
