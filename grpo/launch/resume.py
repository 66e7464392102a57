"""Continuing a run: which run, from which checkpoint, and whether this configuration fits it."""

import contextlib
import json
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpo.checkpoint import adapter_files, digests
from grpo.launch.config import Config, resolve
from grpo.launch.flags import corrects_for_sampling
from grpo.launch.plan import Plan
from grpo.launch.run_dir import data_digest
from grpo.model.model_files import CheckpointError, read
from grpo.run.run_files import RunFiles, parse_step, read_attempts, read_steps, saved_steps, step_name
from grpo.run.run_state import has_finished
from grpo.stack.counted import format_count
from grpo.stack.json_files import read_json
from grpo.stack.problem import Problem, UserError
from reward import settings, user_files

# The saved optimizer state and data position depend on these. Anything else may change between attempts.
FIXED = ("pretrain", "adapter", "lora_rank", "lora_alpha", "target_modules", "expert_rank", "prompt_data")
# These depend on the machine or on resuming.
FOLDERS = ("ckpt_path", "metrics_dir")
_IGNORED = ("resume_from", "engine_model", "run_dir", "save_path", "wandb_run_name", *FOLDERS)


def resolve_resumed(flags: list[str], folder: Path) -> Config:
    """Return the configuration that continues the run in `folder` from its newest whole checkpoint.

    A run that ended before its first checkpoint starts again from step 0.

    Raises:
        OSError: if a file that the run appends to is not a regular file.
        UserError: if a flag is invalid (:func:`grpo.launch.config.resolve`), the run used another model, adapter or
            data file, no checkpoint is whole, or its batch or ranks do not fit this run.
    """
    for file in (RunFiles(folder).ends, RunFiles(folder).resumes):
        read_attempts(file)  # OSError for what a run could not append to
    flags = [*flags, *_keep_flags(flags, folder)]
    config = resolve(flags, folder)
    wrong = {name: values for name, values in find_flag_changes(config, folder).items() if name in FIXED}
    folders = {name: (path, getattr(config.args, name)) for name, path in _recorded_folders(folder).items()}
    wrong |= {name: (old, new) for name, (old, new) in folders.items() if old != new}
    if not wrong and _other_train_data(config, folder):
        raise UserError(
            f"{config.args.prompt_data} was changed since {folder} started, so the run cannot continue where it was",
            "restore the file, or start a new run",
        )
    if wrong:
        listed = "; ".join(_describe_change(_spell(name), *values) for name, values in wrong.items())
        raise UserError(f"{folder} cannot continue with other settings: {listed}", "restore them")
    if newest := find_newest_whole(Path(config.args.ckpt_path), Path(config.args.pretrain)):
        _check_state(newest, config)
        config = resolve([*flags, "--resume_from", str(newest)], folder)
    return config


def find_newest_whole(checkpoints: Path, base: Path) -> Path | None:
    """Return the newest checkpoint that is not damaged, or None.

    Raises:
        UserError: if all are damaged or belong to another model, or the newest cannot be read for another reason.
    """
    problems = []
    for step in reversed(saved_steps(checkpoints)):
        folder = checkpoints / step_name(step)
        wrong = _find_problem(folder, base)
        if wrong is None:
            return folder
        if wrong.remedy:
            raise UserError(wrong.what, wrong.remedy)
        problems.append(wrong.what)
    if problems:
        raise UserError(
            problems[0], f"no other checkpoint is complete; restore a copy, or move {checkpoints} away to start again"
        )
    return None


def _check_state(step: Path, config: Config) -> None:
    """Refuse another number of ranks, and settings that would train on an earlier policy's batch as if it were new."""
    from grpo.checkpoint import trainer_state  # imports torch, which takes seconds

    state, files = trainer_state.read(step / "trainer")
    if len(files) != config.actor_ranks:
        raise UserError(
            f"{step} was saved by {format_count(len(files), 'rank')}, and this run has {config.actor_ranks}",
            f"set --actor_num_gpus_per_node {len(files)}, or start a new run from its adapter: "
            f"--adapter {step / 'adapter'}",
        )
    if "next_batch" in state["client_states"] and not corrects_for_sampling(config.args):
        raise UserError(
            f"{step} has a batch that an earlier policy sampled (--pipeline), and these settings do not correct for "
            "that",
            "restore --pipeline, or set --old_log_probs engine",
        )


