"""The LoRA adapter as a list of named tensors: its names, its flat form, and its file."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

BLOCK_WORDS = 4096  # 64-bit words that a checksum adds up with one weight
BLOCK_BYTES = 8 * BLOCK_WORDS


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


class Checksum:
    """A checksum of the bytes of a flat adapter (on the CPU), taken piece by piece.

    Whoever copies a piece and sums it up next finds it in the CPU's cache. The checksum is the sum of the 64-bit words
    of each block, weighted by the block's number, modulo 2**64: it finds changed, missing and swapped blocks. A cyclic
    redundancy check would take three times as long as copying the adapter.

    Args:
        flat: bf16 ``[elements]``.
    """

    def __init__(self, flat: torch.Tensor) -> None:
        self._data = flat.view(torch.uint8)
        whole = len(self._data) // BLOCK_BYTES * BLOCK_BYTES
        self._blocks = self._data[:whole].view(torch.int64).view(-1, BLOCK_WORDS)
        self._done = self._sum = 0

    def take(self, end: int) -> None:
        """Add the blocks that end before the byte ``end`` of the adapter."""
        last = min(end // BLOCK_BYTES, len(self._blocks))
        if last > self._done:
            weights = 2 * torch.arange(self._done, last) + 1
            self._sum += int((self._blocks[self._done : last].sum(1) * weights).sum())
            self._done = last

    def finish(self) -> int:
        """Add what is left, and return the checksum."""
        self.take(len(self._data))
        rest = self._data[len(self._blocks) * BLOCK_BYTES :]
        return (self._sum + zlib.crc32(rest.numpy().tobytes())) % 2**64


def is_trained(args: Any) -> bool:
    """Say whether a run trains an adapter, and not the model itself."""
    return args.lora_rank > 0


def engine_config(args: Any) -> dict[str, Any]:
    """Return vLLM's ``additional_config``, from which the engines' workers learn the adapter's rank and scale."""
    return {"lora_rank": args.lora_rank, "lora_scale": args.lora_alpha / args.lora_rank}
