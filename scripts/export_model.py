"""Merge a LoRA adapter into its base model, and write a checkpoint that serves without PEFT.

    python -m scripts.export_model --model BASE --adapter DIR --out DIR [--experts mxfp4|bf16] [--card]
    python -m scripts.export_model --model BASE --adapter DIR --out DIR --unmerged [--card]

With `--unmerged`, the adapter alone is written, in PEFT's format. `--card` adds a README.md for the hub: base model,
data, reward, settings, and held-out scores, from the records of the adapter's run.

BASE is a folder, or a hub id in the hub's cache. The merged weights are W + scale * B A in float32, rounded once to
bf16. With `--experts mxfp4` (the default for an MXFP4 base) blocks and scales are copied byte for byte; with `bf16`
they are dequantized. Host memory: the adapter, and one attention tensor or expert.

bf16 keeps 8 bits, so an update that is small beside its weight is partly lost to rounding. The last line says how much
of the update the merged model retains. Base and adapter served side by side retain all of it. MXFP4 keeps 2 bits or
3, so a merge of experts into it loses most of their update: it is made only if `--experts mxfp4` is given.
"""

import argparse
import functools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from grpo.checkpoint import adapter_base, adapter_files, digests
from grpo.checkpoint.adapter_files import Adapter
from grpo.lora import expert_form
from grpo.model import mxfp4
from grpo.model.architecture import EXPERTS_TARGET, Architecture
from grpo.model.model_files import Model
from grpo.model.model_reader import CheckpointReader
from grpo.stack import command
from grpo.stack.hub import model_folder
from grpo.stack.problem import UserError
from scripts import model_card
from scripts.checkpoint_writer import (
    SHARD_BYTES,
    TensorOutput,
    as_bytes,
    copy_tensors,
    refusal,
    whole_model,
    write_aside,
    write_checkpoint,
)


@dataclass
class Rounding:
    """What rounding to a format does to an update.

    Attributes:
        update: sum of the squares of scale * B A.
        error: sum of the squares of the rounding error of the update.
    """

    update: float = 0.0
    error: float = 0.0

    def note(self, base: torch.Tensor, update: torch.Tensor, merged: torch.Tensor) -> None:
        """Add a matrix, in float32 or bf16."""
        self.update += update.norm().item() ** 2
        self.error += (merged.float() - base.float() - update).norm().item() ** 2

    @property
    def lost(self) -> float:
        """Return the norm of the rounding error over that of the update; 0 for an adapter of zeros."""
        return math.sqrt(self.error / self.update) if self.update else 0.0


