"""Selects the format of a tokenizer."""

from typing import Any

from grpo.rollout.multi_turn.chatml import Plain, Qwen3
from grpo.rollout.multi_turn.harmony import HarmonyTemplate
from grpo.rollout.multi_turn.template import Template
from grpo.stack.problem import UserError
from grpo.stack.upstream.tokenizer import FastTokenizer


def template_for(tokenizer: FastTokenizer, variables: dict[str, Any] | None = None, source: str = "served") -> Template:
    """Return the format of a tokenizer, recognised by its special tokens.

    Args:
        variables: see :class:`Template`.
        source: for gpt-oss, see :data:`grpo.rollout.multi_turn.settings.TEMPLATES`.

    Raises:
        UserError: for a tokenizer without a fast backend or without an end-of-text token.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise UserError("several turns need a fast tokenizer", "leave out --disable_fast_tokenizer")
    added = tokenizer.get_added_vocab()
    if {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"} <= added.keys():
        return HarmonyTemplate(tokenizer, variables, follows_hub=source == "hub")
    if "<|im_start|>" in added:
        return Qwen3(tokenizer, variables)
    if tokenizer.eos_token in added:
        return Plain(tokenizer, variables)
    raise UserError("the tokenizer has no eos_token, which would end a turn", "add one to tokenizer_config.json")