def _find_problem(step: Path, base: Path) -> Problem | None:
    """Return the problem of a checkpoint and its own remedy ("" means another step); None if it is whole.

    The digests are checked first: nothing else of a damaged checkpoint is read.
    """
    if damage := digests.step_damage(step):
        return Problem(f"{step}: {digests.describe(damage)}", "")
    from grpo.checkpoint import trainer_state  # imports torch, which takes seconds

    try:
        _, files = trainer_state.read(step / "trainer")
        adapter = adapter_files.read(step / "adapter")
        has_base = (base / "config.json").is_file()  # otherwise the preflight reports it
        faults = adapter_files.check_against(adapter, read(base)) if has_base else []
    except CheckpointError as error:
        return Problem(error.problem.what, "")
    if faults:
        return Problem(f"{step / 'adapter'}: {faults[0].file} {faults[0].what}", faults[0].remedy)
    differs = adapter_files.difference(adapter.shapes, trainer_state.shapes(files[0]))
    return Problem(f"{step}: adapter and trainer state do not match ({differs})", "") if differs else None


def _other_train_data(config: Config, folder: Path) -> bool:
    """Return whether the training data has changed since the run started. The preflight reports a missing file."""
    recorded = RunFiles(folder).read_config().get("data_sha256") or {}
    file = Path(config.args.prompt_data)
    return "prompt_data" in recorded and file.is_file() and data_digest(file) != recorded["prompt_data"]


def _recorded_folders(folder: Path) -> dict[str, str]:
    """Return where the run keeps its checkpoints and metrics, by flag."""
    files = RunFiles(folder)
    config = files.read_config()
    return {flag: str(files.find_folder(flag, config)) for flag in FOLDERS}


def _keep_flags(flags: list[str], folder: Path) -> list[str]:
    """Return flags for the run's own folders, its date, and the adapter that it started from, unless given.

    The date must stay, since seeds are derived from the prompts.
    """
    given = {flag.partition("=")[0] for flag in flags}
    old = RunFiles(folder).read_config().get("flags") or {}
    recorded = _recorded_folders(folder)
    recorded |= {name: value for name in ("template_date", "adapter") if isinstance(value := old.get(name), str)}
    return [word for name, value in recorded.items() if f"--{name}" not in given for word in (f"--{name}", value)]


def find_flag_changes(config: Config, folder: Path) -> dict[str, tuple[Any, Any]]:
    """Return the flags whose values differ from the run so far: name -> (old, new).

    Another OpenRLHF lacks some flags and has others, which count only if they are given.
    """
    old = RunFiles(folder).read_config().get("flags") or {}
    new = json.loads(json.dumps(config.values, default=str))
    names = sorted((new.keys() & (old.keys() | config.given.keys())) - set(_IGNORED))
    return {name: (old.get(name), new[name]) for name in names if old.get(name) != new[name]}


def _find_version_change(folder: Path) -> dict[str, tuple[Any, Any]]:
    """Return OpenRLHF's version if it differs from that of the run so far: "OpenRLHF" -> (old, new)."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a record for people: it stops no run
        old, new = read_json(RunFiles(folder).environment)["packages"]["openrlhf"], version("openrlhf")
        return {"OpenRLHF": (old, new)} if old != new else {}
    return {}


def find_reward_changes(folder: Path) -> dict[str, tuple[Any, Any]]:
    """Return what of judge and reward differs from the run so far, settings and files: name -> (old, new)."""
    recorded = RunFiles(folder).read_config()
    old = {**(recorded.get("judge") or {}), **(recorded.get("reward") or {})}
    new = settings.variables() | user_files.variables()
    names = (*settings.VARIABLES, *user_files.VARIABLES)
    before, now = recorded.get("reward_sha256") or {}, user_files.digests()
    edited = {f"the code of {path}": (before[path][:12], now[path][:12]) for path in before.keys() & now.keys()}
    edited = {name: values for name, values in edited.items() if values[0] != values[1]}
    return {n: (old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)} | edited


def find_changes(config: Config, folder: Path) -> dict[str, tuple[Any, Any]]:
    """Return what differs from the run so far: OpenRLHF, flag, or variable -> (old, new)."""
    found = find_flag_changes(config, folder) | find_reward_changes(folder)
    return _find_version_change(folder) | {_spell(name): values for name, values in found.items()}


def _spell(name: str) -> str:
    """Return the flag of an argument of the trainer, or of a variable of the workers."""
    flags = {"max_steps": "--steps", "REWARD_FILES": "--remote_rm_url"}
    return flags.get(name) or (name if " " in name else f"--{name.lower()}")


def describe_changes(differing: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Return changed settings in lines for people."""
    return [f"  {_describe_change(name, *values)}" for name, values in differing.items()]


