"""Host memory of a training actor with everything offloaded: OpenRLHF's own classes without and with our patches.

The model has gpt-oss-120b's layer sizes, but few layers and few experts. It runs ZeRO-3 on several ranks, with
parameters and optimizer on the host. Stock begins with the same weights in bf16, since it cannot read MXFP4's
configuration. The comparison is of the ranks' peak memory until DeepSpeed's engine exists, above their initial value;
mapped files count. One optimizer step follows. `..._gb` are all that the ranks hold, Python's own included.

Ours is compared with the launcher's plan. On a CPU a step also gathers its layers on the host (`peak`). The plan leaves
these to the GPUs: it covers what is held between the steps.
"""

import argparse
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.harness import Result
from benchmarks.machine import Copy
from benchmarks.parts.random_model import BF16_BYTES, FULL, write_random_model
from benchmarks.parts.ranks import run_ranks
from benchmarks.parts.stock import copy_pristine
from grpo.launch import host_memory, plan
from grpo.model import model_files
from grpo.model.architecture import ATTENTION_PROJECTIONS, PACKED, ZERO3, Architecture
from scripts.dequantize_checkpoint import dequantize_checkpoint

GB = 1e9
EXTRAPOLATED_RANKS = 4
MOMENTS = ("begin", "ready", "ready_peak", "after_step", "peak")
SIZES = {"ranks": 2, "layers": 2, "experts": 16, "intermediate": 2880, "lora_rank": 64, "tokens": 16}


def run(options: argparse.Namespace, _: Copy) -> Result:
    with tempfile.TemporaryDirectory(prefix="bench-offload-") as scratch:
        folder = Path(scratch, "model")
        write_random_model(folder, layers=options.layers, experts=options.experts, intermediate=options.intermediate)
        dequantize_checkpoint(folder, Path(scratch, "bf16"))
        bf16 = model_files.read_whole(folder).bf16_bytes
        parts = plan_bytes(folder, options.ranks, options.lora_rank)
        ways: dict[str, dict[str, Any]] = {
            "stock": {"model": str(Path(scratch, "bf16")), "package": str(copy_pristine(Path(scratch, "openrlhf")))},
            "ours": {"model": str(folder), "package": None},
        }
        held = {}
        for name, way in ways.items():
            job = {**way, "lora_rank": options.lora_rank, "tokens": options.tokens}
            ranks = run_ranks("offload_worker", options.ranks, job)
            if any(rank["step"] != 1 for rank in ranks):
                raise RuntimeError(f"{name} has made {ranks[0]['step']} optimizer steps, not one")
            held[name] = {moment: sum(rank[moment] for rank in ranks) for moment in MOMENTS}
    return _result(options, bf16, parts, held)


def plan_bytes(folder: Path, ranks: int, lora_rank: int) -> dict[str, int]:
    """Return the launcher's plan of what an actor's ranks hold: bytes by part."""
    model = model_files.read_whole(folder)
    args: Any = argparse.Namespace(
        lora_rank=lora_rank,
        target_modules=ATTENTION_PROJECTIONS,
        vllm_num_engines=0,
        vllm_tensor_parallel_size=1,
        vllm_enable_sleep=False,
        offload=True,
        adam_offload=True,
        experts=PACKED,
        actor_shard=ZERO3,
    )
    config: Any = SimpleNamespace(args=args, actor_ranks=ranks, engine_gpus=0)
    optimizer = Architecture.from_config(model.config).count_lora_parameters(args) * plan.OPTIMIZER_BYTES
    parts = host_memory.host_memory(config, model, model, optimizer, object_store_bytes=0)
    processes = host_memory.processes(config)  # the trainer's and Ray's own processes do not run here
    parts[f"{ranks} processes"] = parts.pop(f"{processes} processes") * ranks // processes
    return parts


def _result(options: argparse.Namespace, bf16: int, parts: dict[str, int], held: dict[str, dict[str, int]]) -> Result:
    stock, ours = held["stock"], held["ours"]
    stock_load, ours_load = (way["ready_peak"] - way["begin"] for way in (stock, ours))
    model = sum(parts.values()) - parts[f"{options.ranks} processes"]
    return Result(
        what=f"host memory, at its peak, to set up an actor with everything offloaded on {options.ranks} ranks: "
        f"{options.layers} layers of {options.experts} experts ({bf16 / GB:.2f} GB in bf16)",
        unit="GB",
        stock=stock_load / GB,
        ours=ours_load / GB,
        details={
            **{f"{name}_{moment}_gb": count / GB for name in held for moment, count in held[name].items()},
            "stock_over_bf16_model": stock_load / bf16,
            "ours_over_bf16_model": ours_load / bf16,
            "predicted_gb": sum(parts.values()) / GB,
            "predicted_over_ready": sum(parts.values()) / ours["ready"],
            "predicted_over_after_step": sum(parts.values()) / ours["after_step"],
            "predicted_over_peak": sum(parts.values()) / ours["peak"],
            "predicted_over_ready_without_processes": model / (ours["ready"] - ours["begin"]),
        },
        extrapolation=_extrapolate(),
    )


def _extrapolate() -> tuple[str, ...]:
    pinned = host_memory.pinned_bytes(FULL.actor_bytes(packed=True).values(), EXTRAPOLATED_RANKS)
    return (
        f"gpt-oss-120b on {EXTRAPOLATED_RANKS} ranks: {pinned / GB:,.0f} GB ours; stock at least "
        f"{2 * BF16_BYTES / GB:,.0f} GB, half of it files that rank 0 maps; and stock has no flag to offload an actor: "
        f"{BF16_BYTES / EXTRAPOLATED_RANKS / GB:.0f} GB of each GPU",
        "assumes that stock begins with bf16 files, which rank 0 goes through whole while all hold their partitions; "
        "that ours pins its partitions, in blocks that PyTorch rounds up to powers of two; without the processes' own",
    )
