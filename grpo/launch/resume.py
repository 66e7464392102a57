"""Continuing a run: which run, from which checkpoint, and whether this configuration fits it."""

import fcntl
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from grpo.checkpoint import adapter_files, digests
from grpo.launch.config import Config, resolve
from grpo.launch.run_dir import data_digest
from grpo.model.model_files import CheckpointError, read
from grpo.run.run_log import rewind
from grpo.run.run_state import LOCK, place
from grpo.run.saved_steps import saved_steps
from grpo.stack.checkout import CHECKOUT
from grpo.stack.variables import in_variables
from reward import settings

# The saved optimizer state and data position depend on these. Anything else may change between parts of a run.
FIXED = ("pretrain", "lora_rank", "lora_alpha", "target_modules", "prompt_data")
# These depend on the machine or on resuming.
PLACES = ("ckpt_path", "metrics_dir")
# A process that checks whether the run is alive takes the lock for a moment, see run_state.is_held.
LOCK_TRIES = 5
_IGNORED = ("resume_from", "engine_model", "run_dir", "save_path", "wandb_run_name", *PLACES)


class ResumeError(ValueError):
    """A run that cannot be continued, or not with this configuration; the message names the remedy."""


def find_run(which: str, name: str) -> Path:
    """Return the folder of the run to continue.

    Args:
        which: a run directory, or "latest": the newest under runs/ of this name.

    Raises:
        ResumeError: if no run is found.
    """
    if which != "latest":
        folder = Path(which).absolute()
        if not (folder / "config.json").is_file():
            raise ResumeError(f"{folder} is no run directory: it has no config.json")
        return folder
    configs = (CHECKOUT / "runs").glob(f"{name}-*/config.json")
    mine = [file for file in configs if re.fullmatch(r"(-again)?-\d{8}-\d{6}", file.parent.name.removeprefix(name))]
    newest = max(mine, key=lambda file: file.stat().st_mtime, default=None)
    if newest is None:
        raise ResumeError(f"runs/ has no run named {name}-...: name its directory, --resume DIR")
    return newest.parent


def resolve_resumed(flags: list[str], folder: Path, from_step: int | None = None) -> Config:
    """Return the configuration that continues the run in `folder`.

    A run that ended before its first checkpoint starts again from step 0.

    Args:
        from_step: the step of the checkpoint to continue from; None for the newest.

    Raises:
        ConfigError: see :func:`grpo.launch.config.resolve`.
        ResumeError: if the run used another model, adapter or data file, or the checkpoint is missing or damaged.
    """
    flags = [*flags, *_places(flags, folder)]
    config = resolve(flags, folder)
    checkpoints, base = Path(config.args.ckpt_path), Path(config.args.pretrain)
    steps = saved_steps(checkpoints)
    if from_step is not None and from_step not in steps:
        others = _other_steps(checkpoints, from_step, base) or _no_whole_step(steps)
        raise ResumeError(f"{checkpoints} has no step_{from_step}: {others}")
    if steps:
        step = steps[-1] if from_step is None else from_step
        _check_whole(checkpoints / f"step_{step}", base)
        config = resolve([*flags, "--resume_from", str(checkpoints / f"step_{step}")], folder)
    wrong = {name: values for name, values in changes(config, folder).items() if name in FIXED}
    wrong |= {name: places for name, places in _moved(config, folder).items() if places[0] != places[1]}
    if not wrong and _other_train_data(config, folder):
        raise ResumeError(
            f"{config.args.prompt_data} was changed since {folder} started: its place in the data would be another; "
            "give the file back its content, or start a new run"
        )
    if wrong:
        listed = "; ".join(in_variables(f"--{name} was {old}, now {new}") for name, (old, new) in wrong.items())
        hint = " (a run of --tiny is resumed with --tiny)" if "pretrain" in wrong else ""
        raise ResumeError(f"{folder} cannot be continued with other settings: {listed}{hint}")
    return config


def _check_whole(step: Path, base: Path) -> None:
    """Refuse a checkpoint that is damaged or belongs to another model, before anything is loaded or undone."""
    if wrong := _wrong_with(step, base):
        what, remedy = wrong
        others = _other_steps(step.parent, int(step.name.removeprefix("step_")), base)
        anew = f"no other step is whole: bring back a copy, or move {step.parent} away to start anew"
        raise ResumeError(f"{what}: {others or remedy or anew}")


def _other_steps(checkpoints: Path, step: int, base: Path) -> str:
    """Name the whole steps other than `step`; "" if none is whole."""
    others = [other for other in saved_steps(checkpoints) if other != step]
    whole = [other for other in others if not _wrong_with(checkpoints / f"step_{other}", base)]
    if not whole:
        return ""
    return f"--from-step {whole[-1]} continues from the newest whole step (whole: {', '.join(map(str, whole))})"


def _no_whole_step(damaged: list[int]) -> str:
    if damaged:
        return f"no step is whole (damaged: {', '.join(map(str, damaged))}); bring back a copy of one"
    return "no step is whole; without --from-step the run starts again from step 0"


