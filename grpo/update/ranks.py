"""The ranks that share an optimizer batch."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator


@dataclass(frozen=True)
class Ranks:
    """How an optimizer batch is split.

    Attributes:
        world_size: ranks of the actor.
        micro_batches: of an optimizer batch on each rank.
    """

    world_size: int
    micro_batches: int

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks of a tensor in host memory. Collective."""
        total = values.to(get_accelerator().current_device_name(), copy=True)
        dist.all_reduce(total)
        return total.cpu()
