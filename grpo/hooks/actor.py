"""Hooks of openrlhf/models/actor.py: loading the model, and one forward pass of it."""

from typing import Any

import torch

from grpo.model import loading, vocabulary
from grpo.update import passes


def is_gpt_oss(path: str) -> bool:
    """Return whether the model is a gpt-oss, which we load ourselves."""
    return loading.is_gpt_oss(path)


def load_gpt_oss(path: str, attention: str, ds_config: dict[str, Any] | None) -> torch.nn.Module:
    """Load a gpt-oss from its MXFP4 checkpoint into ZeRO-3 partitions."""
    return loading.load_gpt_oss(path, attention, ds_config)


def logits_to_keep(action_mask: torch.Tensor | None) -> int:
    """Return how many of the last positions need logits; 0 means all."""
    return passes.logits_to_keep(action_mask)


def token_logits(output: Any, allocated: int | None, temperature: float) -> torch.Tensor:
    """Return fp32 logits ``[B, S, V]`` without the vocabulary's padding rows."""
    return vocabulary.of_tokens(output, allocated, temperature).float()


def entropy(logits: torch.Tensor, use: str, sequences: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each position, ``[B, S]``; zeros for positions without logits."""
    return passes.left_padded(passes.entropy(logits, use), sequences)


def left_padded(values: torch.Tensor, sequences: torch.Tensor) -> torch.Tensor:
    """Return ``values`` of the last positions, padded on the left with zeros to the length of ``sequences``."""
    return passes.left_padded(values, sequences)
