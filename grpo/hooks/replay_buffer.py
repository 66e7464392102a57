"""Hooks of openrlhf/trainer/ppo_utils/replay_buffer.py: the rows of a micro-batch."""

from collections.abc import Callable

from grpo.batch import branches
from grpo.stack.upstream.experience import Batch, BufferItem


def with_branches(
    items: list[BufferItem], experience: Batch, split: Callable[[Batch], list[BufferItem]]
) -> list[BufferItem]:
    """Attach the branches of each rollout to its item."""
    return branches.attach_items(items, experience, split)


def joined(make: Callable[..., Batch], items: list[BufferItem], packing_samples: bool) -> Batch:
    """Make a micro-batch of items and their branches."""
    return branches.joined(make, items, packing_samples)
