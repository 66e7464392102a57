"""The LoRA adapter as a list of named tensors: names, flat form and file."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch import nn

from grpo.lora import expert_form
from grpo.lora.expert_form import MODULES
from grpo.model.architecture import OF_ENGINE
from grpo.stack.upstream import Arguments

RECORDS = "records_routing"  # in vLLM's additional_config: which routings workers record; absent: none
ALL, NAMED = "all passes", "passes of a named request"
SHARED = "shared_base"  # in vLLM's additional_config: the model whose frozen base the actor maps; absent: none
GATHERED = 1 << 26  # values; the attention's adapter of the 120b at rank 64 has fewer


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a flat adapter: PEFT's name and its location, in elements."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()


def adapter_parameters(model: nn.Module) -> tuple[list[str], list[nn.Parameter]]:
    """Return the names (as in PEFT's adapter file) and the parameters of a PeftModel's adapter ``default``."""
    named = [
        (name, p) for name, p in model.named_parameters() if ".lora_A.default." in name or ".lora_B.default." in name
    ]
    return [expert_form.to_file_name(name) for name, _ in named], [parameter for _, parameter in named]


def layout(names: Iterable[str], shapes: Iterable[Sequence[int]]) -> list[TensorSpec]:
    """Lay tensors out one after the other in one flat tensor."""
    specs, offset = [], 0
    for name, shape in zip(names, shapes, strict=True):
        specs.append(TensorSpec(name, tuple(shape), offset))
        offset += specs[-1].numel
    return specs


def gather(model: nn.Module) -> tuple[torch.Tensor, list[TensorSpec]]:
    """Gather the whole adapter in the host memory of the first rank. A collective call.

    Devices never hold more than twice ``GATHERED`` values, or twice the largest tensor: an adapter of experts is 2 GB.

    Returns:
        bf16 ``[elements]`` in host memory, on other ranks than the first ``[0]``; and the location of each tensor.

    Raises:
        FloatingPointError: if a value is not finite. DeepSpeed's ZeRO-3 applies a NaN gradient and reports a norm of
            1.0. The NaN first shows here, before an engine or a checkpoint gets it.
    """
    from grpo.model.zero import whole_shape  # the engines import this module without DeepSpeed

    names, parameters = adapter_parameters(model)
    specs = layout(names, map(whole_shape, parameters))
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    flat = torch.empty(specs[-1].offset + specs[-1].numel if is_first else 0, dtype=torch.bfloat16)
    broken: list[str] = []
    for start, stop in _cut(specs):
        broken += _gather_part(parameters[start:stop], specs[start:stop], flat if is_first else None)
    if broken:
        raise FloatingPointError(
            f"{len(broken)} of {len(names)} adapter tensors are not finite, the first is {broken[0]}: the last "
            "step destroyed the adapter. Look at its rollouts, and start again with a lower --actor_learning_rate"
        )
    return flat, specs


def _gather_part(
    parameters: Sequence[nn.Parameter], specs: Sequence[TensorSpec], flat: torch.Tensor | None
) -> list[str]:
    """Gather some tensors into their places in ``flat``, and return the names of those that are not finite."""
    from grpo.model.zero import gather_flat

    part = gather_flat(parameters).to(torch.bfloat16)
    if flat is not None:
        flat[specs[0].offset :][: len(part)].copy_(part)
    if part.sum().isfinite():  # summing in another dtype would copy it
        return []
    # The sum of finite values may overflow, too.
    tensors = part.split([spec.numel for spec in specs])
    return [spec.name for spec, tensor in zip(specs, tensors, strict=True) if not tensor.isfinite().all()]


def _cut(specs: Sequence[TensorSpec]) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive tensors that have at most ``GATHERED`` values together."""
    start = 0
    for number, spec in enumerate(specs):
        if number > start and spec.offset + spec.numel - specs[start].offset > GATHERED:
            yield start, number
            start = number
    yield start, len(specs)


def unflatten(flat: torch.Tensor, specs: Iterable[TensorSpec]) -> dict[str, torch.Tensor]:
    """Return the tensors of a flat adapter by name, as views of ``flat`` (bf16 ``[elements]``)."""
    return {spec.name: flat[spec.offset : spec.offset + spec.numel].view(spec.shape) for spec in specs}


def row_sums(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of the 64-bit words of each row, modulo 2**64: int64 ``[rows]``. A row of experts is an expert.

    Args:
        tensor: bf16 ``[rows, columns]`` or ``[E, rows, columns]``; slices by columns hold a multiple of 4 of them.
    """
    words = tensor.view(torch.int64 if tensor.shape[-1] % 4 == 0 else torch.int16)
    return words.sum(tuple(range(1, words.dim())), dtype=torch.int64)


def checksum(sums: Sequence[torch.Tensor], rows: tuple[tuple[int, int, int], ...]) -> torch.Tensor:
    """Return a checksum of adapter tensors or slices of them. The checksums of slices add up to the tensor's.

    It is the sum, modulo 2**64, of the row sums weighted by row and tensor. It detects changed, missing and swapped
    rows and tensors at memory speed. A cyclic redundancy check would take three times as long as copying.

    Args:
        sums: from :func:`row_sums`.
        rows: for each of the sums: the tensor's number in the adapter, the first row, the number of rows.

    Returns:
        int64 ``[]``, on the sums' device.
    """
    together = torch.cat(list(sums))
    return (together * _row_weights(rows, together.device)).sum()


@functools.lru_cache(maxsize=4)
def _row_weights(rows: tuple[tuple[int, int, int], ...], device: torch.device) -> torch.Tensor:
    weights = [(2 * number + 1) * (2 * torch.arange(first, first + count) + 1) for number, first, count in rows]
    return torch.cat(weights).to(device)


def is_split(name: str) -> bool:
    """Return whether an engine's workers each hold a slice of a tensor.

    q, k, v and the experts' gate_up are split by output, o and the experts' down by input.
    """
    return ("o_proj" in name or f".{MODULES['down_proj']}.lora" in name) == ("lora_A" in name)


class SyncResult(TypedDict):
    """What one worker of an engine reports about a sync.

    rank, workers: its number among this many.
    tensors, checksum: how many tensors it applied, and the checksum of what it holds of them, see :func:`checksum`.
    memory: the most bytes that it held since the last sync.
    """

    rank: int
    workers: int
    tensors: int
    checksum: int
    memory: int


@dataclass(frozen=True)
class Checksums:
    """What the checksums must be that an engine's workers report for an adapter.

    Args:
        tensors: the number of tensors.
        split, whole: the checksums of the tensors that workers hold slices of, and of those each worker holds whole.
    """

    tensors: int
    split: int
    whole: int

    @classmethod
    def of(cls, flat: torch.Tensor, specs: Sequence[TensorSpec]) -> "Checksums":
        """Return the checksums of a flat adapter on the CPU."""
        sums: dict[bool, list[torch.Tensor]] = {True: [], False: []}
        rows: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
        for number, (name, tensor) in enumerate(unflatten(flat, specs).items()):
            sums[is_split(name)].append(row_sums(tensor))
            rows[is_split(name)].append((number, 0, len(tensor)))
        split, whole = (int(checksum(sums[kind], tuple(rows[kind]))) for kind in (True, False))
        return cls(len(specs), split, whole)

    def checksum(self, workers: int) -> int:
        """Return the sum of the checksums of ``workers`` workers, modulo 2**64."""
        return (self.split + workers * self.whole) % 2**64


def engine_config(args: Arguments, expert_rank: int = 0) -> dict[str, Any]:
    """Return vLLM's ``additional_config``: the adapter's ranks and scale, which routings to record, what is shared.

    The parity gate names the requests whose routings it wants. Compiled or captured code cannot see them.

    Args:
        expert_rank: of the adapters of experts; 0 if they have none.
    """
    config: dict[str, Any] = {"lora_rank": args.lora_rank, "lora_scale": args.lora_alpha / args.lora_rank}
    if expert_rank:
        config["expert_rank"] = expert_rank
    if args.routing_replay:
        config[RECORDS] = ALL
    elif args.parity_limit > 0 and args.enforce_eager:
        config[RECORDS] = NAMED
    if args.actor_shard == OF_ENGINE:
        config[SHARED] = args.pretrain
    return config


def read_engine_config(config: Any) -> dict[str, Any]:
    """Return what :func:`engine_config` has put into vLLM's ``VllmConfig``; {} in an engine without it."""
    return config.additional_config if isinstance(config.additional_config, dict) else {}
