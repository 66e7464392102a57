"""Batch sizes that divide as DeepSpeed and OpenRLHF need."""

from collections.abc import Iterator

from grpo.launch import rollout_flags
from grpo.launch.config import Config
from grpo.settings.table import BY_FLAG
from grpo.stack.counted import format_count
from grpo.stack.problem import Problem
from grpo.train.optimizer_steps import LearningRate, count_steps, count_updates


def check_batches(config: Config, prompts: int | None = None) -> Iterator[Problem]:
    """Refuse sizes that do not divide, in one problem; most of this is asserted only after loading.

    Args:
        prompts: of TRAIN_DATA. With too few, a stock trainer ends without a step and without an error.
    """
    reasons = list(_reasons(config, prompts))
    if not reasons:
        return
    changes = [
        f"{BY_FLAG[name].name}={value}"
        for name, value in fitting(config, prompts).items()
        if value != vars(config.args)[name]
    ]
    more = ", or use more data" if prompts is not None and prompts < config.args.rollout_batch_size else ""
    yield Problem("; ".join(reasons), f"set, for example, {' '.join(changes)}{more}")


def _reasons(config: Config, prompts: int | None) -> Iterator[str]:
    args, rollouts, ranks = config.args, config.rollouts_per_step, config.actor_ranks
    per_step = args.micro_train_batch_size * ranks
    if prompts is not None and prompts < args.rollout_batch_size:
        have = f"{args.prompt_data} has {format_count(prompts, 'prompt')}"
        yield f"{have}, but a global step needs {args.rollout_batch_size}: no step would run"
    if args.train_batch_size % per_step:
        yield (
            f"TRAIN_BATCH_SIZE {args.train_batch_size} is not a multiple of MICRO_TRAIN_BATCH_SIZE x ranks = "
            f"{args.micro_train_batch_size} x {ranks} = {per_step}"
        )
    if rollouts % args.train_batch_size:
        yield (
            f"a global step has {rollouts} rollouts, which is not a multiple of TRAIN_BATCH_SIZE "
            f"{args.train_batch_size}: gradients would carry over into the next epoch or step"
        )
    if rollouts % (args.micro_rollout_batch_size * ranks):
        yield (
            f"{rollouts} rollouts cannot be split evenly into micro-batches of {args.micro_rollout_batch_size} "
            f"on {format_count(ranks, 'rank')}: ranks with less work would wait forever"
        )
    if args.n_samples_per_prompt < _fewest(config):
        yield f"{args.advantage_estimator} compares the rollouts of a prompt, but there is only one"


def check_warm_up(config: Config, prompts: int) -> Iterator[Problem]:
    """Refuse a run that would end before its learning rate has reached LEARNING_RATE, or just then."""
    args = config.args
    length = count_steps(args, prompts) * count_updates(args)
    warm_up = LearningRate.of_run(args, length).warm_up
    if args.lr_scheduler != "constant" and warm_up >= length > 1:
        yield Problem(
            f"LR_WARMUP_RATIO {args.lr_warmup_ratio:g}: all {length} optimizer steps of the run would be its warmup",
            "set LR_WARMUP_RATIO=0.03" + (", or raise STEPS" if args.lr_warmup_ratio < 1 else ""),
        )


def _fewest(config: Config) -> int:
    return 2 if config.args.advantage_estimator in rollout_flags.GROUP_ESTIMATORS else 1


def fitting(config: Config, prompts: int | None) -> dict[str, int]:
    """Return sizes that pass, by flag: those of the configuration, or the nearest smaller ones if there are any."""
    args, ranks = config.args, config.actor_ranks
    rollout = min(args.rollout_batch_size, prompts or args.rollout_batch_size)
    count = max(args.n_samples_per_prompt, _fewest(config))
    while rollout * count % ranks:
        count += 1
    share = rollout * count // ranks  # of a rank
    batch = _divisor(share, args.train_batch_size // ranks)
    return {
        "rollout_batch_size": rollout,
        "n_samples_per_prompt": count,
        "train_batch_size": batch * ranks,
        "micro_train_batch_size": _divisor(batch, args.micro_train_batch_size),
        "micro_rollout_batch_size": _divisor(share, args.micro_rollout_batch_size),
    }


def _divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number up to `most`, or 1."""
    return next((size for size in range(min(number, most), 1, -1) if number % size == 0), 1)
