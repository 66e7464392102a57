"""ZeRO-3: the configuration that this setup needs, and parameters that are created partitioned."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.partition_parameters import Init, PartitionedParamStatus, free_param
from torch import nn


def tune(ds_config: dict[str, Any], args: Any) -> dict[str, Any]:
    """Complete OpenRLHF's DeepSpeed configuration, in place, and return it.

    - Parameter offload is pinned if there is a GPU.
    - Gathers of several parameters run one after the other on gloo. DeepSpeed 0.18.5 launches one all-gather per
      parameter and waits only for the last, and gloo completes them in any order. A gather could return early and later
      overwrite what was written to the parameter. NCCL's stream keeps the order.
    """
    zero = ds_config["zero_optimization"]
    if zero["stage"] != 3:
        return ds_config
    on_cpu = get_accelerator().communication_backend_name() == "gloo"
    if zero["offload_param"]["device"] == "cpu":
        zero["offload_param"]["pin_memory"] = not on_cpu
    if on_cpu:
        zero["stage3_allgather_sequential"] = True
    threshold = getattr(args, "stage3_param_persistence_threshold", None)
    if threshold is not None:
        zero["stage3_param_persistence_threshold"] = threshold
    return ds_config


class ZeroPartitioner:
    """Creates ZeRO-3 parameters of which this rank only ever holds its own partition.

    ``deepspeed.zero.Init`` needs the whole parameter on every rank before it partitions it. ZeRO-3 partitions flat, so
    a rank that knows its range needs only that range. The attributes set here are the ones that
    ``Init._partition_param`` of DeepSpeed 0.18.5 sets.

    Args:
        ds_config: OpenRLHF's DeepSpeed configuration with stage 3.
    """

    def __init__(self, ds_config: dict[str, Any]) -> None:
        self._init = Init(config_dict_or_path=ds_config, dtype=torch.bfloat16)
        self.device = self._init.local_device

    def local_range(self, shape: torch.Size) -> tuple[int, int]:
        """Return this rank's range ``start, stop`` of the flattened parameter; empty if only padding is left."""
        size = self._partition_size(shape)
        start = min(size * self._init.get_partition_rank(), shape.numel())
        return start, min(start + size, shape.numel())

    def _partition_size(self, shape: torch.Size) -> int:
        return -(-shape.numel() // self._init.num_partitions)

    def partitioned_parameter(self, shape: torch.Size) -> Any:
        """Return a partitioned, not gathered ``nn.Parameter`` of ``shape``, in bf16.

        Its ``ds_tensor`` holds zeros. The caller writes this rank's range to its beginning; the rest is padding.
        """
        # A stride-0 view of one element: it has the shape that DeepSpeed records and takes no memory.
        whole = torch.empty(1, dtype=torch.bfloat16, device=self.device).expand(shape)
        parameter: Any = nn.Parameter(whole, requires_grad=True)  # DeepSpeed adds attributes
        self._init._convert_to_deepspeed_param(parameter)

        size = self._partition_size(shape)
        on_device = parameter.ds_persist or self._init.remote_device not in ("cpu", torch.device("cpu"))
        # Allocated pinned: pinning it later would take the memory twice.
        parameter.ds_tensor = torch.zeros(
            size,
            dtype=torch.bfloat16,
            device=self.device if on_device else "cpu",
            pin_memory=not on_device and self._init.pin_memory,
        )
        parameter.ds_tensor.ds_numel = size
        parameter.ds_tensor.status = PartitionedParamStatus.AVAILABLE
        parameter.ds_tensor.final_location = None
        parameter.ds_numel_aligned = size * self._init.num_partitions
        free_param(parameter)
        return parameter


def whole_shape(parameter: Any) -> torch.Size:
    """Return the shape of the whole parameter, partitioned by ZeRO-3 or not."""
    return getattr(parameter, "ds_shape", parameter.shape)


def gather_flat(parameters: Sequence[Any]) -> torch.Tensor:
    """Return the whole values of parameters, concatenated, with one collective for all of them.

    Every rank calls it with the same ``nn.Parameter`` objects of one dtype in the same order. Either all or none are
    partitioned by ZeRO-3.

    Returns:
        ``[elements]``, detached, on this rank's device; creating it takes twice its memory.
    """
    if not all(hasattr(parameter, "ds_tensor") for parameter in parameters):
        return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    parts = [parameter.ds_tensor.detach().reshape(-1) for parameter in parameters]
    ranks, device = dist.get_world_size(), get_accelerator().current_device_name()
    gathered = torch.empty(ranks, sum(map(len, parts)), dtype=parts[0].dtype, device=device)
    local = gathered[dist.get_rank()]  # in place: gloo already doubles the memory
    for part, place in zip(parts, local.split([len(part) for part in parts]), strict=True):
        place.copy_(part)
    dist.all_gather_into_tensor(gathered.view(-1), local)  # flat, as gloo requires

    flat = gathered.new_empty(sum(parameter.ds_numel for parameter in parameters))
    taken = given = 0
    for parameter in parameters:
        size, left = parameter.ds_tensor.ds_numel, parameter.ds_numel
        for part in gathered[:, taken : taken + size]:
            count = min(size, left)  # the last ranks' ranges end in padding
            flat[given : given + count] = part[:count]
            given, left = given + count, left - count
        taken += size
    return flat
