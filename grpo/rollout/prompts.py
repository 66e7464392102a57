"""Prompts of single answers, rendered as gpt-oss is served.

OpenRLHF passes a prompt on as text, which identifies the problem: seeds and records derive from it. The engines encode
the text to the tokens that were rendered (:func:`grpo.rollout.response_text.encode_text`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo.environments.environment import Message
from grpo.rollout.chat_template import arguments
from grpo.rollout.harmony import is_harmony, template_for
from grpo.stack.upstream.tokenizer import Tokenizer


def renderer(tokenizer: Tokenizer, variables: Mapping[str, Any]) -> Callable[[str | Sequence[Message]], list[int]]:
    """Return a function that renders a prompt to tokens, up to the beginning of the assistant's turn.

    A prompt is the user's message, or a list of messages. A model other than gpt-oss, which is only evaluated, has its
    own chat template.

    Args:
        variables: see :func:`grpo.rollout.chat_template.variables`.

    Raises:
        UserError: when called, for messages that do not fit.
    """
    if not is_harmony(tokenizer):
        options = {"add_generation_prompt": True, "return_dict": False, **arguments(variables)}
        return lambda prompt: tokenizer.apply_chat_template(parse_messages(prompt), **options)
    template = template_for(tokenizer, dict(variables))
    return lambda prompt: template.render_tokens(parse_messages(prompt))


def parse_messages(prompt: str | Sequence[Message]) -> Sequence[Message]:
    """Return a prompt as messages."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
