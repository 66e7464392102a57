"""The LoRA adapter as a list of named tensors: its names, its flat form, and its file."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

CHECKSUM_BLOCK = 4096  # 64-bit words


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


def layout(names: Iterable[str], shapes: Iterable[Sequence[int]]) -> list[TensorSpec]:
    """Lay tensors one after the other in one flat tensor."""
    specs, offset = [], 0
    for name, shape in zip(names, shapes, strict=True):
        specs.append(TensorSpec(name, tuple(shape), offset))
        offset += specs[-1].numel
    return specs


def gather(model: nn.Module) -> tuple[torch.Tensor, list[TensorSpec]]:
    """Return the whole adapter, gathered from all ranks. A collective call.

    Returns:
        bf16 ``[elements]`` on the parameters' device, and where each tensor lies in it.

    Raises:
        FloatingPointError: for a value that is not finite. DeepSpeed's ZeRO-3 applies a NaN gradient and reports a norm
            of 1.0, so this is where it shows, before an engine or a checkpoint gets it.
    """
    from grpo.zero import gather_flat, whole_shape  # the engines import this module without DeepSpeed

    names, parameters = adapter_parameters(model)
    flat = gather_flat(parameters).to(torch.bfloat16)
    specs = layout(names, map(whole_shape, parameters))
    if not flat.sum(dtype=torch.float32).isfinite():
        broken = [name for name, tensor in unflatten(flat, specs).items() if not tensor.isfinite().all()]
        raise FloatingPointError(
            f"{len(broken)} of {len(names)} adapter tensors are not finite, the first is {broken[0]}: the last step "
            "destroyed the adapter. Look at its samples, and start again with a lower LEARNING_RATE"
        )
    return flat, specs


def unflatten(flat: torch.Tensor, specs: Iterable[TensorSpec]) -> dict[str, torch.Tensor]:
    """Return the tensors of a flat adapter by name, as views of ``flat`` (bf16 ``[elements]``)."""
    return {spec.name: flat[spec.offset : spec.offset + spec.numel].view(spec.shape) for spec in specs}


def checksum(flat: torch.Tensor) -> int:
    """Return a checksum of the bytes of a flat adapter (on the CPU), at the speed of memory.

    The sum of the 64-bit words of each block, weighted by the block's number, modulo 2**64: it finds changed, missing
    and swapped blocks. A cyclic redundancy check would take three times as long as copying the adapter.
    """
    size = flat.numel() * flat.element_size()
    whole = size // (8 * CHECKSUM_BLOCK) * 8 * CHECKSUM_BLOCK
    data = flat.view(torch.uint8)
    blocks = data[:whole].view(torch.int64).view(-1, CHECKSUM_BLOCK).sum(1)
    weights = 2 * torch.arange(len(blocks)) + 1
    return (int((blocks * weights).sum()) + zlib.crc32(data[whole:].numpy().tobytes())) % 2**64


def is_trained(args: Any) -> bool:
    """Say whether a run trains an adapter, and not the model itself."""
    return args.lora_rank > 0


def engine_config(args: Any) -> dict[str, Any]:
    """Return vLLM's ``additional_config``, from which the engines' workers learn the adapter's rank and scale."""
    return {"lora_rank": args.lora_rank, "lora_scale": args.lora_alpha / args.lora_rank}
