"""DeepSpeed: a short start, the configuration of ZeRO-3 that this setup needs, and parameters created partitioned."""

import gc
from collections.abc import Sequence
from typing import Any, cast

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.partition_parameters import Init, PartitionedParamStatus, free_param
from deepspeed.utils import nvtx
from torch import nn

from grpo.model.architecture import ZERO3
from grpo.model.footprint import REDUCE_BUCKET
from grpo.stack.upstream import Arguments, ZeroParameter

WHOLE = 1 << 40  # elements: more than any parameter has


def shorten_start() -> None:
    """Shorten `deepspeed.init_distributed` and `deepspeed.initialize`, which follow in this process, and its steps.

    - An operator for inference on CPUs is neither compiled, which takes minutes, nor loaded.
    - It marks no ranges for a profiler: 2,000 calls for each micro-batch of the tiny model.
    - It collects garbage ten times. Freezing excludes everything imported so far from those collections.

    A rank collects as often as Python does by default, so that tensors in garbage are freed soon.
    """
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    nvtx.enable_nvtx = False
    gc.freeze()
    gc.set_threshold(700)


def tune(ds_config: dict[str, Any], args: Arguments | None) -> dict[str, Any]:
    """Complete OpenRLHF's DeepSpeed configuration, in place, and return it.

    - With ``--offload``, parameters stay in host memory, pinned if there is a GPU.
    - Gathers of several parameters run one after the other. DeepSpeed 0.18.5 otherwise holds them twice. On gloo it
      launches one all-gather per parameter and waits only for the last, and gloo completes them in any order: a gather
      could return early and later overwrite what was written to the parameter. DeepSpeed then gathers one parameter
      ahead: no module waits for a larger gather that only a later one needs.
    - The buffer in which gradients are reduced has the size of an adapter: 0.1 GB in place of 1 GB.
    - An optimizer on the host may be PyTorch's. DeepSpeed otherwise demands its own, which has to be compiled.
    - If ZeRO-3 holds the adapter alone, each rank keeps it whole. Only its gradients and its optimizer are partitioned.
    - Linear layers stay PyTorch's. DeepSpeed 0.19 otherwise replaces them in that case, and rounds before the bias.

    Args:
        args: None leaves the device of the parameters, and DeepSpeed's threshold.
    """
    zero = ds_config["zero_optimization"]
    if args and args.offload:
        zero["offload_param"]["device"] = "cpu"
    if zero["offload_param"]["device"] == "cpu":
        zero["offload_param"]["pin_memory"] = get_accelerator().communication_backend_name() != "gloo"
    zero["stage3_allgather_sequential"] = True
    ds_config["zero_force_ds_cpu_optimizer"] = False
    zero["reduce_bucket_size"] = REDUCE_BUCKET
    zero["memory_efficient_linear"] = False
    threshold = args and (args.stage3_param_persistence_threshold if args.actor_shard == ZERO3 else WHOLE)
    if threshold is not None:
        zero["stage3_param_persistence_threshold"] = threshold
    return ds_config


class ZeroPartitioner:
    """Creates ZeRO-3 parameters of which this rank only ever holds its own partition.

    ``deepspeed.zero.Init`` needs the whole parameter on every rank before it partitions it. ZeRO-3 partitions flat, so
    a rank that knows its range needs only that range. The attributes set here are the ones that
    ``Init._partition_param`` of DeepSpeed 0.18.5 sets.
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

    def partitioned_parameter(
        self, shape: torch.Size, dtype: torch.dtype = torch.bfloat16, requires_grad: bool = True
    ) -> Any:
        """Return a partitioned, not gathered ``nn.Parameter`` of ``shape``, which is a ``ZeroParameter`` too.

        Its ``ds_tensor`` holds zeros. The caller writes this rank's range to its beginning; the rest is padding.
        """
        # A stride-0 view of one element: it has the shape that DeepSpeed records and takes no memory.
        whole = torch.empty(1, dtype=dtype, device=self.device).expand(shape)
        parameter: Any = nn.Parameter(whole, requires_grad=requires_grad)  # DeepSpeed adds attributes
        self._init._convert_to_deepspeed_param(parameter)

        size = self._partition_size(shape)
        on_device = parameter.ds_persist or self._init.remote_device not in ("cpu", torch.device("cpu"))
        # Allocated pinned: pinning it later would take the memory twice.
        parameter.ds_tensor = torch.zeros(
            size,
            dtype=dtype,
            device=self.device if on_device else "cpu",
            pin_memory=not on_device and self._init.pin_memory,
        )
        parameter.ds_tensor.ds_numel = size
        parameter.ds_tensor.status = PartitionedParamStatus.AVAILABLE
        parameter.ds_tensor.final_location = None
        parameter.ds_numel_aligned = size * self._init.num_partitions
        free_param(parameter)
        return parameter


def whole_shape(parameter: nn.Parameter) -> torch.Size:
    """Return the shape of the whole parameter, partitioned by ZeRO-3 or not."""
    return getattr(parameter, "ds_shape", parameter.shape)


def gather_flat(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Return the whole values of parameters, concatenated, with one collective for all of them.

    Every rank calls it with the same ``nn.Parameter`` objects of one dtype in the same order. Either all or none are
    partitioned by ZeRO-3.

    Returns:
        ``[elements]``, detached, on this rank's device; creating it takes twice its memory.
    """
    if not all(hasattr(parameter, "ds_tensor") for parameter in parameters):
        return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    partitioned = cast(Sequence[ZeroParameter], parameters)
    parts = [parameter.ds_tensor.detach().reshape(-1) for parameter in partitioned]
    ranks, device = dist.get_world_size(), get_accelerator().current_device_name()
    gathered = torch.empty(ranks, sum(map(len, parts)), dtype=parts[0].dtype, device=device)
    local = gathered[dist.get_rank()]  # in place: gloo already doubles the memory
    for part, target in zip(parts, local.split([len(part) for part in parts]), strict=True):
        target.copy_(part)
    dist.all_gather_into_tensor(gathered.view(-1), local)  # flat, as gloo requires

    flat = gathered.new_empty(sum(parameter.ds_numel for parameter in partitioned))
    taken = given = 0
    for parameter in partitioned:
        size, left = parameter.ds_tensor.ds_numel, parameter.ds_numel
        for part in gathered[:, taken : taken + size]:
            count = min(size, left)  # the last ranks' ranges end in padding
            flat[given : given + count] = part[:count]
            given, left = given + count, left - count
        taken += size
    return flat
