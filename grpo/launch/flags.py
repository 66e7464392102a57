"""The command-line flags that we add to OpenRLHF's trainer, and the combinations that it refuses."""

import argparse
from collections.abc import Iterator

from grpo.launch import loss_flags, model_flags, rollout_flags
from grpo.settings import flags as settings_flags
from grpo.stack.problem import Problem
from grpo.train.objectives import LOSSES

# Paths of OpenRLHF that this project drops: a flag, what it has without them, and what they are.
DROPPED = {
    "critic_pretrain": (None, "a critic"),
    "save_value_network": (False, "a critic"),
    "freezing_actor_steps": (-1, "a critic, which would learn first"),
    "use_dynamic_batch": (False, "batches of varying size, whose packing drops gpt-oss's attention sinks"),
    "prompt_data_probs": (None, "several files of problems"),
    "prompt_split": ("train", "data sets with splits; TRAIN_DATA is one file"),
    "eval_split": ("train", "data sets with splits; EVAL_DATA is one file"),
    "kl_target": (None, "a coefficient that adapts, which checkpoints do not store"),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add our flags to the parser of ``openrlhf.cli.train_ppo_ray``: those of settings, and four of our own."""
    group = parser.add_argument_group("gptoss-grpo")
    group.add_argument("--run_dir", default="./run", help="folder for metrics.jsonl, eval.jsonl and samples/")
    group.add_argument("--resume_from", default=None, help="continue from this checkpoint, a folder step_N")
    group.add_argument("--advantage_clip", type=float, default=None, help="clip advantages to plus or minus this")
    group.add_argument(
        "--vllm_is_max_kl",
        type=float,
        default=None,
        help="weight 0 for tokens on which engine and actor differ by more",
    )
    settings_flags.add(group)
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
    yield from settings_flags.problems(args)
    for name, (absent, what) in DROPPED.items():
        if getattr(args, name, absent) != absent:
            yield Problem(f"--{name} is not supported: it is for {what}", "remove it")
    yield from model_flags.problems(args)
    yield from loss_flags.problems(args)
    yield from _loop(args)
    yield from rollout_flags.problems(args)


def _loop(args: argparse.Namespace) -> Iterator[Problem]:
    if args.async_train:
        yield Problem(
            "--async_train is not supported: its trainer does not write metrics.jsonl or eval.jsonl",
            "remove it; PIPELINE=1 samples while the actor trains",
        )
    if args.pipeline and args.colocate_all_models:
        yield Problem(
            "PIPELINE=1 samples and trains at the same time, but COLOCATE=1 gives engines and actor the same GPUs",
            "remove one of them",
        )
    if args.load_checkpoint:
        yield Problem(
            "--load_checkpoint looks for DeepSpeed checkpoints, which contain the whole model", "use --resume_from"
        )
    save, evaluate = args.save_steps, args.eval_steps
    if args.eval_dataset and save > 0 and evaluate > 0 and save % evaluate and evaluate % save:
        yield Problem(
            f"SAVE_STEPS {save} and EVAL_STEPS {evaluate} rarely coincide, so the best checkpoint is unknown",
            "make one a multiple of the other",
        )
