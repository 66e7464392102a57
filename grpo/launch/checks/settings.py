"""Flags and variables that contradict each other, or that would only fail after loading."""

from collections.abc import Callable, Iterator
from pathlib import Path

from grpo.launch import flags, rollout_flags
from grpo.launch.config import Config
from grpo.run import trackers
from grpo.run.measure import OUR_REWARD, USER_REWARD
from grpo.stack.counted import counted
from grpo.stack.problem import Problem
from grpo.stack.variables import in_variables

# Flag -> what its value must be, in words and as a test. None (not given) passes.
_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "top_p": ("a share above 0, up to 1", lambda value: 0 < value <= 1),
    "eval_temperature": ("0 or more", lambda value: value >= 0),
    "eps_clip": ("more than 0", lambda value: value > 0),
    "lr_warmup_ratio": ("a share from 0 to 1", lambda value: 0 <= value <= 1),
    "max_norm": ("0 (no clipping) or more", lambda value: value >= 0),
    "gpu_gb": ("more than 0", lambda value: value > 0),
    "lora_alpha": ("1 or more", lambda value: value >= 1),
    "stage3_param_persistence_threshold": ("0 or more", lambda value: value >= 0),
    "eval_steps": ("1 or more, or -1 for no evaluation", lambda value: value >= 1 or value == -1),
    "save_steps": ("1 or more, or -1 for no checkpoint", lambda value: value >= 1 or value == -1),
    "max_ckpt_num": ("1 or more", lambda value: value >= 1),
    "logging_steps": ("1 or more", lambda value: value >= 1),
    "seed": ("from 0 to 4294967295", lambda value: 0 <= value < 2**32),
}


def check_flags(config: Config) -> Iterator[Problem]:
    """Refuse what the patched trainer refuses, and some values that it would miss."""
    args = config.args
    for problem in flags.problems(args):
        yield Problem(in_variables(problem.what), in_variables(problem.remedy))
    for name, (wanted, is_good) in _RANGES.items():
        value = getattr(args, name)
        if value is not None and not is_good(value):
            yield Problem(in_variables(f"--{name} is {value:g}"), f"give {wanted}")
    if args.eval_dataset and not args.remote_rm_url and not args.agent_func_path:
        yield Problem("evaluations need a reward function", "set REWARD to a .py file with reward_func")
    for flag, package in trackers.missing_packages(args):
        yield Problem(
            f"{in_variables(f'--{flag}')} needs {package}, which is not installed",
            trackers.INSTALL.get(package, "run scripts/setup.sh"),
        )
    for script in (args.remote_rm_url or "").split(","):
        if script and not script.endswith(".py") and not script.startswith(("http://", "https://")):
            yield Problem(
                f"REWARD {script} is neither a .py file nor a URL", "set REWARD to a .py file with reward_func"
            )
        elif script.endswith(".py") and Path(script).resolve() not in (OUR_REWARD, USER_REWARD):
            yield Problem(f"--remote_rm_url {script} would run unchecked", f"set REWARD={script} instead")


def check_batches(config: Config) -> Iterator[Problem]:
    """Check that batch sizes divide as DeepSpeed and OpenRLHF need; most of this is asserted only after loading."""
    args, samples, ranks = config.args, config.samples_per_rollout, config.actor_ranks
    per_step = args.micro_train_batch_size * ranks
    if args.train_batch_size % per_step:
        yield Problem(
            f"TRAIN_BATCH_SIZE {args.train_batch_size} is not a multiple of MICRO_TRAIN_BATCH_SIZE x ranks = "
            f"{args.micro_train_batch_size} x {ranks} = {per_step}",
            f"use {max(1, args.train_batch_size // per_step) * per_step}, or a smaller micro batch",
        )
    if samples % args.train_batch_size:
        yield Problem(
            f"a rollout has {samples} samples, which is not a multiple of TRAIN_BATCH_SIZE {args.train_batch_size}: "
            "gradients would carry over into the next epoch or rollout",
            "make ROLLOUT_BATCH_SIZE x N_SAMPLES_PER_PROMPT a multiple of TRAIN_BATCH_SIZE",
        )
    if samples % (args.micro_rollout_batch_size * ranks):
        yield Problem(
            f"{samples} samples cannot be split evenly into micro batches of {args.micro_rollout_batch_size} "
            f"on {counted(ranks, 'rank')}: ranks with less work would wait forever",
            "make ROLLOUT_BATCH_SIZE x N_SAMPLES_PER_PROMPT a multiple of MICRO_ROLLOUT_BATCH_SIZE x ACTOR_GPUS",
        )
    if args.n_samples_per_prompt < 2 and args.advantage_estimator in rollout_flags.GROUP_ESTIMATORS:
        yield Problem(
            f"{args.advantage_estimator} compares the samples of a prompt, but there is only one",
            "set N_SAMPLES_PER_PROMPT to 2 or more",
        )
