"""Flags and variables that contradict each other, or that would only fail after loading."""

from collections.abc import Iterator
from pathlib import Path

from grpo.launch import flags, rollout_flags
from grpo.launch.config import Config
from grpo.run import trackers
from grpo.run.measure import OUR_REWARD, USER_REWARD
from grpo.settings.flags import name_of
from grpo.stack.counted import counted
from grpo.stack.problem import Problem


def check_flags(config: Config) -> Iterator[Problem]:
    """Refuse what the patched trainer refuses, and some values that it would miss."""
    args = config.args
    yield from flags.problems(args)
    if args.logging_steps < 1:
        yield Problem(f"--logging_steps is {args.logging_steps}", "give 1 or more")
    if args.eval_dataset and not args.remote_rm_url and not args.agent_func_path:
        yield Problem("evaluations need a reward function", "set REWARD to a .py file with reward_func")
    for flag, package in trackers.missing_packages(args):
        yield Problem(
            f"{name_of(f'--{flag}')} needs {package}, which is not installed",
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
