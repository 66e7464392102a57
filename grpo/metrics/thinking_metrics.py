"""How a thinking budget affects the reward of a rollout batch."""

from collections.abc import Sequence

import torch

from grpo.rollout.rows import Batch


def thinking_metrics(experiences: Sequence[Batch]) -> dict[str, float]:
    """Return the mean reward of samples whose thinking was cut, and of the others; {} without a thinking budget.

    Args:
        experiences: OpenRLHF's: ``info["reward"]`` ``[B]``, and ``info["thinking_truncated"]`` ``[B]`` under a budget.
            Samples with ``info["reward_missing"]`` carry others' rewards and are excluded.
    """
    if not all("thinking_truncated" in experience.info for experience in experiences):
        return {}

    def of_all(name: str) -> torch.Tensor:
        missing = torch.zeros(1)
        return torch.cat([e.info.get(name, missing.expand(len(e.info["reward"]))).reshape(-1) for e in experiences])

    rewards, cut, known = of_all("reward").double(), of_all("thinking_truncated") > 0.5, of_all("reward_missing") < 0.5
    parts = {"reward_thinking_truncated": rewards[cut & known], "reward_thinking_whole": rewards[~cut & known]}
    return {name: float(part.mean()) for name, part in parts.items() if len(part)}
