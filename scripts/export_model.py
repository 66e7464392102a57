"""Merge a LoRA adapter into its base model, and write a checkpoint that serves without PEFT.

    python -m scripts.export_model --model BASE --adapter DIR --out DIR [--experts mxfp4|bf16] [--card]
    python -m scripts.export_model --model BASE --adapter DIR --out DIR --unmerged [--card]
    python -m scripts.export_model --model BASE --out DIR --experts bf16

With `--unmerged`, the adapter alone is written, in PEFT's format. `--card` adds a README.md for the hub: base model,
settings, versions, and held-out scores, from the records of the adapter's run.

BASE is a folder, or a hub id in the hub's cache. The merged weights are W + scale * B A in float32, rounded once to
bf16. With `--experts mxfp4` (the default for an MXFP4 base) blocks and scales are copied byte for byte; with `bf16`
they are dequantized. Without an adapter, `bf16` copies the base for engines that have no kernel for MXFP4, such as vLLM
on a CPU. Host memory: the adapter, and one file of the checkpoint that is written.

bf16 keeps 8 bits, so an update that is small beside its weight is partly lost to rounding. The last line says how much
of the update the merged model retains. Base and adapter served side by side retain all of it. MXFP4 keeps 2 bits or
3, so a merge of experts into it loses most of their update: it is made only if `--experts mxfp4` is given.
"""

import argparse
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import ModelCardData

from eval.checks import read_adapter
from grpo.checkpoint import adapter_files, digests
from grpo.checkpoint.adapter_files import Adapter
from grpo.lora import expert_form
from grpo.model import mxfp4
from grpo.model.architecture import EXPERTS_TARGET
from grpo.model.model_files import Model
from grpo.run.eval_metric import get_name, get_value
from grpo.run.run_files import STEP_DIRECTORY, RunFiles, parse_step
from grpo.run.run_state import Run
from grpo.stack import command, hub
from grpo.stack.problem import UserError
from scripts.checkpoint_writer import (
    Parameters,
    dequantize_checkpoint,
    whole_model,
    write_aside,
    write_checkpoint,
    write_json,
)

_IN_CARD = (
    *("lora_rank", "lora_alpha", "target_modules", "actor_learning_rate", "rollout_batch_size", "n_samples_per_prompt"),
    *("train_batch_size", "temperature", "generate_max_len", "advantage_estimator", "policy_loss_type", "init_kl_coef"),
    "seed",
)
_PACKAGES = ("openrlhf", "peft", "transformers", "torch", "vllm", "deepspeed")


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


