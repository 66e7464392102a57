"""Continuing a run: from which checkpoint, whether this configuration fits it, and what is taken back."""

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
from grpo.stack.command import format_count
from grpo.stack.problem import Problem, UserError
from reward import settings, user_files

# The saved optimizer state and data position depend on these. Anything else may change between attempts.
_FIXED = (
    *("pretrain", "adapter", "lora_rank", "lora_alpha", "target_modules", "expert_rank", "prompt_data"),
    *("actor_num_gpus_per_node", "ckpt_path", "metrics_dir"),
)
# These depend on the machine or on resuming. A folder inside of the run directory moves along with it.
_IGNORED = {"resume_from", "engine_model", "run_dir", "save_path", "wandb_run_name"}
_FOLDERS = ("ckpt_path", "metrics_dir")

Changes = Mapping[str, tuple[Any, Any]]  # by what the user calls it: the value of the run so far, and the new one


def resolve_resumed(flags: list[str], folder: Path) -> Config:
    """Return the configuration that continues the run in `folder` from its newest whole checkpoint.

    A run that ended before its first checkpoint starts again from step 0.

    Raises:
        OSError: if a file that the run appends to is not a regular file.
        UserError: if a flag is invalid (:func:`grpo.launch.config.resolve`), the run used another model, adapter, data
            file or number of ranks, no checkpoint is whole, or its batch does not fit this run.
    """
    files = RunFiles(folder)
    for file in (files.ends, files.resumes):
        read_attempts(file)  # OSError for what a run could not append to
    record = files.read_config()
    flags = [*flags, *_keep_flags(flags, files, record)]
    config = resolve(flags, folder)
    changes = find_changes(config, folder)
    wrong = {name: values for name, values in changes.items() if name.removeprefix("--") in _FIXED}
    if wrong:
        listed = "; ".join(line.strip() for line in describe_changes(wrong))
        remedy = "restore them, or start a new run from a checkpoint: --adapter CHECKPOINT/adapter"
        raise UserError(f"{folder} cannot continue with other settings: {listed}", remedy)
    data = Path(config.args.prompt_data)
    recorded = (record.get("data_sha256") or {}).get("prompt_data")
    if recorded and data.is_file() and data_digest(data) != recorded:  # the preflight reports a missing file
        what = f"{data} was changed since {folder} started, so the run cannot continue where it was"
        raise UserError(what, "restore the file, or start a new run")
    if newest := find_newest_whole(Path(config.args.ckpt_path), Path(config.args.pretrain)):
        _refuse_stale_batch(newest, config)
        config = resolve([*flags, "--resume_from", str(newest)], folder)
    return config


def _keep_flags(flags: list[str], files: RunFiles, record: Mapping[str, Any]) -> list[str]:
    """Return flags for the run's own folders, its date, and the adapter that it started from, unless given.

    The date must stay, since seeds are derived from the prompts.
    """
    given, old = {flag.partition("=")[0] for flag in flags}, record.get("flags") or {}
    kept = {name: str(files.find_folder(name, record)) for name in _FOLDERS}
    kept |= {name: value for name in ("template_date", "adapter") if isinstance(value := old.get(name), str)}
    return [word for name, value in kept.items() if f"--{name}" not in given for word in (f"--{name}", value)]


def find_newest_whole(checkpoints: Path, base: Path) -> Path | None:
    """Return the newest checkpoint that is not damaged, or None.

    Raises UserError if all are damaged or belong to another model, or the newest cannot be read for another reason.
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
        remedy = f"no other checkpoint is complete; restore a copy, or move {checkpoints} away to start again"
        raise UserError(problems[0], remedy)
    return None


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


def _refuse_stale_batch(step: Path, config: Config) -> None:
    """Refuse settings that would train on an earlier policy's batch as if it were new."""
    from grpo.checkpoint import trainer_state  # imports torch, which takes seconds

    state, _ = trainer_state.read(step / "trainer")
    if "next_batch" in state["client_states"] and not corrects_for_sampling(config.args):
        raise UserError(
            f"{step} has a batch that an earlier policy sampled (--pipeline), which these settings do not correct for",
            "restore --pipeline, or set --old_log_probs engine",
        )


