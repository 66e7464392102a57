"""What a thinking budget does to the reward of a rollout batch."""

from collections.abc import Sequence
from typing import Any

import torch


def thinking_metrics(experiences: Sequence[Any]) -> dict[str, float]:
    """Return the mean reward of the samples whose thinking was cut, and of the others; {} without a thinking budget.

    Args:
        experiences: OpenRLHF's: ``info["reward"]`` ``[B]``, and ``info["thinking_truncated"]`` ``[B]`` under a budget.
    """
    if not all("thinking_truncated" in experience.info for experience in experiences):
        return {}
    rewards = torch.cat([experience.info["reward"].reshape(-1) for experience in experiences]).double()
    cut = torch.cat([experience.info["thinking_truncated"].reshape(-1) for experience in experiences]) > 0.5
    parts = {"reward_thinking_truncated": rewards[cut], "reward_thinking_whole": rewards[~cut]}
    return {name: float(part.mean()) for name, part in parts.items() if len(part)}
