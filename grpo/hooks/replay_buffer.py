"""Hooks of openrlhf/trainer/ppo_utils/replay_buffer.py: the rows of a micro-batch."""

from collections.abc import Callable
from typing import Any

from grpo.batch import branches


def with_branches(items: list[Any], experience: Any, split: Callable[[Any], list[Any]]) -> list[Any]:
    """Attach the branches of each rollout to its item."""
    return branches.attach_items(items, experience, split)


def joined(make: Callable[..., Any], items: list[Any], packing_samples: bool) -> Any:
    """Make a micro-batch of items and their branches."""
    return branches.joined(make, items, packing_samples)
