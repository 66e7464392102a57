"""Checkpoints: the LoRA adapter in PEFT's format, and the trainer's own state beside it."""

import contextlib
import copy
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import PeftModel
from safetensors import SafetensorError

from grpo.checkpoint import adapter_files, digests, trainer_state
from grpo.lora import expert_form
from grpo.lora.adapter import adapter_parameters, gather, unflatten
from grpo.model.model_files import CheckpointError
from grpo.run.run_files import RunFiles, held_out, saved_steps, step_name
from grpo.stack import hub
from grpo.stack.problem import UserError
from grpo.stack.upstream import Arguments, TrainerEngine

logger = logging.getLogger("openrlhf.grpo.saving")


def save_adapter(model: PeftModel, directory: str | Path) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json``. A collective call: every rank makes it.

    Args:
        model: the PeftModel of this rank, partitioned by ZeRO-3 or not.
        directory: never holds a partial adapter, even if the call is killed. An existing one is replaced; a kill
            between the two renames leaves none under its name.

    Raises:
        FloatingPointError: if the adapter is not finite; the previous save stays.
        UserError: if the disk is full or not writable; earlier checkpoints stay.
    """
    replace(Path(directory), _adapter_writer(model))


@torch.no_grad()
def load_adapter(model: PeftModel, directory: Path) -> None:
    """Set this rank's adapter before ZeRO-3 partitions it. Values of another type are rounded to bf16.

    The launcher has checked the directory. Raises CheckpointError if it is damaged, or of another adapter.
    """
    adapter = adapter_files.read(directory)
    values, parameters = adapter_files.load(adapter), dict(zip(*adapter_parameters(model), strict=True))
    wanted = {name: expert_form.to_file_shape(name, parameter.shape) for name, parameter in parameters.items()}
    if differs := adapter_files.difference(adapter.shapes, wanted):
        raise CheckpointError(f"{directory} is not an adapter of this run ({differs})", "start a new run")
    for name, parameter in parameters.items():
        parameter.copy_(expert_form.from_file(name, values[name], parameter.shape))


def save_step(engine: TrainerEngine, args: Arguments, client_states: dict[str, Any]) -> None:
    """Write ``step_N`` in ``args.ckpt_path``, with ``adapter/`` and ``trainer/``, and remove what is not kept.

    A collective call. Beyond what training holds, it needs memory only for the adapter.

    Args:
        client_states: the controller's; ``global_step`` is N, and ``status`` has the metrics of that step.
    """
    write_adapter = _adapter_writer(engine.module)

    def write(step: Path) -> None:
        (step / "trainer").mkdir(exist_ok=True)
        write_adapter(step / "adapter")
        trainer_state.save(engine, step / "trainer", client_states)

    checkpoints = Path(args.ckpt_path)
    replace(checkpoints / step_name(client_states["global_step"]), write)
    if dist.get_rank() == 0:
        rotate(checkpoints, args)


def rotate(checkpoints: Path, args: Arguments) -> None:
    """Remove the checkpoints that are not kept. The new one is complete, so no failure here is worth ending a run."""
    try:
        steps, files = saved_steps(checkpoints), RunFiles(Path(args.run_dir), Path(args.metrics_dir or args.run_dir))
        scores = held_out(files.evals)
        if len(steps) == 1:
            _warn_of_size(checkpoints / step_name(steps[0]), files)
        remove(checkpoints, set(steps) - set(choose_kept_steps(steps, scores, args.max_ckpt_num)))
    except OSError as error:
        logger.error("an old checkpoint was not removed, the next save tries again: %s", error)


def _warn_of_size(step: Path, files: RunFiles) -> None:
    """Warn if a run's first checkpoint is larger than planned: the disk was checked for that size."""
    size = sum(file.stat().st_size for file in step.glob("*/*"))
    with contextlib.suppress(UserError):  # config.json is damaged
        planned = (files.read_config().get("plan") or {}).get("checkpoint_bytes")
        if planned and size > 1.1 * planned + 1e6:
            sizes = f"{size / 1e6:,.0f} MB, and {planned / 1e6:,.0f} MB were planned"
            logger.warning("a checkpoint takes %s: watch the disk", sizes)


