"""The trainer's own state: what a run needs besides the adapter to continue as if it had not stopped.

`trainer/state.safetensors` holds counters, data position and learning-rate schedule. `trainer/rank_R.safetensors` holds
rank R's ZeRO-3 ranges of the fp32 master weights and of Adam's moments, and its random states. Only trained parameters
are stored: 12 bytes per adapter parameter, 573 MB for the 120b. As many ranks read them again.
"""

import math
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LambdaLR

from grpo.checkpoint import state_files
from grpo.lora import adapter, expert_form
from grpo.model.model_files import CheckpointError
from grpo.stack.problem import UserError
from grpo.stack.upstream import TrainerEngine, ZeroOptimizer, ZeroParameter

STATE = "state.safetensors"
KINDS = ("master", "exp_avg", "exp_avg_sq")
_OTHER = "restore a copy of it, or move it away: --resume continues from the newest whole checkpoint"
_COUNTERS = ("global_steps", "global_samples", "skipped_steps")
_STATE_KEYS = {"ranks", "optimizer_step", "counters", "scheduler", "client_states"}
_RANK_KEYS = {"layout", "random", *KINDS}


def random_state() -> dict[str, Any]:
    """Return the states of this process's random generators, in host memory."""
    version, words, gauss = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(keys, np.int64)), *rest],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore what :func:`random_state` returned."""
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))


def collect_controller_state(status: dict[str, Any]) -> dict[str, Any]:
    """Return what the controller's states hold besides its position: random states and the step's metrics."""
    kept = {name: value for name, value in status.items() if isinstance(value, int | float) or name == "grad_norms"}
    return {"random": random_state(), "status": kept}


def save(engine: TrainerEngine, directory: Path, client_states: dict[str, Any]) -> None:
    """Write this rank's part. Every rank calls it; it makes no collective call and copies no tensor.

    Args:
        engine: DeepSpeed's engine, with ZeRO-3 around PyTorch's fused AdamW.
        directory: must exist.
        client_states: the controller's.
    """
    from deepspeed.accelerator import get_accelerator  # slow import: tools read states without it

    optimizer = engine.optimizer
    flats = optimizer.fp32_partitioned_groups_flat
    moments = [_moments(optimizer.optimizer, flat) for flat in flats]
    mine = {
        "layout": {
            name: (*optimizer.grad_position[optimizer.get_param_id(parameter)][:2], tuple(parameter.ds_shape))
            for name, parameter in _parameters(engine)
        },
        "master": [flat.detach() for flat in flats],
        "exp_avg": [state["exp_avg"] for state in moments],
        "exp_avg_sq": [state["exp_avg_sq"] for state in moments],
        "random": random_state() | {"device": get_accelerator().get_rng_state()},
    }
    state_files.write(directory / f"rank_{dist.get_rank()}.safetensors", mine)
    if dist.get_rank() == 0:
        state = {
            "ranks": dist.get_world_size(),
            "optimizer_step": int(moments[0]["step"]),
            "counters": {name: getattr(engine, name) for name in _COUNTERS},
            "scheduler": {name: getattr(engine.lr_scheduler, name) for name in ("last_epoch", "_step_count")},
            "client_states": client_states,
        }
        state_files.write(directory / STATE, state)


def load(engine: TrainerEngine, directory: Path) -> dict[str, Any]:
    """Restore a freshly initialized trainer from a saved state. Return the controller's states.

    Every rank calls it. The adapter itself is set from its fp32 master weights.

    Raises:
        UserError: if the files are incomplete, or belong to an adapter with another rank, model or targets.
    """
    # The launcher has verified the digests of these files under the run's lock (grpo.launch.resume). Every rank would
    # read all of them again, and nothing else writes here in the minutes between.
    from deepspeed.accelerator import get_accelerator

    state, files = read(directory)
    if len(files) != dist.get_world_size():
        raise UserError(
            f"{directory} was saved by {len(files)} ranks, and this run has {dist.get_world_size()}", _OTHER
        )
    mine = files[dist.get_rank()]
    wanted = {name: expert_form.to_file_shape(name, p.ds_shape) for name, p in _parameters(engine)}
    differs = difference(shapes(files[0]), wanted)
    if differs:
        raise UserError(
            f"{directory} belongs to an adapter other than this run's ({differs})",
            "use the same model, --lora_rank, --expert_rank, and --target_modules",
        )
    optimizer = engine.optimizer
    for flat in optimizer.fp32_partitioned_groups_flat:
        step = torch.tensor(float(state["optimizer_step"]), device=flat.device)  # as PyTorch's fused Adam keeps it
        zeros = {kind: torch.zeros_like(flat.data) for kind in KINDS[1:]}
        optimizer.optimizer.state[flat] = {"step": step, **zeros}
    for name, parameter in _parameters(engine):
        group, offset, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
        saved_group, begin, _ = mine["layout"][name]
        flat = optimizer.fp32_partitioned_groups_flat[group]
        targets = {"master": flat.data} | {kind: optimizer.optimizer.state[flat][kind] for kind in KINDS[1:]}
        for kind, target in targets.items():
            target[offset : offset + size].copy_(mine[kind][saved_group][begin : begin + size])
        parameter.ds_tensor.data.copy_(flat.data[offset : offset + size])
    _gather_persistent(optimizer)

    for name, value in state["counters"].items():
        setattr(engine, name, value)
    # This run's ranks and batch sizes determine where optimizer steps begin among the micro-batches.
    engine.micro_steps = engine.global_steps * engine.gradient_accumulation_steps()
    _set_schedule(engine.lr_scheduler, optimizer, state["scheduler"])
    set_random_state(mine["random"])
    get_accelerator().set_rng_state(mine["random"]["device"])
    return state["client_states"]


def read(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the contents of STATE and of each rank's file. Tensors stay on disk until they are used.

    Raises:
        CheckpointError: if a file is missing, truncated or of another kind.
    """
    state = _read(directory / STATE, _STATE_KEYS)
    try:
        files = [_read(directory / f"rank_{rank}.safetensors", _RANK_KEYS) for rank in range(state["ranks"])]
        whole = [shapes(file) == shapes(files[0]) and _is_filled(file, n, len(files)) for n, file in enumerate(files)]
    except (TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{directory} is not a trainer state ({error})", _OTHER) from error
    if not files:
        raise CheckpointError(f"{directory} is not a trainer state (of {state['ranks']} ranks)", _OTHER)
    if not all(whole):
        raise CheckpointError(f"{directory / f'rank_{whole.index(False)}.safetensors'} is incomplete", _OTHER)
    return state, files


def shapes(file: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the full shapes of the adapter's tensors in PEFT's files. A rank's file holds ranges of them."""
    return {name: expert_form.to_file_shape(name, shape) for name, (_, _, shape) in file["layout"].items()}


def difference(saved: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]) -> str | None:
    """Name the first tensor that differs between two adapters, with both shapes; None if they agree."""
    names = (name for name in sorted(saved | wanted) if saved.get(name) != wanted.get(name))
    return next(
        (f"{name} is {saved.get(name, 'missing')} and not {wanted.get(name, 'missing')}" for name in names), None
    )


def _is_filled(file: dict[str, Any], rank: int, ranks: int) -> bool:
    """Say whether every range of a rank's file lies inside its tensors."""
    for group, offset, shape in file["layout"].values():
        size = -(-math.prod(shape) // ranks)
        end = offset + max(0, min(size, math.prod(shape) - rank * size))
        if min(group, offset) < 0 or any(end > len(file[kind][group]) for kind in KINDS):
            return False
    return True


def _moments(adam: torch.optim.Optimizer, flat: torch.Tensor) -> dict[str, Any]:
    # Adam creates them in its first step, and a checkpoint may precede it.
    return adam.state[flat] or {"step": 0, **{kind: torch.zeros_like(flat.data) for kind in KINDS[1:]}}


def _parameters(engine: TrainerEngine) -> list[tuple[str, ZeroParameter]]:
    names, parameters = adapter.adapter_parameters(engine.module)
    return list(zip(names, cast("list[ZeroParameter]", parameters), strict=True))


def _set_schedule(scheduler: LambdaLR, optimizer: ZeroOptimizer, saved: dict[str, Any]) -> None:
    """Continue at the saved position of the schedule, with this run's learning rate and length."""
    scheduler.last_epoch, scheduler._step_count = saved["last_epoch"], saved["_step_count"]
    shares = [share(scheduler.last_epoch) for share in scheduler.lr_lambdas]
    scheduler._last_lr = [base * share for base, share in zip(scheduler.base_lrs, shares, strict=True)]
    for group, rate in zip(optimizer.param_groups, scheduler._last_lr, strict=True):
        group["lr"] = rate  # the scheduler sets it only after the next optimizer step


def _read(file: Path, keys: set[str]) -> dict[str, Any]:
    try:
        content = state_files.read(file)
    except (OSError, state_files.StateFileError) as error:
        raise CheckpointError(f"{file} cannot be read ({error})", _OTHER) from error
    if not isinstance(content, dict) or not keys <= content.keys():
        raise CheckpointError(f"{file} is not a trainer state", _OTHER)
    return content


def _gather_persistent(optimizer: ZeroOptimizer) -> None:
    # DeepSpeed keeps small parameters whole on every rank; gather them again from the ranges just set.
    if optimizer.persistent_parameters:
        optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)
        optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)
