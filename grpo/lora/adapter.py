"""The LoRA adapter as a list of named tensors: its names, its flat form, and its file."""

import functools
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
    from grpo.model.zero import gather_flat, whole_shape  # the engines import this module without DeepSpeed

    names, parameters = adapter_parameters(model)
    flat = gather_flat(parameters).to(torch.bfloat16)
    specs = layout(names, map(whole_shape, parameters))
    if not flat.sum().isfinite():  # a sum in another dtype would copy the adapter
        broken = [name for name, tensor in unflatten(flat, specs).items() if not tensor.isfinite().all()]
        raise FloatingPointError(
            f"{len(broken)} of {len(names)} adapter tensors are not finite, the first is {broken[0]}: the last step "
            "destroyed the adapter. Look at its samples, and start again with a lower LEARNING_RATE"
        )
    return flat, specs


def unflatten(flat: torch.Tensor, specs: Iterable[TensorSpec]) -> dict[str, torch.Tensor]:
    """Return the tensors of a flat adapter by name, as views of ``flat`` (bf16 ``[elements]``)."""
    return {spec.name: flat[spec.offset : spec.offset + spec.numel].view(spec.shape) for spec in specs}


def row_sums(matrix: torch.Tensor) -> torch.Tensor:
    """Return the sum of the 64-bit words of each row, modulo 2**64: int64 ``[rows]``.

    Args:
        matrix: bf16 ``[rows, columns]``, contiguous; slices by columns hold a multiple of 4 of them.
    """
    words = matrix.view(torch.int64 if matrix.shape[1] % 4 == 0 else torch.int16)
    return words.sum(1, dtype=torch.int64)


def checksum(sums: Sequence[torch.Tensor], rows: tuple[tuple[int, int, int], ...]) -> torch.Tensor:
    """Return a checksum of adapter tensors or of slices of them; those of the slices add up to the tensors' own.

    The row sums, each weighted by its row and its tensor, modulo 2**64: it finds changed, missing and swapped rows and
    tensors at the speed of memory. A cyclic redundancy check would take three times as long as copying.

    Args:
        sums: from :func:`row_sums`.
        rows: whose they are, in this order: a tensor's place in the adapter, its first row, how many.

    Returns:
        int64 ``[]``, on the sums' device.
    """
    together = torch.cat(list(sums))
    return (together * _row_weights(rows, together.device)).sum()


@functools.lru_cache(maxsize=4)
def _row_weights(rows: tuple[tuple[int, int, int], ...], device: torch.device) -> torch.Tensor:
    weights = [(2 * place + 1) * (2 * torch.arange(first, first + count) + 1) for place, first, count in rows]
    return torch.cat(weights).to(device)


def is_split(name: str) -> bool:
    """Say whether the workers of an engine hold slices of a tensor: q, k, v are split by output, o by input."""
    return ("o_proj" in name) == ("lora_A" in name)


@dataclass(frozen=True)
class Receipt:
    """What the workers of an engine have to report of an adapter: the checksums of what they applied, added up.

    Args:
        tensors: how many there are.
        split, whole: the checksums of those that the workers hold slices of, and of those that each holds whole.
    """

    tensors: int
    split: int
    whole: int

    @classmethod
    def of(cls, flat: torch.Tensor, specs: Sequence[TensorSpec]) -> "Receipt":
        """Return the receipt for a flat adapter on the CPU."""
        sums: dict[bool, list[torch.Tensor]] = {True: [], False: []}
        rows: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
        for place, (name, tensor) in enumerate(unflatten(flat, specs).items()):
            sums[is_split(name)].append(row_sums(tensor))
            rows[is_split(name)].append((place, 0, len(tensor)))
        split, whole = (int(checksum(sums[kind], tuple(rows[kind]))) for kind in (True, False))
        return cls(len(specs), split, whole)

    def checksum(self, workers: int) -> int:
        """Return the sum of the checksums of so many workers, modulo 2**64."""
        return (self.split + workers * self.whole) % 2**64


def is_trained(args: Any) -> bool:
    """Say whether a run trains an adapter, and not the model itself."""
    return args.lora_rank > 0


def engine_config(args: Any) -> dict[str, Any]:
    """Return vLLM's ``additional_config``, from which the engines' workers learn the adapter's rank and scale."""
    return {"lora_rank": args.lora_rank, "lora_scale": args.lora_alpha / args.lora_rank}