@dataclass
class Merge:
    """Merges the tensors of an adapter one at a time, and measures the update's rounding error.

    Attributes:
        bf16, packed: of the parameters that are written in bf16 and in MXFP4.
        merged: the number of merged parameters.
    """

    model: Model
    adapter: Adapter
    bf16: Rounding = field(default_factory=Rounding)
    packed: Rounding = field(default_factory=Rounding)
    merged: int = 0

    def __post_init__(self) -> None:
        self.reader, self.parameters = (
            CheckpointReader(self.model),
            Architecture.from_config(self.model.config).parameters(),
        )
        self.tensors = adapter_files.load(self.adapter)

    def pieces(self, module: str) -> Iterator[torch.Tensor]:
        """Yield the merged weight of one of PEFT's modules in bf16: ``[out, in]``, or ``[in, out]`` of each expert."""
        for base, update in self._sums(module):
            merged = (base.float() + update).to(torch.bfloat16)
            self.bf16.note(base, update, merged)
            yield merged

    def packed_pieces(self, module: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield blocks and scales of each expert."""
        for base, update in self._sums(module):
            _, smallest = mxfp4.quantize(base)
            blocks, scales = mxfp4.quantize(base.float() + update, smallest)
            self.packed.note(base, update, mxfp4.dequantize(blocks, scales))
            yield blocks, scales

    def _sums(self, module: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the frozen weight in bf16 and its update in float32, whole or of each expert."""
        name = expert_form.name_parameter(module)
        shape = torch.Size(self.parameters[name])
        names = [adapter_files.tensor_name(module, half) for half in adapter_files.HALVES]
        a, b = (expert_form.from_file(half, self.tensors[half].float(), shape) for half in names)
        if len(shape) == 2:
            products: Iterator[torch.Tensor] = iter([b @ a])
        else:
            products = ((b[expert] @ a[expert]).t() for expert in range(shape[0]))
        for number, product in enumerate(products):
            base = torch.empty(product.shape, dtype=torch.bfloat16)
            self.reader.fill(name, shape, number * base.numel(), base.view(-1))
            update = product * self.adapter.scale
            if not (base.float() + update).to(torch.bfloat16).isfinite().all():
                raise UserError(f"{name} is not finite after the merge", "merge the adapter of an earlier checkpoint")
            yield base, update
        self.merged += 1


def export_model(
    base: Path, adapter_folder: Path, target: Path, experts: str | None = None, shard_bytes: int = SHARD_BYTES
) -> Merge:
    """Write the merged model to `target`: whole, or not at all.

    Args:
        experts: "mxfp4", "bf16", or None for the base's format.

    Raises:
        UserError: if the base is incomplete, the adapter does not belong to it, or the disk is too small.
    """
    model, adapter = read_both(base, adapter_folder)
    if experts == "mxfp4" and not model.is_mxfp4:
        raise UserError(f"{base} has no MXFP4 experts to copy", "use the MXFP4 model, or --experts bf16")
    if model.is_mxfp4 and not experts and EXPERTS_TARGET in adapter.projections:
        what = f"{adapter_folder} changes experts, and MXFP4 would lose most of it"
        raise UserError(what, "use --experts bf16, or --experts mxfp4 to see how much it loses")
    merge = Merge(model, adapter)
    outputs = copy_tensors(model, dequantize=experts == "bf16")
    for module in adapter_files.pairs(adapter):
        name = expert_form.name_parameter(module)
        if name in outputs:
            outputs[name] = _make_output(merge, module)
        else:
            outputs |= {output.name: output for output in _make_packed_outputs(merge, module)}
    write_checkpoint(model, outputs, target, shard_bytes)
    return merge


def read_both(base: Path, adapter_folder: Path) -> tuple[Model, Adapter]:
    """Return a complete base model and an adapter that belongs to it.

    Raises:
        UserError: if the base is incomplete, or the adapter is damaged or does not belong to it.
    """
    model, adapter = whole_model(base), adapter_files.read(adapter_folder)
    if faults := adapter_base.check_against(adapter, model):
        raise refusal(f"{adapter_folder} cannot be merged into {base}", faults)
    if broken := adapter_files.non_finite(adapter):
        raise UserError(f"{adapter_folder} has NaN or infinity in {broken[0]}", "use the adapter of an earlier step")
    return model, adapter


def export_adapter(base: Path, adapter_folder: Path, target: Path) -> Adapter:
    """Write the adapter alone to `target`: whole, or not at all. It names its base by the hub's id, or by no path.

    Raises:
        UserError: as :func:`read_both`, or if the disk is too small.
    """
    model, adapter = read_both(base, adapter_folder)
    tensors = adapter_files.load(adapter)
    name = model_card.base_id(model.folder, adapter) or model.folder.name
    metadata = {"format": "pt"} | ({adapter_files.BASE_KEY: adapter.base} if adapter.base else {})
    with write_aside(target, sum(tensor.nbytes for tensor in tensors.values())) as folder:
        save_file(tensors, folder / adapter_files.WEIGHTS, metadata=metadata)
        config = json.dumps(adapter.config | {"base_model_name_or_path": name}, indent=2)
        (folder / adapter_files.CONFIG).write_text(f"{config}\n", encoding="utf-8")
    return adapter


def _make_output(merge: Merge, module: str) -> TensorOutput:
    name = expert_form.name_parameter(module)
    return TensorOutput(name, "BF16", merge.parameters[name], lambda: map(as_bytes, merge.pieces(module)))


def _make_packed_outputs(merge: Merge, module: str) -> tuple[TensorOutput, TensorOutput]:
    """Return blocks and scales. Whichever is written first computes both; the other one's wait in memory."""
    name = expert_form.name_parameter(module)
    tensors = [f"{name}_blocks", f"{name}_scales"]
    waiting: list[list[torch.Tensor]] = [[], []]

    def pieces(number: int) -> Iterator[Any]:
        if not waiting[number]:
            for both in merge.packed_pieces(module):
                waiting[1 - number].append(both[1 - number])
                yield as_bytes(both[number])
        else:
            yield from map(as_bytes, waiting[number])
            waiting[number].clear()

    blocks, scales = (
        TensorOutput(tensor, "U8", merge.model.tensors[tensor].shape, functools.partial(pieces, number))
        for number, tensor in enumerate(tensors)
    )
    return blocks, scales


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 2, with the reasons on stderr, if it refuses."""
    parser = command.parser("scripts.export_model", __doc__)
    parser.add_argument("--model", required=True, metavar="BASE", help="the model that the adapter was trained on")
    parser.add_argument("--adapter", required=True, type=Path, metavar="DIR", help="an adapter, such as RUN/final")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--experts", choices=["mxfp4", "bf16"], help="format of the experts (default: as in the base)")
    parser.add_argument("--unmerged", action="store_true", help="write the adapter alone")
    parser.add_argument("--card", action="store_true", help="write a model card, README.md; the adapter is a run's")
    parser.add_argument("--license", default="apache-2.0", metavar="ID", help="in the card (default: that of gpt-oss)")
    arguments = parser.parse_args(argv)
    try:
        return _export(arguments, Path(model_folder(arguments.model)))
    except (UserError, OSError) as error:
        print(f"export_model: {error}", file=sys.stderr)
        return 2


def _export(arguments: argparse.Namespace, base: Path) -> int:
    given, out = arguments.adapter, arguments.out
    if arguments.unmerged and arguments.experts:
        raise UserError("--experts applies only to a merged model", "remove it, or --unmerged")
    if arguments.card:
        model_card.find_run(given)  # refused before the model is read
    merge = None if arguments.unmerged else export_model(base, given, out, arguments.experts)
    adapter = merge.adapter if merge else export_adapter(base, given, out)
    if arguments.card:
        card = model_card.write_text(base, adapter, merge is not None, arguments.license)
        (out / "README.md").write_text(card, encoding="utf-8")
    if not digests.is_sealed(given):
        print(digests.describe_unverified(given))
    named = adapter.config.get("base_model_name_or_path") or "an unnamed model"
    is_dequantized = merge and merge.model.is_mxfp4 and arguments.experts == "bf16"
    experts = "the experts dequantized, " if is_dequantized else ""
    what = f"{merge.merged} weights merged, {experts}the rest copied from {arguments.model}" if merge else "the adapter"
    print(f"{out}: {what}")
    print(f"adapter of {named}, rank {adapter.rank}, scale {adapter.scale:g}")
    if merge and not merge.bf16.update + merge.packed.update:
        print("the adapter is zero, so the merged model equals the base")
    elif merge:
        for part, name in ((merge.bf16, "bf16"), (merge.packed, "MXFP4")):
            if part.update:
                print(f"rounding to {name} changes the update by {part.lost:.1%} of its norm")
    return 0


if __name__ == "__main__":
    command.run(main, outlives=True)