def _wrong_with(step: Path, base: Path) -> tuple[str, str] | None:
    """Return the problem of a checkpoint and its own remedy ("" means another step); None if it is whole.

    The digests are checked first: nothing else of a damaged checkpoint is read.
    """
    if damage := digests.step_damage(step):
        return f"{step}: " + "; ".join(f"{name} {what}" for name, what in damage), ""
    from grpo.checkpoint import trainer_state  # imports torch, which takes seconds

    try:
        _, files = trainer_state.read(step / "trainer")
        adapter = adapter_files.read(step / "adapter")
        is_there = (base / "config.json").is_file()  # otherwise the preflight reports it
        faults = adapter_files.check_against(adapter, read(base)) if is_there else list(adapter.faults)
    except CheckpointError as error:
        return str(error), ""
    if faults:
        return f"{step / 'adapter'}: {faults[0].file} {faults[0].what}", faults[0].remedy
    differs = trainer_state.difference(adapter.shapes, trainer_state.shapes(files[0]))
    return (f"{step} has an adapter that is not its trainer's ({differs})", "") if differs else None


def _recorded(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["flags"]


def _other_train_data(config: Config, folder: Path) -> bool:
    """Return whether the training data has changed since the run started. The preflight reports a missing file."""
    recorded = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("data_sha256", {})
    file = Path(config.args.prompt_data)
    return "prompt_data" in recorded and file.is_file() and data_digest(file) != recorded["prompt_data"]


def _recorded_place(folder: Path, name: str) -> str:
    """Return where the run keeps its checkpoints or metrics. A place inside the run directory moves along with it."""
    return str(place(folder, _recorded(folder), name))


def _places(flags: list[str], folder: Path) -> list[str]:
    """Return flags for the run's own places, unless given."""
    given = {flag.partition("=")[0] for flag in flags}
    missing = [name for name in PLACES if f"--{name}" not in given]
    return [word for name in missing for word in (f"--{name}", _recorded_place(folder, name))]


def _moved(config: Config, folder: Path) -> dict[str, tuple[str, str]]:
    return {name: (_recorded_place(folder, name), getattr(config.args, name)) for name in PLACES}


def changes(config: Config, folder: Path) -> dict[str, tuple[Any, Any]]:
    """Return the flags whose values differ from the run so far: name -> (old, new)."""
    old = _recorded(folder)
    new = json.loads(json.dumps(config.values, default=str))
    names = sorted((old.keys() | new.keys()) - set(_IGNORED))
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def judge_changes(folder: Path) -> dict[str, tuple[Any, Any]]:
    """Return the judge's settings that differ from the run so far: name -> (old, new)."""
    old = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("judge", {})
    # An older run lacks newer settings; it used their defaults.
    old, new = settings.DEFAULTS | old, settings.DEFAULTS | settings.variables()
    return {n: (old.get(n), new.get(n)) for n in settings.VARIABLES if old.get(n) != new.get(n)}


def resumed_step(config: Config) -> int:
    """Return the step after which a run continues; 0 for a new run."""
    source = config.args.resume_from
    return int(Path(source).name.removeprefix("step_")) if source else 0


def describe(config: Config) -> list[str]:
    """Return where a resumed run continues, one line each."""
    step = resumed_step(config)
    if not step:
        return [f"starting at step 0: no checkpoint in {config.args.ckpt_path}"]
    source = Path(config.args.resume_from)
    unverified = [] if digests.is_sealed(source / "trainer") else [digests.unverified(source)]
    return [f"continuing after step {step}", *unverified]


def newer_steps(config: Config) -> list[int]:
    """Return the saved steps after the one that a run continues from; the run gives them up."""
    return [step for step in saved_steps(config.args.ckpt_path) if step > resumed_step(config)]


def take_back(config: Config, folder: Path) -> list[str]:
    """Take the run directory back to the checkpoint; return what a user should know, one line each."""
    step = resumed_step(config)
    changed = {f"--{name}": values for name, values in changes(config, folder).items()} | judge_changes(folder)
    # Before the logs: after a kill in between, the same command still finds this checkpoint as the newest.
    moved = _set_aside(config)
    rewind(folder, Path(config.args.metrics_dir), step)
    with (folder / "resumes.jsonl").open("a", encoding="utf-8") as file:
        file.write(
            json.dumps(
                {
                    "time": time.time(),
                    "step": step,
                    "changed": {n.removeprefix("--"): values for n, values in changed.items()},
                    "set_aside": {name: str(place) for name, place in moved.items()},
                }
            )
            + "\n"
        )
    return [
        *describe(config),
        *(f"  {name} was newer and is set aside as {place}" for name, place in moved.items()),
        *(in_variables(f"  {n} was {old}, now {new}") for n, (old, new) in changed.items()),
    ]


def _set_aside(config: Config) -> dict[str, Path]:
    """Move newer checkpoints and their final adapter to where no resume and no rotation finds them.

    Returns:
        The new places by the old names.
    """
    checkpoints, final = Path(config.args.ckpt_path), Path(config.args.save_path)
    name = f"set-aside-{time.strftime('%Y%m%d-%H%M%S')}"
    # The newest first: a kill leaves a run that only lacks its newest steps.
    moves = {
        checkpoints / f"step_{step}": checkpoints / name / f"step_{step}" for step in reversed(newer_steps(config))
    }
    if not moves:
        return {}
    (checkpoints / name).mkdir(exist_ok=True)
    if final.is_dir():  # first: a remaining step makes the next resume come back here
        moves = {final: final.with_name(f"{final.name}-{name}"), **moves}
    for old, new in moves.items():
        old.rename(new)
    return {old.name: new for old, new in moves.items()}


def lock(folder: Path) -> int:
    """Hold the lock of the run directory while this process, or one that inherits the file descriptor, lives.

    Raises:
        ResumeError: if another process holds it.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            time.sleep(0.05)
    os.close(descriptor)
    raise ResumeError(f"the run in {folder} is still going, or is being ended: wait, or end it with Ctrl-C")
