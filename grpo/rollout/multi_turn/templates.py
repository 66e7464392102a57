"""Selects the format of a tokenizer."""

from typing import Any, cast

from grpo.rollout.multi_turn.chatml import Plain, Qwen3
from grpo.rollout.multi_turn.harmony import HarmonyTemplate
from grpo.rollout.multi_turn.template import Template
from grpo.stack.problem import UserError
from grpo.stack.upstream.tokenizer import FastTokenizer, Tokenizer

_HARMONY = {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"}


def is_harmony(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer is gpt-oss's, by its special tokens."""
    return tokenizer.get_added_vocab().keys() >= _HARMONY


def template_for(tokenizer: Tokenizer, variables: dict[str, Any] | None = None, source: str = "served") -> Template:
    """Return the format of a tokenizer, recognized by its special tokens.

    Args:
        variables: see :class:`Template`.
        source: for gpt-oss, see TEMPLATE in the table of settings.

    Raises:
        UserError: for a tokenizer without a fast backend or without an end-of-text token.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise UserError("prompts need a fast tokenizer", "leave out --disable_fast_tokenizer")
    tokenizer, added = cast(FastTokenizer, tokenizer), tokenizer.get_added_vocab()
    if is_harmony(tokenizer):
        return HarmonyTemplate(tokenizer, variables, follows_hub=source == "hub")
    if "<|im_start|>" in added:
        return Qwen3(tokenizer, variables)
    if tokenizer.eos_token in added:
        return Plain(tokenizer, variables)
    raise UserError("the tokenizer has no eos_token, which would end a turn", "add one to tokenizer_config.json")
