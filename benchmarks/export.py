"""Merging an adapter into an MXFP4 base, to a bf16 checkpoint: transformers and PEFT, and ours, tensor by tensor.

The model has gpt-oss-120b's layer sizes, but few layers and few experts. Memory is the process's peak above its initial
value, mapped files included. Both checkpoints must hold the same tensors, which is checked. The merged attention may
differ by the rounding to bf16, everything else must be bit-identical. PEFT 0.21 adds the update in float32 and rounds
once, as ours does; rounding the update first would pass, too.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open

from benchmarks.harness import Result
from benchmarks.machine import Copy
from benchmarks.parts.random_model import BF16_BYTES, write_random_adapter, write_random_model
from benchmarks.parts.ranks import run_ranks
from grpo.checkpoint import adapter_files
from grpo.model import model_files
from grpo.model.model_files import Model

GB = 1e9
# Rounding to 8 bits is off by 2**-8 at most. PEFT 0.21 rounds the sum once, as ours does. Rounding the update before
# would be acceptable too.
ROUNDING = 2**-7
_REMEDY = "run pytest tests/scripts/test_export_model.py"
SIZES = {"layers": 2, "experts": 16, "intermediate": 2880, "lora_rank": 64}


def run(options: argparse.Namespace, _: Copy) -> Result:
    with tempfile.TemporaryDirectory(prefix="bench-export-") as scratch:
        base, adapter = Path(scratch, "base"), Path(scratch, "adapter")
        write_random_model(base, layers=options.layers, experts=options.experts, intermediate=options.intermediate)
        write_random_adapter(adapter, base, options.lora_rank)
        model = model_files.read_whole(base)
        sizes = {"bf16": model.bf16_bytes, "files": model.file_bytes}
        targets, reports = {}, {}
        for name in ("stock", "ours"):
            targets[name] = Path(scratch, name)
            job = {"base": str(base), "adapter": str(adapter), "target": str(targets[name]), "ours": name == "ours"}
            (reports[name],) = run_ranks("export_worker", 1, job)
        merged = {f"{module}.weight" for module in adapter_files.pairs(adapter_files.read(adapter))}
        differing = compare(model, model_files.read(targets["stock"]), model_files.read(targets["ours"]), merged)
    stock, ours = (reports[name]["peak_bytes"] for name in ("stock", "ours"))
    return Result(
        what=f"memory to merge an adapter of rank {options.lora_rank} into {options.layers} layers of "
        f"{options.experts} experts ({sizes['files'] / GB:.2f} GB in files, {sizes['bf16'] / GB:.2f} GB in bf16)",
        unit="GB",
        stock=stock / GB,
        ours=ours / GB,
        details={
            "stock_peak_over_bf16_model": stock / sizes["bf16"],
            "ours_peak_over_bf16_model": ours / sizes["bf16"],
            "merged_weights_that_differ": differing,
            "stock_s": reports["stock"]["seconds"],
            "ours_s": reports["ours"]["seconds"],
        },
        extrapolation=(
            f"gpt-oss-120b: at least {BF16_BYTES / GB:,.0f} GB stock, {ours / GB:.2f} GB ours; "
            + ", ".join(f"{reports[n]['seconds'] * BF16_BYTES / sizes['bf16']:,.0f} s {n}" for n in ("stock", "ours"))
            + " on this machine",
            "assumes that stock holds the whole model and no more, and that ours needs what it needs here: it holds a "
            "piece of one tensor, whose size is that of the 120b's; times in proportion to the bf16 model, with disks "
            "as fast as this one",
        ),
    )


def compare(base: Model, stock: Model, ours: Model, merged: set[str]) -> float:
    """Return the share of the weights of `merged` tensors in which two merged checkpoints differ.

    Raises:
        RuntimeError: if weights differ by more than rounding to bf16, or any other bit differs.
    """
    if stock.tensors.keys() != ours.tensors.keys():
        raise RuntimeError(f"the two ways wrote other tensors: {_REMEDY}")
    weights = differing = 0
    for name in ours.tensors:
        theirs, mine = _tensor(stock, name), _tensor(ours, name)
        if name in merged:
            update = (mine.float() - _tensor(base, name).float()).abs()
            equal = bool(((mine.float() - theirs.float()).abs() <= ROUNDING * (mine.float().abs() + update)).all())
            weights, differing = weights + mine.numel(), differing + int((mine != theirs).sum())
        else:
            equal = torch.equal(mine.view(torch.int16), theirs.view(torch.int16))
        if not equal:
            raise RuntimeError(f"the two ways wrote other values for {name}: {_REMEDY}")
    return differing / weights


def _tensor(model: Model, name: str) -> torch.Tensor:
    with safe_open(model.tensors[name].file, framework="pt") as file:
        return file.get_tensor(name)
