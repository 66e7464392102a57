"""The LoRA adapter as a list of named tensors: its names, its flat form, and its file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a flat adapter: PEFT's name, and where it lies (in elements)."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()


def adapter_parameters(model: nn.Module) -> tuple[list[str], list[nn.Parameter]]:
    """Return the names (as in PEFT's adapter file) and the parameters of the adapter ``default`` of a PeftModel."""
    named = [
        (name, p) for name, p in model.named_parameters() if ".lora_A.default." in name or ".lora_B.default." in name
    ]
    return [name.replace(".default.", ".") for name, _ in named], [parameter for _, parameter in named]


def gather(model: nn.Module) -> tuple[list[str], list[torch.Tensor]]:
    """Return the names and the whole values of the adapter, gathered from all ranks. A collective call.

    Raises:
        FloatingPointError: for a value that is not finite. DeepSpeed's ZeRO-3 applies a NaN gradient and reports a norm
            of 1.0, so this is where it shows, before an engine or a checkpoint gets it.
    """
    from grpo.zero import gather_flat  # the engines import this module without DeepSpeed

    names, parameters = adapter_parameters(model)
    tensors = gather_flat(parameters)
    broken = [name for name, tensor in zip(names, tensors, strict=True) if not tensor.isfinite().all()]
    if broken:
        raise FloatingPointError(
            f"{len(broken)} of {len(names)} adapter tensors are not finite, the first is {broken[0]}: the last step "
            "destroyed the adapter. Look at its samples, and start again with a lower LEARNING_RATE"
        )
    return names, tensors


def flatten(names: Iterable[str], tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[TensorSpec]]:
    """Lay bf16 tensors one after the other.

    Returns:
        uint8 ``[bytes]`` on the CPU (bf16 is no numpy type, so Ray cannot share it without a copy), and the specs.
    """
    specs, offset = [], 0
    for name, tensor in zip(names, tensors, strict=True):
        specs.append(TensorSpec(name, tuple(tensor.shape), offset))
        offset += tensor.numel()
    flat = torch.cat([tensor.to(torch.bfloat16).reshape(-1) for tensor in tensors])
    return flat.cpu().view(torch.uint8), specs


def unflatten(flat: torch.Tensor, specs: Iterable[TensorSpec]) -> dict[str, torch.Tensor]:
    """Undo :func:`flatten`: views of ``flat`` (uint8 ``[bytes]``) as bf16 tensors by name."""
    values = flat.view(torch.bfloat16)
    return {spec.name: values[spec.offset : spec.offset + spec.numel].view(spec.shape) for spec in specs}


def is_trained(args: Any) -> bool:
    """Say whether a run trains an adapter, and not the model itself."""
    return args.lora_rank > 0


def engine_config(args: Any) -> dict[str, Any]:
    """Return vLLM's ``additional_config``, from which the engines' workers learn the adapter's rank and scale."""
    return {"lora_rank": args.lora_rank, "lora_scale": args.lora_alpha / args.lora_rank}
