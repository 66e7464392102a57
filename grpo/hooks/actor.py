"""Hooks of openrlhf/models/actor.py: loading the model, and one forward pass of it."""

import os
from contextlib import AbstractContextManager
from typing import Any

import torch

from grpo.model import expert_lora, loading
from grpo.model.architecture import PACKED, ZERO3
from grpo.model.shared_base import MappedBase
from grpo.stack.upstream import Actor, ModelOutput
from grpo.train import log_probs, passes

is_gpt_oss = loading.is_gpt_oss
logits_to_keep = passes.count_logits_to_keep


def load_gpt_oss(
    path: str,
    attention: str,
    ds_config: dict[str, Any] | None,
    experts: str = PACKED,
    shard: str = ZERO3,
    expert_rank: int = 0,
    base: MappedBase | None = None,
) -> torch.nn.Module:
    """Load a gpt-oss from its MXFP4 checkpoint, into ZeRO-3 partitions or whole on each rank, or map the engine's.

    Experts get adapters of ``expert_rank``, or none if it is 0.
    """
    with loading.share_of_cores(int(os.environ.get("WORLD_SIZE", "1"))):
        model = loading.load_gpt_oss(path, attention, ds_config, experts == PACKED, shard == ZERO3, base)
    if expert_rank:
        expert_lora.attach(model, expert_rank)
    return model


def scoring(actor: Actor, targets: torch.Tensor) -> AbstractContextManager[None]:
    """Let the model return scores of the tokens instead of logits, within the context.

    Args:
        targets: the token after each of the last positions, ``[B, kept]``.
    """
    return log_probs.scoring(actor.model, targets, actor.allocated, actor.temperature)


def scores(output: ModelOutput, sequences: torch.Tensor) -> log_probs.TokenScores:
    """Return the scores of each position, ``[B, S]``; zeros for positions that have none."""
    return log_probs.read_scores(output["logits"], sequences)
