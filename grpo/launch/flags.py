"""The command-line flags that we add to OpenRLHF's trainer, and the combinations that it refuses."""

import argparse
from collections.abc import Iterator

from grpo.launch import fault_flags, loss_flags, model_flags, node_flags, rollout_flags
from grpo.launch.loss_flags import AGGREGATIONS
from grpo.model.architecture import EXPERTS, SHARDS
from grpo.rollout.chat_template import EFFORTS
from grpo.rollout.multi_turn.settings import has_environment
from grpo.rollout.thinking import PRESETS
from grpo.stack.problem import Problem

# Schedules of transformers 4.57 that accept `min_lr`, which OpenRLHF always passes, and need no metric.
SCHEDULES = (
    *("constant", "constant_with_warmup", "inverse_sqrt"),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr"),
)

HIGHEST_RATE = 0.1  # Adam moves each weight of the adapter by about the rate: one step would replace all of them


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add our flags to the parser of ``openrlhf.cli.train_ppo_ray``."""
    group = parser.add_argument_group("gptoss-grpo")
    group.add_argument("--run_dir", default="./run", help="folder for metrics.jsonl, eval.jsonl and samples/")
    group.add_argument("--metrics_dir", default=None, help="another folder for metrics.jsonl and eval.jsonl")
    group.add_argument("--max_steps", type=int, default=None, help="stop after this many global steps")
    group.add_argument("--resume_from", default=None, help="continue from this checkpoint, a folder step_N")
    group.add_argument("--eval_at_start", action="store_true", help="evaluate once before the first step")
    group.add_argument(
        "--log_samples", type=int, default=None, help="samples to write per step, in addition to the extremes"
    )
    group.add_argument("--use_trackio", action="store_true", help="log to Trackio")
    group.add_argument(
        "--experts",
        required=True,
        choices=EXPERTS,
        help="how the actor holds experts: packed in MXFP4, as the files do, or bf16",
    )
    group.add_argument(
        "--actor_shard",
        required=True,
        choices=SHARDS,
        help="how the actor's ranks hold the frozen base: zero3 gives each a part, none gives each all of it",
    )
    group.add_argument(
        "--gpu_gb", type=float, default=None, help="memory of a GPU, if --plan runs on another machine (default: 80)"
    )
    group.add_argument("--offload", action="store_true", help="keep the actor's ZeRO-3 parameters in host memory")
    group.add_argument(
        "--engine_model", default=None, help="checkpoint that the vLLM engines load (default: --pretrain)"
    )
    group.add_argument(
        "--stage3_param_persistence_threshold",
        type=int,
        default=None,
        help="keep parameters with fewer elements than this whole on every rank (default: DeepSpeed's)",
    )
    _add_algorithm(group)
    _add_groups(group)
    node_flags.add_flags(group)
    fault_flags.add_flags(group)


def _add_groups(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dynamic_filtering_batches",
        type=int,
        default=4,
        help="with --dynamic_filtering: draw at most this many times --rollout_batch_size prompts in a step",
    )
    group.add_argument(
        "--retire_after", type=int, default=None, help="leave out a problem after this many solved groups in a row"
    )
    group.add_argument("--retire_for", type=int, default=50, help="global steps that such a problem is left out")
    group.add_argument(
        "--drop_repetition",
        type=float,
        default=None,
        help="leave out of the update rollouts in which a larger share of some 512 tokens repeats itself",
    )
    group.add_argument(
        "--drop_gibberish",
        type=float,
        default=None,
        help="leave out of the update rollouts with some 64 tokens of more surprise to the engine, nat per token",
    )


def _add_algorithm(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--loss_aggregation",
        required=True,
        choices=AGGREGATIONS,
        help="sequence_mean: every rollout has the same weight; token_mean: every token has the same weight; "
        "constant: every token has the weight 1 / --generate_max_len",
    )
    group.add_argument("--advantage_clip", type=float, default=None, help="clip advantages to plus or minus this")
    group.add_argument(
        "--old_log_probs",
        required=True,
        choices=("trainer", "engine"),
        help="whose log-probs of the samples are the denominator of the loss ratio",
    )
    group.add_argument(
        "--pipeline", action="store_true", help="sample the next step's batch while the actor trains on this one's"
    )
    group.add_argument(
        "--partial_rollouts",
        type=int,
        default=0,
        help="with --pipeline: so many groups may be unfinished at a sync; the next policy continues them",
    )
    group.add_argument(
        "--partial_policies",
        type=int,
        default=2,
        help="with --partial_rollouts: a group that so many policies have sampled ends before the next sync",
    )
    group.add_argument(
        "--routing_replay",
        action="store_true",
        help="the actor takes the engine's choice of experts for each token of the samples",
    )
    group.add_argument(
        "--parity_limit",
        type=float,
        required=True,
        help="stop if the log-probs of engines and trainer differ by more than this on average, nat (0: no check)",
    )
    group.add_argument(
        "--length_schedule",
        default=None,
        help="response length in tokens: 1024,2048@50,3072@100 changes it at these steps, 1024,3072@20%% once this "
        "share of the samples is truncated",
    )
    group.add_argument(
        "--reasoning_effort",
        default=None,
        choices=EFFORTS,
        help="reasoning effort for the chat template (default: the template's)",
    )
    group.add_argument("--template_variables", default=None, help="more variables for the chat template, as JSON")
    group.add_argument(
        "--template_date", default=None, help="the date that the chat template takes for today's (default: today's)"
    )
    group.add_argument(
        "--thinking_budget", type=int, default=None, help="tokens after which the thinking is cut and the answer begins"
    )
    group.add_argument("--answer_budget", type=int, default=None, help="tokens of an answer, with --thinking_budget")
    group.add_argument(
        "--thinking_delimiter",
        default=None,
        help=f"what ends the thinking, with --thinking_budget: {', '.join(PRESETS)}, or a text",
    )


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
    yield from _partial(args)
    yield from rollout_flags.problems(args)
    yield from node_flags.problems(args)
    yield from fault_flags.problems(args)


def _loop(args: argparse.Namespace) -> Iterator[Problem]:
    if args.async_train:
        yield Problem(
            "--async_train is not supported: its trainer does not write metrics.jsonl or eval.jsonl",
            "remove it; --pipeline samples while the actor trains",
        )
    if args.pipeline and args.colocate_all_models:
        yield Problem(
            "--pipeline samples and trains at once, but --colocate_all_models gives engines and actor the same GPUs",
            "remove one of them",
        )
    if args.load_checkpoint:
        yield Problem(
            "--load_checkpoint looks for DeepSpeed checkpoints, which contain the whole model", "use --resume_from"
        )
    if args.max_steps is not None and args.max_steps < 1:
        yield Problem(f"--max_steps {args.max_steps} trains nothing", "give 1 or more, or remove it")
    if args.log_samples is not None and args.log_samples < 0:
        yield Problem(f"--log_samples is {args.log_samples}", "give 0 or more, or remove it to write all samples")
    if not 0 < args.actor_learning_rate < HIGHEST_RATE:
        yield Problem(
            f"--actor_learning_rate is {args.actor_learning_rate:g}",
            f"give a number above 0 and below {HIGHEST_RATE:g}: 1e-6 to 1e-4 is usual, and 2e-3 for the tiny model",
        )
    if args.lr_scheduler not in SCHEDULES:
        yield Problem(f"--lr_scheduler {args.lr_scheduler} is not supported", f"use one of {', '.join(SCHEDULES)}")
    save, evaluate = args.save_steps, args.eval_steps
    if args.eval_dataset and save > 0 and evaluate > 0 and save % evaluate and evaluate % save:
        yield Problem(
            f"--save_steps {save} and --eval_steps {evaluate} rarely coincide, so the best checkpoint is unknown",
            "make one a multiple of the other",
        )


def _partial(args: argparse.Namespace) -> Iterator[Problem]:
    if args.partial_rollouts < 0:
        yield Problem(f"--partial_rollouts is {args.partial_rollouts}", "give 0 or more groups")
    if args.partial_rollouts <= 0:
        return
    if not args.pipeline:
        yield Problem(
            "--partial_rollouts continues rollouts over a sync, and without --pipeline none is running then",
            "add --pipeline, or use --partial_rollouts 0",
        )
    if args.partial_rollouts >= args.rollout_batch_size:
        yield Problem(
            f"--partial_rollouts {args.partial_rollouts} is not below --rollout_batch_size {args.rollout_batch_size}",
            "lower it: so many groups are sampled besides those of a step",
        )
    if args.partial_policies < 2:
        yield Problem(
            f"--partial_policies {args.partial_policies} would continue nothing",
            "give 2 or more, or use --partial_rollouts 0",
        )
    if args.routing_replay:
        yield Problem(
            "--partial_rollouts does not work with --routing_replay: the choice of experts is not recorded over a sync",
            "remove one of them",
        )
    if has_environment(args):
        yield Problem(
            "--partial_rollouts does not work with an environment: its time limits do not stop during a sync, and its "
            "calls cannot be repeated after a resume",
            "use --partial_rollouts 0",
        )
