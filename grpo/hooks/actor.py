"""Hooks of openrlhf/models/actor.py: loading the model, and one forward pass of it."""

from typing import Any

import torch

from grpo.model import loading, vocabulary
from grpo.update import passes


def is_gpt_oss(path: str) -> bool:
    """Say whether the model is a gpt-oss, which we load ourselves."""
    return loading.is_gpt_oss(path)


def load_gpt_oss(path: str, attention: str, ds_config: dict[str, Any] | None) -> torch.nn.Module:
    """Load a gpt-oss from its MXFP4 checkpoint into ZeRO-3 partitions."""
    return loading.load_gpt_oss(path, attention, ds_config)


def logits_to_keep(action_mask: torch.Tensor | None) -> int:
    """Return from how many of the last positions logits are needed."""
    return passes.logits_to_keep(action_mask)


def token_logits(output: Any, allocated: int | None, temperature: float) -> torch.Tensor:
    """Return fp32 logits ``[B, S, V]`` without the rows of the vocabulary that stand for no token."""
    return vocabulary.of_tokens(output, allocated, temperature).float()


def entropy(logits: torch.Tensor, use: str, sequences: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each position, ``[B, S]``, zeros where there are no logits."""
    return passes.left_padded(passes.entropy(logits, use), sequences)


def left_padded(values: torch.Tensor, sequences: torch.Tensor) -> torch.Tensor:
    """Return values of the last positions with zeros before them, as long as ``sequences``."""
    return passes.left_padded(values, sequences)
