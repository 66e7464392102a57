"""The trainer's flags, and the combinations that it refuses."""

import argparse
from collections.abc import Iterator

from grpo.flags import ours
from grpo.launch import loss_flags, model_flags, rollout_flags
from grpo.stack.problem import Problem
from grpo.train.objectives import LOSSES


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add our flags to the parser of ``openrlhf.cli.train_ppo_ray``."""
    ours.add_flags(parser)
    parser._option_string_actions["--policy_loss_type"].choices = tuple(LOSSES)  # OpenRLHF knows two of them


def validate(args: argparse.Namespace) -> None:
    """Refuse invalid arguments before Ray starts.

    Raises:
        SystemExit: with one line for each problem and its remedy.
    """
    refused = [f"train_ppo_ray: {problem.what}: {problem.remedy}" for problem in problems(args)]
    if refused:
        raise SystemExit("\n".join(refused))


def problems(args: argparse.Namespace) -> Iterator[Problem]:
    """Yield each problem of these arguments with its remedy."""
    yield from model_flags.problems(args)
    yield from loss_flags.problems(args)
    yield from _loop(args)
    yield from rollout_flags.problems(args)


def _loop(args: argparse.Namespace) -> Iterator[Problem]:
    if args.async_train:
        yield Problem(
            "--async_train is not supported: its trainer does not write metrics.jsonl or eval.jsonl",
            "remove it; --pipeline samples while the actor trains",
        )
    if args.pipeline and args.colocate_all_models:
        yield Problem(
            "--pipeline samples and trains at the same time, but --colocate_all_models gives engines and actor the "
            "same GPUs",
            "remove one of them",
        )
    if args.load_checkpoint:
        yield Problem(
            "--load_checkpoint looks for DeepSpeed checkpoints, which contain the whole model", "use --resume_from"
        )
    save, evaluate = args.save_steps, args.eval_steps
    if args.eval_dataset and save > 0 and evaluate > 0 and save % evaluate and evaluate % save:
        yield Problem(
            f"--save_steps {save} and --eval_steps {evaluate} rarely coincide, so the best checkpoint is unknown",
            "make one a multiple of the other",
        )