class Merge:
    """A base model's parameters with an adapter merged into them, and what rounding does to its update.

    Attributes:
        bf16, mxfp4: of the parameters that are written so.
        merged: the number of merged parameters.
    """

    def __init__(self, model: Model, adapter: Adapter, dequantize: bool) -> None:
        self.model, self.adapter, self.dequantize = model, adapter, dequantize
        self.bf16, self.mxfp4, self.merged = Rounding(), Rounding(), 0
        self._parameters, self._halves = Parameters(model), adapter_files.load(adapter)
        self._modules = {expert_form.name_parameter(module): module for module in adapter_files.pairs(adapter)}

    def read(self, name: str) -> dict[str, torch.Tensor]:
        """Return a parameter as the merged model's files hold it."""
        if name not in self._modules:
            return self._parameters.read_bf16(name) if self.dequantize else self._parameters.read(name)
        self.merged += 1
        (weight,) = self._parameters.read_bf16(name).values()
        if self.dequantize or f"{name}_blocks" not in self.model.tensors:
            for base, update in self._updates(name, weight):
                merged = (base.float() + update).bfloat16()
                self.bf16.note(base, update, merged)
                base.copy_(merged)
            return {name: weight}
        packed = []
        for base, update in self._updates(name, weight):
            packed.append(mxfp4.quantize(base.float() + update, smallest=mxfp4.quantize(base)[1]))
            self.mxfp4.note(base, update, mxfp4.dequantize(*packed[-1]))
        blocks, scales = map(torch.stack, zip(*packed, strict=True))
        return {f"{name}_blocks": blocks, f"{name}_scales": scales}

    def _updates(self, name: str, weight: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield a weight `[out, in]`, or each expert's `[in, out]`, and its update in float32."""
        halves = [adapter_files.tensor_name(self._modules[name], half) for half in adapter_files.HALVES]
        a, b = (expert_form.from_file(half, self._halves[half].float(), weight.shape) for half in halves)
        is_expert = weight.dim() == 3
        for number, base in enumerate(weight if is_expert else [weight]):
            update = self.adapter.scale * ((b[number] @ a[number]).t() if is_expert else b @ a)
            if not (base.float() + update).bfloat16().isfinite().all():
                raise UserError(f"{name} is not finite after the merge", "merge the adapter of an earlier checkpoint")
            yield base, update


def export_model(base: Path, adapter_folder: Path, target: Path, experts: str | None = None) -> Merge:
    """Write the merged model to `target`: whole, or not at all.

    Args:
        experts: "mxfp4", "bf16", or None for the base's format.

    Raises:
        UserError: if the base is incomplete, the adapter does not belong to it, or the disk is too small.
    """
    model = whole_model(base)
    adapter = read_adapter(adapter_folder, model)
    if experts == "mxfp4" and not model.is_mxfp4:
        raise UserError(f"{base} has no MXFP4 experts to copy", "use the MXFP4 model, or --experts bf16")
    if model.is_mxfp4 and not experts and EXPERTS_TARGET in adapter.projections:
        what = f"{adapter_folder} changes experts, and MXFP4 would lose most of it"
        raise UserError(what, "use --experts bf16, or --experts mxfp4 to see how much it loses")
    merge = Merge(model, adapter, dequantize=experts == "bf16")
    write_checkpoint(model, target, merge.read, merge.dequantize)
    return merge


def export_adapter(base: Path, adapter_folder: Path, target: Path) -> Adapter:
    """Write the adapter alone to `target`: whole, or not at all. It names its base by the hub's id, or by no path.

    Raises:
        UserError: as :func:`export_model`.
    """
    model = whole_model(base)
    adapter = read_adapter(adapter_folder, model)
    tensors = adapter_files.load(adapter)
    name = base_id(model.folder, adapter) or model.folder.name
    with write_aside(target, sum(tensor.nbytes for tensor in tensors.values())) as folder:
        adapter_files.save(folder, tensors, adapter.base)
        write_json(folder / adapter_files.CONFIG, adapter.config | {"base_model_name_or_path": name})
    return adapter


def base_id(model: Path, adapter: Adapter) -> str | None:
    """Return the hub id of the base model; None if neither its folder nor the adapter tells."""
    named = str(adapter.config.get("base_model_name_or_path"))
    return hub.find_id(str(model)) or (named if re.fullmatch(r"[\w.-]+/[\w.-]+", named) and hub.is_id(named) else None)


def find_run(adapter: Path) -> tuple[Run, int]:
    """Return the run that has trained an adapter, and the step after which it was saved.

    Raises:
        UserError: if the adapter is not in a run's folder.
    """
    folder = adapter.absolute()
    found = next((parent for parent in folder.parents if RunFiles(parent).is_run()), None)
    if found is None:
        remedy = "name RUN/final or RUN/checkpoints/step_N/adapter, or leave out --card"
        raise UserError(f"{adapter} is not in a run's folder, which has what the card says", remedy)
    run = Run(found)
    return run, parse_step(folder.parent) if STEP_DIRECTORY.fullmatch(folder.parent.name) else run.step


def write_card(model: Path, adapter: Adapter, is_merged: bool, license_id: str) -> str:
    """Return README.md for the hub. It is public, so it holds no path of the user's."""
    run, step = find_run(adapter.folder)
    base = base_id(model, adapter)
    data = ModelCardData(
        base_model=base, license=license_id, library_name="transformers" if is_merged else "peft",
        pipeline_tag="text-generation", tags=["grpo", "lora"],
    )  # fmt: skip
    lines = ["---", data.to_yaml(), "---", f"# {base or 'gpt-oss'} after {step} steps of GRPO", ""]
    lines += ["The adapter is merged into the model." if is_merged else "A LoRA adapter in PEFT's format.", ""]
    for row in (row for row in run.graded if row["step"] in (0, step)):
        lines.append(f"- held-out {get_name(row)} after step {row['step']}: {get_value(row):.3f} (n={row.get('n')})")
    lines += [f"- {run.about_judge}"] if run.about_judge else []
    flags, packages = run.part("flags"), run.read(run.files.environment).get("packages") or {}
    lines += [f"- {name}: {flags[name]}" for name in _IN_CARD if name in flags]
    return "\n".join([*lines, *(f"- {name} {packages[name]}" for name in _PACKAGES if name in packages)]) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 2, with the reasons on stderr, if it refuses."""
    parser = command.parser("scripts.export_model", __doc__)
    parser.add_argument("--model", required=True, metavar="BASE", help="the model that the adapter was trained on")
    parser.add_argument("--adapter", type=Path, metavar="DIR", help="an adapter, such as RUN/final")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--experts", choices=["mxfp4", "bf16"], help="format of the experts (default: as in the base)")
    parser.add_argument("--unmerged", action="store_true", help="write the adapter alone")
    parser.add_argument("--card", action="store_true", help="write a model card, README.md; the adapter is a run's")
    parser.add_argument("--license", default="apache-2.0", metavar="ID", help="in the card (default: that of gpt-oss)")
    arguments = parser.parse_args(argv)
    try:
        return _export(arguments, Path(hub.model_folder(arguments.model)))
    except (UserError, OSError) as error:
        print(f"export_model: {error}", file=sys.stderr)
        return 2


def _export(arguments: argparse.Namespace, base: Path) -> int:
    given, out = arguments.adapter, arguments.out
    if arguments.unmerged and arguments.experts:
        raise UserError("--experts applies only to a merged model", "remove it, or --unmerged")
    if given is None:
        if arguments.unmerged or arguments.card or arguments.experts != "bf16":
            raise UserError("--adapter is missing", "name one, or give --experts bf16 alone to copy the base")
        dequantize_checkpoint(base, out)
        print(f"{out}: a copy of {arguments.model} in bf16")
        return 0
    if arguments.card:
        find_run(given)  # refused before the model is read
    merge = None if arguments.unmerged else export_model(base, given, out, arguments.experts)
    adapter = merge.adapter if merge else export_adapter(base, given, out)
    if arguments.card:
        card = write_card(base, adapter, merge is not None, arguments.license)
        (out / "README.md").write_text(card, encoding="utf-8")
    if not digests.is_sealed(given):
        print(digests.describe_unverified(given))
    named = adapter.config.get("base_model_name_or_path") or "an unnamed model"
    is_dequantized = merge and merge.model.is_mxfp4 and arguments.experts == "bf16"
    experts = "the experts dequantized, " if is_dequantized else ""
    what = f"{merge.merged} weights merged, {experts}the rest copied from {arguments.model}" if merge else "the adapter"
    print(f"{out}: {what}")
    print(f"adapter of {named}, rank {adapter.rank}, scale {adapter.scale:g}")
    if merge and not merge.bf16.update + merge.mxfp4.update:
        print("the adapter is zero, so the merged model equals the base")
    elif merge:
        for part, name in ((merge.bf16, "bf16"), (merge.mxfp4, "MXFP4")):
            if part.update:
                print(f"rounding to {name} changes the update by {part.lost:.1%} of its norm")
    return 0


if __name__ == "__main__":
    command.run(main, outlives=True)