def resumed_step(config: Config) -> int:
    """Return the step after which a run continues; 0 for a new run."""
    source = config.args.resume_from
    return parse_step(Path(source)) if source else 0


def describe(config: Config) -> list[str]:
    """Return where a resumed run continues, one line each."""
    step = resumed_step(config)
    if not step:
        return [f"starting at step 0: {config.args.ckpt_path} has no checkpoint{_name_repeated_steps(config)}"]
    source = Path(config.args.resume_from)
    unverified = [] if digests.is_sealed(source / "trainer") else [digests.describe_unverified(source)]
    damaged = [f"  {path} is damaged, and is kept as damaged-{path.name}-TIME" for path in list_damaged(config)]
    return [f"continuing after step {step}{_name_repeated_steps(config)}", *damaged, *unverified]


def _name_repeated_steps(config: Config) -> str:
    """Name the steps that the run had completed after the checkpoint; "" without any."""
    first = resumed_step(config) + 1
    rows = read_steps(RunFiles(Path(config.args.run_dir), Path(config.args.metrics_dir)).metrics)
    last = max((row["step"] for row in rows), default=0)
    if last < first:
        return ""
    return f"; step {first} is run again" if last == first else f"; steps {first} to {last} are run again"


def complete(config: Config, plan: Plan, step: int) -> list[str]:
    """Say so, in one line, if a run that has made `step` steps has made all."""
    args = config.args
    if not step or plan.steps is None or step < plan.steps:
        return []
    is_cut = args.max_steps and args.max_steps < (plan.steps_per_episode or 0) * args.num_episodes
    limits = "--steps" if is_cut else "--steps and --num_episodes" if args.max_steps else "--num_episodes"
    return [f"complete: all {format_count(plan.steps, 'step')} are done; raise {limits} to continue"]


def describe_finished(config: Config, plan: Plan) -> list[str]:
    """Say so if a resumed run has made all its steps and ended well, so that there is nothing to do; [] otherwise."""
    files = RunFiles(Path(config.args.run_dir), Path(config.args.metrics_dir))
    ends, rows = read_attempts(files.ends), read_steps(files.metrics)
    made = max((row["step"] for row in rows), default=0)  # --save_steps -1: no checkpoint tells
    done = complete(config, plan, resumed_step(config) or made)
    has_adapter = (Path(config.args.save_path) / adapter_files.CONFIG).is_file()
    if not (done and ends and has_finished(ends[-1]) and has_adapter):
        return []
    lost = [f"lost         {ends[-1]['lost']}"] if "lost" in ends[-1] else []
    return ["finished: nothing was started", *done, *lost, f"adapter      {config.args.save_path}"]


def list_damaged(config: Config) -> list[Path]:
    """Return the saved steps after the one that a run continues from: they are damaged."""
    checkpoints = Path(config.args.ckpt_path)
    return [checkpoints / step_name(step) for step in saved_steps(checkpoints) if step > resumed_step(config)]


def take_back(config: Config, folder: Path) -> list[str]:
    """Take the run directory back to the checkpoint; return what a user should know, one line each."""
    differing, news = find_changes(config, folder), describe(config)
    files = RunFiles(folder, Path(config.args.metrics_dir))
    for step in list_damaged(config):  # the run saves this step again
        step.rename(step.with_name(f"damaged-{step.name}-{time.strftime('%Y%m%d-%H%M%S')}"))
    files.rewind(resumed_step(config))
    changed = {name.removeprefix("--"): values for name, values in differing.items()}
    files.note_resume(resumed_step(config), changed=changed)
    return [*news, *describe_changes(differing)]


def _describe_change(flag: str, old: object, new: object) -> str:
    """Say what a flag was and is; a setting without a value is empty."""
    was, now = ("empty" if value is None else value for value in (old, new))
    return f"{flag} was {was}, now {now}"