def find_changes(config: Config, folder: Path) -> Changes:
    """Return what differs from the run so far: OpenRLHF, flags, and the code of rewards.

    Another OpenRLHF lacks some flags and has others, which count only if they are given.
    """
    files = RunFiles(folder)
    record = files.read_config()
    new, old = json.loads(json.dumps(config.values, default=str)), record.get("flags") or {}
    old |= {name: str(files.find_folder(name, record)) for name in _FOLDERS}
    names = (new.keys() & (old.keys() | config.given.keys())) - _IGNORED
    installed = version("openrlhf")
    pairs: list[tuple[str, Any, Any]] = [("OpenRLHF", record.get("openrlhf", installed), installed)]
    pairs += [(_spell(name), old.get(name), new[name]) for name in sorted(names)]
    was = {**(record.get("judge") or {}), **(record.get("reward") or {})}
    now = settings.variables() | user_files.variables()
    variables = (*settings.VARIABLES, *user_files.VARIABLES)
    pairs += [(_spell(name), was.get(name), now.get(name)) for name in variables]
    code, edited = record.get("reward_sha256") or {}, user_files.digests()
    paths = code.keys() & edited.keys()
    pairs += [(f"the code of {path}", str(code[path])[:12], edited[path][:12]) for path in sorted(paths)]
    return {name: (before, after) for name, before, after in pairs if before != after}


def _spell(name: str) -> str:
    """Return the flag of an argument of the trainer, or of a variable of the workers."""
    return {"max_steps": "--steps", "REWARD_FILES": "--remote_rm_url"}.get(name) or f"--{name.lower()}"


def describe_changes(changes: Changes) -> list[str]:
    """Return changed settings in lines for people; one without a value is empty."""
    shown = {name: ["empty" if value is None else value for value in values] for name, values in changes.items()}
    return [f"  {name} was {was}, now {now}" for name, (was, now) in shown.items()]


def resumed_step(config: Config) -> int:
    """Return the step after which a run continues; 0 for a new run."""
    source = config.args.resume_from
    return parse_step(Path(source)) if source else 0


def describe(config: Config) -> list[str]:
    """Return where a resumed run continues, one line each."""
    step, logged = resumed_step(config), _find_last_step(config)
    again = f"; {format_count(logged - step, 'later step')} will be run again" if logged > step else ""
    if not step:
        return [f"starting at step 0: {config.args.ckpt_path} has no checkpoint{again}"]
    source = Path(config.args.resume_from)
    unverified = [] if digests.is_sealed(source / "trainer") else [digests.describe_unverified(source)]
    damaged = [f"  {path} is damaged, and is kept as damaged-{path.name}-TIME" for path in _list_damaged(config)]
    return [f"continuing after step {step}{again}", *damaged, *unverified]


def _find_last_step(config: Config) -> int:
    """Return the last step that the run has logged; 0 before the first."""
    rows = read_steps(RunFiles(Path(config.args.run_dir), Path(config.args.metrics_dir)).metrics)
    return max((row["step"] for row in rows), default=0)


def complete(config: Config, plan: Plan, step: int) -> list[str]:
    """Say so, in one line, if a run that has made `step` steps has made all."""
    args = config.args
    if not step or plan.steps is None or step < plan.steps:
        return []
    is_cut = args.max_steps and args.max_steps < (plan.steps_per_episode or 0) * args.num_episodes
    limits = "--steps" if is_cut else "--steps and --num_episodes" if args.max_steps else "--num_episodes"
    return [f"complete: {plan.steps} of {format_count(plan.steps, 'step')} made; raise {limits} to continue"]


def describe_finished(config: Config, plan: Plan) -> list[str]:
    """Say so if a resumed run has made all its steps and ended well, so that there is nothing to do; [] otherwise."""
    ends = read_attempts(RunFiles(Path(config.args.run_dir)).ends)
    done = complete(config, plan, resumed_step(config) or _find_last_step(config))  # --save_steps -1: no checkpoint
    has_adapter = (Path(config.args.save_path) / adapter_files.CONFIG).is_file()
    if not (done and ends and has_finished(ends[-1]) and has_adapter):
        return []
    lost = [f"lost         {ends[-1]['lost']}"] if "lost" in ends[-1] else []
    return ["finished: nothing was started", *done, *lost, f"adapter      {config.args.save_path}"]


def _list_damaged(config: Config) -> list[Path]:
    """Return the saved steps after the one that a run continues from: they are damaged."""
    checkpoints = Path(config.args.ckpt_path)
    return [checkpoints / step_name(step) for step in saved_steps(checkpoints) if step > resumed_step(config)]


def take_back(config: Config, folder: Path) -> list[str]:
    """Take the run directory back to the checkpoint; return what a user should know, one line each."""
    changes, news = find_changes(config, folder), describe(config)
    files = RunFiles(folder, Path(config.args.metrics_dir))
    for step in _list_damaged(config):  # the run saves this step again
        step.rename(step.with_name(f"damaged-{step.name}-{time.strftime('%Y%m%d-%H%M%S')}"))
    files.rewind(resumed_step(config))
    files.note_resume(resumed_step(config), changed={name.removeprefix("--"): pair for name, pair in changes.items()})
    return [*news, *describe_changes(changes)]
