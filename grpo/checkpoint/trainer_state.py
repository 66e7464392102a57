"""The trainer's own state: what a run needs besides the adapter to continue as if it had not stopped.

`trainer/state.safetensors` holds counters, data position and learning-rate schedule. `trainer/rank_R.safetensors` holds
rank R's ZeRO-3 ranges of the fp32 master weights and of Adam's moments, and its random states. Only trained parameters
are stored: 12 bytes per adapter parameter, 573 MB for the 120b. As many ranks read them again, each its own file.

Both are safetensors files, whose tensor "json" holds all other values as JSON text. Reading them runs nothing that a
file holds.
"""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.optim.lr_scheduler import LambdaLR

from grpo.checkpoint.adapter_files import difference
from grpo.lora import adapter, expert_form
from grpo.model.model_files import CheckpointError
from grpo.stack.json_files import open_file
from grpo.stack.problem import UserError
from grpo.stack.upstream import TrainerEngine, ZeroOptimizer, ZeroParameter

STATE = "state.safetensors"
KINDS = ("master", "exp_avg", "exp_avg_sq")
_OTHER = "restore a copy of it, or move it away: --resume continues from the newest whole checkpoint"
_COUNTERS = ("global_steps", "global_samples", "skipped_steps")
_STATE_KEYS = {"ranks", "optimizer_step", "counters", "scheduler", "client_states"}
_RANK_KEYS = {"layout", "random", *KINDS}
# JSON has no tensors, no tuples, and only texts as keys.
_TENSOR, _TUPLE, _PAIRS = "$tensor", "$tuple", "$pairs"
_JSON = "json"


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
    write_file(_rank_file(directory, dist.get_rank()), mine)
    if dist.get_rank() == 0:
        state = {
            "ranks": dist.get_world_size(),
            "optimizer_step": int(moments[0]["step"]),
            "counters": {name: getattr(engine, name) for name in _COUNTERS},
            "scheduler": {name: getattr(engine.lr_scheduler, name) for name in ("last_epoch", "_step_count")},
            "client_states": client_states,
        }
        write_file(directory / STATE, state)


def load(engine: TrainerEngine, directory: Path) -> dict[str, Any]:
    """Restore a freshly initialized trainer from a saved state. Return the controller's states.

    Every rank calls it. The adapter itself is set from its fp32 master weights.
    Raises UserError if the files are incomplete, or belong to an adapter with another rank, model or targets.
    """
    # The launcher has verified the digests of these files under the run's lock (grpo.launch.resume). Every rank would
    # read all of them again, and nothing else writes here in the minutes between.
    from deepspeed.accelerator import get_accelerator

    state = _read(directory / STATE, _STATE_KEYS)
    if state["ranks"] != dist.get_world_size():
        what = f"{directory} was saved by {state['ranks']} ranks, and this run has {dist.get_world_size()}"
        raise UserError(what, "give the run as many GPUs as before, or start a new one from the adapter with --adapter")
    mine = _read(_rank_file(directory, dist.get_rank()), _RANK_KEYS)
    wanted = {name: expert_form.to_file_shape(name, p.ds_shape) for name, p in _parameters(engine)}
    if differs := difference(shapes(mine), wanted):
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

    Raises CheckpointError if a file is missing, truncated or of another kind.
    """
    state = _read(directory / STATE, _STATE_KEYS)
    try:
        files = [_read(_rank_file(directory, rank), _RANK_KEYS) for rank in range(state["ranks"])]
        broken = [rank for rank, file in enumerate(files) if not _is_whole(file, rank, files[0], len(files))]
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{directory} is not a trainer state ({error})", _OTHER) from error
    if broken or not files:
        raise CheckpointError(f"{_rank_file(directory, broken[0] if broken else 0)} is incomplete", _OTHER)
    return state, files


def _is_whole(file: dict[str, Any], rank: int, first: dict[str, Any], ranks: int) -> bool:
    """Return whether a file has the first one's adapter, and ranges that lie inside its tensors."""
    for group, begin, shape in file["layout"].values():
        share = -(-math.prod(shape) // ranks)
        end = begin + max(0, min(share, math.prod(shape) - rank * share))
        if min(group, begin) < 0 or any(end > len(file[kind][group]) for kind in KINDS):
            return False
    return shapes(file) == shapes(first)


def _rank_file(directory: Path, rank: int) -> Path:
    return directory / f"rank_{rank}.safetensors"


def shapes(file: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the full shapes of the adapter's tensors in PEFT's files. A rank's file holds ranges of them."""
    return {name: expert_form.to_file_shape(name, shape) for name, (_, _, shape) in file["layout"].items()}


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


def _gather_persistent(optimizer: ZeroOptimizer) -> None:
    # DeepSpeed keeps small parameters whole on every rank; gather them again from the ranges just set.
    if optimizer.persistent_parameters:
        optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)  # drops the whole copies
        optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)


def write_file(file: Path, value: Any) -> None:
    """Write dicts, lists, tuples, texts, numbers and tensors. Contiguous tensors on the CPU are not copied."""
    tensors: dict[str, torch.Tensor] = {}
    storages: set[int] = set()

    def add(tensor: torch.Tensor) -> str:
        one = tensor.detach().contiguous()
        if one.untyped_storage().data_ptr() in storages:  # a file holds no two views of the same memory
            one = one.clone()
        storages.add(one.untyped_storage().data_ptr())
        name = str(len(tensors))
        tensors[name] = one
        return name

    text = json.dumps(_encode(value, add)).encode()
    save_file(tensors | {_JSON: torch.frombuffer(bytearray(text), dtype=torch.uint8)}, file)


def read_file(file: Path) -> Any:
    """Return what :func:`write_file` got. Tensors stay on disk until they are used. Raises CheckpointError."""
    try:
        open_file(file).close()  # the reader below waits for a named pipe
        tensors = load_file(file)
        return _decode(json.loads(tensors.pop(_JSON).numpy().tobytes()), tensors)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        why = error if isinstance(error, OSError) else "it is truncated or not a checkpoint"
        raise CheckpointError(f"{file} cannot be read ({why})", _OTHER) from error


def _read(file: Path, keys: set[str]) -> dict[str, Any]:
    content = read_file(file)
    if not isinstance(content, dict) or not keys <= content.keys():
        raise CheckpointError(f"{file} is not a trainer state", _OTHER)
    return content


def _encode(value: Any, add: Callable[[torch.Tensor], str]) -> Any:
    """Return a value as JSON has it. Each tensor is replaced by the name that `add` returns for it."""
    if isinstance(value, torch.Tensor):
        return {_TENSOR: add(value)}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(item, add) for key, item in value.items()}
        return {_PAIRS: [[_encode(key, add), _encode(item, add)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {_TUPLE: [_encode(item, add) for item in value]}
    return [_encode(item, add) for item in value] if isinstance(value, list) else value


def _decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _TUPLE in value:
        return tuple(_decode(item, tensors) for item in value[_TUPLE])
    if _PAIRS in value:
        return {_decode(key, tensors): _decode(item, tensors) for key, item in value[_PAIRS]}
    return {key: _decode(item, tensors) for key, item in value.items()}