def load_step(engine: TrainerEngine, args: Arguments) -> dict[str, Any]:
    """Restore the trainer from ``args.resume_from``. Return the controller's states; {} without a checkpoint."""
    return trainer_state.load(engine, Path(args.resume_from) / "trainer") if args.resume_from else {}


def _adapter_writer(model: PeftModel) -> Callable[[Path], None]:
    """Gather the adapter and return a function that writes it into a folder, on rank 0."""
    flat, specs = gather(model)

    def write(directory: Path) -> None:
        if dist.get_rank() != 0:
            return
        directory.mkdir(exist_ok=True)
        config: Any = copy.copy(model.peft_config["default"])
        folder = str(config.base_model_name_or_path)
        base = adapter_files.compute_fingerprint(folder)
        tensors = {name: expert_form.to_file(name, t) for name, t in unflatten(flat, specs).items()}
        adapter_files.save(directory, tensors, base)
        # A folder of this machine would be of no use elsewhere, and its name may be private.
        config.base_model_name_or_path = hub.find_id(folder) or folder
        config.inference_mode = True  # as PEFT saves it
        if isinstance(config.target_modules, set):  # PEFT would write them in any order
            config.target_modules = sorted(config.target_modules)
        shapes = {spec.name: spec.shape for spec in specs}
        for key, value in expert_form.to_file_config(config.to_dict(), shapes).items():
            setattr(config, key, value)
        config.save_pretrained(str(directory))

    return write


def replace(target: Path, write: Callable[[Path], None]) -> None:
    """Let every rank write into a temporary folder, then rename it: a folder under its final name is complete."""
    aside, old = target.with_name(f".{target.name}.partial"), target.with_name(f".{target.name}.old")

    def prepare() -> None:
        if old.exists() and not target.exists():  # a run was killed between the two renames below
            old.rename(target)
        for left in (aside, old):
            shutil.rmtree(left, ignore_errors=True)
        aside.mkdir(parents=True)

    def finish() -> None:
        for folder in {file.parent for file in aside.rglob("*") if file.is_file()}:
            digests.write(folder)
        for path in (*aside.rglob("*"), aside):
            _flush(path)
        if target.exists():
            target.rename(old)
        aside.rename(target)
        _flush(target.parent)  # a rename lasts once its folder is flushed
        shutil.rmtree(old, ignore_errors=True)

    is_first = dist.get_rank() == 0
    for part in (prepare if is_first else None, lambda: write(aside), finish if is_first else None):
        _run_on_every_rank(part, target)


def remove(checkpoints: Path, steps: Iterable[int]) -> None:
    """Remove these steps, and what a killed save left behind."""
    for step in steps:
        removed = checkpoints / f".{step_name(step)}.removed"
        shutil.rmtree(removed, ignore_errors=True)
        (checkpoints / step_name(step)).rename(removed)  # atomic: complete or absent
    for left in checkpoints.glob(f".{step_name('*')}"):  # also what a kill left behind
        name, kind = left.name[1:].split(".")
        # The old content of a step may be the only copy; the next save of that step restores it.
        if kind != "old" or (checkpoints / name).is_dir():
            shutil.rmtree(left)


def _run_on_every_rank(part: Callable[[], None] | None, target: Path) -> None:
    # A rank that fails alone would leave the others waiting in the next collective call forever.
    error = None
    try:
        if part:
            part()
    except (OSError, RuntimeError, SafetensorError) as failure:
        error = f"rank {dist.get_rank()}: {failure}"
    errors: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error)
    if any(errors):
        reasons = "; ".join(filter(None, errors))
        raise UserError(f"{target} was not written ({reasons})", "free disk space or repair the disk, then --resume")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def choose_kept_steps(steps: Sequence[int], scores: dict[int, float], count: int) -> list[int]:
    """Return the steps to keep, of ascending ones: the newest, and the best by the held-out problems.

    The newest and the best with a score (on a tie the latest) are always kept, so a count of 1 may keep two.
    """
    best = max((step for step in steps if step in scores), key=lambda step: (scores[step], step), default=None)
    newest = list(steps[-max(count, 1) :])
    if best is None or best in newest:
        return newest
    return [best, *(newest[1:] if count > 1 else newest)]
