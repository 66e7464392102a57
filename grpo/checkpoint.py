"""Checkpoints of the LoRA adapter alone, in PEFT's format."""

import os
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

import torch.distributed as dist
from peft import PeftModel
from safetensors.torch import save_file

from grpo.adapter import gather

STEP_DIRECTORY = re.compile(r"step_(\d+)")


def save_adapter(model: PeftModel, directory: str | Path) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json``. A collective call: every rank makes it.

    Only the adapter is gathered. It is written under a temporary name, flushed to the disk and renamed, so that
    ``directory`` holds a whole adapter or does not exist.

    Args:
        model: the PeftModel of this rank, partitioned by ZeRO-3 or not.
        directory: is replaced where it exists.

    Raises:
        FloatingPointError: for an adapter that is not finite; what was saved before stays.
    """
    names, tensors = gather(model)
    if dist.get_rank() == 0:
        target = Path(directory)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        for stale in target.parent.glob(f".{target.name}.*"):  # left by a run that was killed here
            shutil.rmtree(stale)
        temporary.mkdir(parents=True)
        cpu = {name: tensor.cpu().contiguous() for name, tensor in zip(names, tensors, strict=True)}
        save_file(cpu, temporary / "adapter_model.safetensors", metadata={"format": "pt"})
        config = model.peft_config["default"]
        training, config.inference_mode = config.inference_mode, True
        config.save_pretrained(str(temporary))
        config.inference_mode = training
        for file in temporary.iterdir():
            _flush(file)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
        _flush(target.parent)
    dist.barrier()


def save_step(model: PeftModel, args: Any, client_states: dict[str, Any]) -> None:
    """Write ``step_N/adapter`` in ``args.ckpt_path`` and remove all but the newest ``args.max_ckpt_num`` steps.

    A collective call.

    Args:
        client_states: OpenRLHF's; ``global_step`` is N.
    """
    checkpoints = Path(args.ckpt_path)
    save_adapter(model, checkpoints / f"step_{client_states['global_step']}" / "adapter")
    if dist.get_rank() == 0:
        for old in saved_steps(checkpoints)[: -max(args.max_ckpt_num, 1)]:
            shutil.rmtree(checkpoints / f"step_{old}")


def saved_steps(checkpoints: str | Path) -> list[int]:
    """Return the steps with a whole adapter, in ascending order."""
    found = (STEP_DIRECTORY.fullmatch(path.name) for path in Path(checkpoints).iterdir())
    steps = sorted(int(match.group(1)) for match in found if match)
    return [step for step in steps if (Path(checkpoints) / f"step_{step}" / "adapter").is_dir()]


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
