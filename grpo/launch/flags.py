"""The command-line flags that we add to OpenRLHF's trainer, and the combinations that it refuses."""

import argparse
from collections.abc import Iterator

from grpo.batch import length_schedule
from grpo.model.architecture import ATTENTION_PROJECTIONS
from grpo.rollout.chat_template import EFFORTS
from grpo.rollout.multi_turn.settings import has_environment
from grpo.rollout.thinking import PRESETS, Budget
from grpo.stack.problem import Problem, UserError

# Schedules of transformers 4.57 that accept `min_lr`, which OpenRLHF always passes, and need no metric.
SCHEDULES = (
    *("constant", "constant_with_warmup", "inverse_sqrt"),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr"),
)


# These give a rollout one advantage for all its tokens, which its branches inherit.
ROLLOUT_ESTIMATORS = ("dr_grpo", "rloo", "group_norm")


AGGREGATIONS = ("sequence_mean", "token_mean", "constant")  # of the loss, see grpo.update.loss


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add our flags to the parser of ``openrlhf.cli.train_ppo_ray``."""
    group = parser.add_argument_group("gptoss-grpo")
    group.add_argument("--run_dir", default="./run", help="metrics.jsonl, eval.jsonl and samples/ are written here")
    group.add_argument("--metrics_dir", default=None, help="another place for metrics.jsonl and eval.jsonl")
    group.add_argument("--max_steps", type=int, default=None, help="stop after this many global steps")
    group.add_argument("--resume_from", default=None, help="continue from this checkpoint, a folder step_N")
    group.add_argument("--eval_at_start", action="store_true", help="evaluate once before the first step")
    group.add_argument("--log_samples", type=int, default=None, help="samples of a step to write, beside the extremes")
    group.add_argument("--use_trackio", action="store_true", help="log to Trackio")
    group.add_argument("--offload", action="store_true", help="keep the actor's ZeRO-3 parameters in host memory")
    group.add_argument(
        "--engine_model", default=None, help="checkpoint that the vLLM engines load (default: --pretrain)"
    )
    group.add_argument(
        "--stage3_param_persistence_threshold",
        type=int,
        default=None,
        help="parameters smaller than this many elements stay whole on every rank (default: DeepSpeed's)",
    )
    group.add_argument(
        "--loss_aggregation",
        default="token_mean",
        choices=AGGREGATIONS,
        help="every rollout counts the same, every token does, or a token counts 1 / --generate_max_len",
    )
    group.add_argument("--advantage_clip", type=float, default=None, help="advantages stay within plus and minus this")
    group.add_argument(
        "--old_log_probs",
        default="trainer",
        choices=("trainer", "engine"),
        help="whose log-probs of the samples the ratio of the loss is taken to",
    )
    group.add_argument(
        "--length_schedule",
        default=None,
        help="tokens of a response: 1024,2048@50,3072@100 by steps, 1024,3072@20%% by the share of truncated samples",
    )
    group.add_argument(
        "--reasoning_effort", default=None, choices=EFFORTS, help="what the chat template is told (default: its own)"
    )
    group.add_argument(
        "--thinking_budget", type=int, default=None, help="tokens after which the thinking is ended and answered"
    )
    group.add_argument("--answer_budget", type=int, default=None, help="tokens of an answer, with --thinking_budget")
    group.add_argument(
        "--thinking_delimiter",
        default="harmony",
        help=f"what ends the thinking: {', '.join(PRESETS)}, or a text (default: harmony)",
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
    yield from _attention(args)
    yield from _adapter(args)
    yield from _zero3(args)
    yield from _copies(args)
    yield from _loss(args)
    yield from _kl(args)
    yield from _lengths(args)
    yield from _loop(args)
    yield from _thinking(args)
    if has_environment(args):
        yield from _environment(args)


def _attention(args: argparse.Namespace) -> Iterator[Problem]:
    if args.packing_samples or args.use_dynamic_batch or args.ring_attn_size > 1:
        yield Problem(
            "--packing_samples, --use_dynamic_batch and --ring_attn_size > 1 switch to flash attention, which drops "
            "gpt-oss's attention sinks",
            "leave them out",
        )
    if args.attn_implementation != "eager":
        # A hub kernel may apply the sinks; if it does not, transformers drops them silently.
        yield Problem(
            f"--attn_implementation {args.attn_implementation} is not known to apply gpt-oss's attention sinks",
            "use eager",
        )


def _adapter(args: argparse.Namespace) -> Iterator[Problem]:
    if args.lora_rank <= 0:
        yield Problem(
            "full-parameter training cannot be synchronised to the engines here", "set --lora_rank (64 for the 120b)"
        )
    elif not set(args.target_modules) <= set(ATTENTION_PROJECTIONS):
        yield Problem(
            f"--target_modules {' '.join(args.target_modules)}: the engines apply adapters of the attention alone",
            f"choose from {', '.join(ATTENTION_PROJECTIONS)}",
        )
    if args.load_in_4bit:
        yield Problem("--load_in_4bit requantises an MXFP4 model to NF4", "leave it out")
    if args.deepspeed_enable_sleep:
        yield Problem(
            "--deepspeed_enable_sleep moves what --offload and --adam_offload keep on the host", "leave it out"
        )
    if args.vllm_enable_sleep:
        yield Problem("--vllm_enable_sleep discards the adapter in the engines", "leave it out")


def _zero3(args: argparse.Namespace) -> Iterator[Problem]:
    if args.zero_stage != 3:
        yield Problem(
            f"--zero_stage {args.zero_stage} is not supported", "use --zero_stage 3, which loading and saving are for"
        )
    elif args.gradient_checkpointing and not args.gradient_checkpointing_use_reentrant:
        yield Problem(
            "gradient checkpointing with LoRA under ZeRO-3 raises a CheckpointError unless it is reentrant",
            "add --gradient_checkpointing_use_reentrant",
        )
    for name in ("zpg", "ds_tensor_parallel_size"):
        if getattr(args, name) > 1:
            yield Problem(
                f"--{name} {getattr(args, name)}: loading and sync give each rank one share of all", "leave it out"
            )
    for name in ("deepcompile", "use_liger_kernel"):
        if getattr(args, name):
            yield Problem(f"--{name} is not supported for gpt-oss as it is loaded here", "leave it out")


def _copies(args: argparse.Namespace) -> Iterator[Problem]:
    if args.enable_ema:
        yield Problem("--enable_ema would load a second copy of the model", "leave it out")
    if args.advantage_estimator == "gae":
        yield Problem("--advantage_estimator gae would load a second copy of the model as critic", "use dr_grpo")
    if args.load_checkpoint:
        yield Problem(
            "--load_checkpoint looks for DeepSpeed checkpoints, which hold the whole model", "use --resume_from"
        )


def _loss(args: argparse.Namespace) -> Iterator[Problem]:
    low, high = args.vllm_is_truncated_threshold
    if args.enable_vllm_is_correction and not 0 <= low < high:
        yield Problem(f"--vllm_is_truncated_threshold is {low:g} {high:g}", "give the lower one first, from 0 on")
    if args.enable_vllm_is_correction and args.old_log_probs == "engine":
        yield Problem(
            "--old_log_probs engine with --enable_vllm_is_correction corrects twice, the ratio is to the engine "
            "already",
            "leave one of them out",
        )
    if args.top_p < 1 and (args.enable_vllm_is_correction or args.old_log_probs == "engine"):
        yield Problem(
            f"--top_p {args.top_p:g}: the engine's log-probs are of the cut distribution, no ratio to the trainer's",
            "use --top_p 1, or neither --enable_vllm_is_correction nor --old_log_probs engine",
        )
    if args.advantage_clip is not None and not args.advantage_clip > 0:
        yield Problem(
            f"--advantage_clip {args.advantage_clip:g} leaves no advantage", "give more than 0, or leave it out"
        )
    if args.dual_clip is not None and not args.dual_clip > 1:
        yield Problem(f"--dual_clip {args.dual_clip:g} would cut every token", "give more than 1, or leave it out")
    if args.eps_clip_low_high is not None and not (0 < args.eps_clip_low_high[0] < 1 and args.eps_clip_low_high[1] > 0):
        low, high = args.eps_clip_low_high
        yield Problem(
            f"--eps_clip_low_high is {low:g} {high:g}", "give a lower one between 0 and 1 and an upper one above 0"
        )
    if args.policy_loss_type == "gspo" and args.loss_aggregation != "sequence_mean":
        yield Problem("--policy_loss_type gspo has one ratio a rollout", "use --loss_aggregation sequence_mean")


def _kl(args: argparse.Namespace) -> Iterator[Problem]:
    if not args.init_kl_coef >= 0:
        yield Problem(f"--init_kl_coef {args.init_kl_coef:g} would pay for leaving the reference", "give 0 or more")
    if args.use_kl_loss and not args.init_kl_coef > 0:
        yield Problem("--use_kl_loss without a coefficient does nothing", "give --init_kl_coef, for instance 0.001")
    if args.use_kl_loss and args.kl_estimator == "k1":
        yield Problem("--use_kl_loss with --kl_estimator k1 has no gradient on average", "use k2 or k3")
    if args.init_kl_coef > 0 and not args.use_kl_loss and args.top_p < 1:
        yield Problem(
            f"--top_p {args.top_p:g} with a KL in the reward, which may compare log-probs of the engine: they are of "
            "the cut distribution",
            "use --top_p 1, or add --use_kl_loss --kl_estimator k3",
        )
    if args.kl_target is not None:
        yield Problem("--kl_target changes the coefficient, which no checkpoint holds", "use --init_kl_coef alone")


def _lengths(args: argparse.Namespace) -> Iterator[Problem]:
    limits = [args.generate_max_len]
    if args.length_schedule is not None:
        try:
            limits = [stage.length for stage in length_schedule.parse(args.length_schedule)]
        except ValueError as error:
            yield Problem(f"--length_schedule {args.length_schedule} cannot be read", str(error))
            return
        if limits[-1] != args.generate_max_len:
            yield Problem(
                f"the last limit of --length_schedule {args.length_schedule} is not --generate_max_len "
                f"{args.generate_max_len}, which the engines are started for",
                "make them the same",
            )
    if args.overlong_buffer_len is not None and not 0 < args.overlong_buffer_len <= limits[0]:
        yield Problem(
            f"--overlong_buffer_len is {args.overlong_buffer_len:g}",
            f"give more than 0, up to the first limit {limits[0]}",
        )
    if not args.overlong_penalty_factor >= 0:
        yield Problem(
            f"--overlong_penalty_factor {args.overlong_penalty_factor:g} would pay for length", "give 0 or more"
        )
    if args.stop_properly_penalty_coef is not None and not 0 <= args.stop_properly_penalty_coef <= 1:
        yield Problem(
            f"--stop_properly_penalty_coef is {args.stop_properly_penalty_coef:g}", "give a share from 0 to 1"
        )


def _loop(args: argparse.Namespace) -> Iterator[Problem]:
    if args.async_train:
        yield Problem(
            "--async_train is not supported: its trainer does not write metrics.jsonl or eval.jsonl", "leave it out"
        )
    if args.max_steps is not None and args.max_steps < 1:
        yield Problem(f"--max_steps {args.max_steps} trains nothing", "give 1 or more, or leave it out")
    if args.log_samples is not None and args.log_samples < 0:
        yield Problem(f"--log_samples is {args.log_samples}", "give 0 or more, or leave it out to write all")
    if args.actor_learning_rate <= 0:
        yield Problem(f"--actor_learning_rate {args.actor_learning_rate:g} does not learn", "give more than 0")
    if args.lr_scheduler not in SCHEDULES:
        yield Problem(f"--lr_scheduler {args.lr_scheduler} cannot be used here", f"use one of {', '.join(SCHEDULES)}")
    if args.temperature <= 0:
        yield Problem(f"--temperature {args.temperature:g} draws the same sample every time", "give more than 0")
    if not 0 < args.vllm_gpu_memory_utilization <= 1:
        yield Problem(
            f"--vllm_gpu_memory_utilization is {args.vllm_gpu_memory_utilization:g}", "give a share from 0 to 1"
        )
    save, evaluate = args.save_steps, args.eval_steps
    if args.eval_dataset and save > 0 and evaluate > 0 and save % evaluate and evaluate % save:
        yield Problem(
            f"--save_steps {save} and --eval_steps {evaluate} rarely meet: no checkpoint would be known as the best",
            "make one a multiple of the other",
        )


def _thinking(args: argparse.Namespace) -> Iterator[Problem]:
    if args.thinking_budget is None or args.answer_budget is None:
        if args.thinking_budget is not args.answer_budget:
            yield Problem("one of --thinking_budget and --answer_budget alone does nothing", "set both, or neither")
        return
    try:
        Budget(args.thinking_budget, args.answer_budget)
    except UserError as error:
        yield error.problem
    if args.agent_func_path:
        yield Problem(
            "--thinking_budget is for single answers, and an executor itself as are ENVIRONMENT and --agent_func_path",
            "leave one of them out",
        )
    if not args.enable_prefix_caching:
        yield Problem(
            "--thinking_budget without --enable_prefix_caching computes each thought twice that is cut",
            "add --enable_prefix_caching",
        )
    if args.max_len is not None and args.max_len < args.prompt_max_len + args.generate_max_len:
        yield Problem(
            f"--max_len {args.max_len} would cut a response inside its budgets",
            "leave it out, so that it is --prompt_max_len + --generate_max_len",
        )


def _environment(args: argparse.Namespace) -> Iterator[Problem]:
    """Yield flags without meaning for multi-turn rollouts; :func:`_thinking` covers THINKING_BUDGET."""
    if args.apply_chat_template:
        yield Problem("--apply_chat_template renders messages that an environment makes itself", "leave it out")
    if args.disable_fast_tokenizer:
        yield Problem(
            "--disable_fast_tokenizer leaves an environment without the fast tokenizer that it needs", "leave it out"
        )
    if args.advantage_estimator not in (*ROLLOUT_ESTIMATORS, "gae"):  # gae is refused anyway
        yield Problem(
            f"--advantage_estimator {args.advantage_estimator} has no one advantage for a rollout in an environment",
            f"use one of {', '.join(ROLLOUT_ESTIMATORS)}",
        )
    if args.init_kl_coef > 0 and not args.use_kl_loss:
        yield Problem(
            f"--init_kl_coef {args.init_kl_coef:g} without --use_kl_loss makes an advantage of each token, and a "
            "rollout in an environment has one for all",
            "add --use_kl_loss --kl_estimator k3",
        )
    if args.overlong_buffer_len is not None:
        yield Problem(
            "--overlong_buffer_len measures one response by its limit, and a rollout in an environment has several",
            "leave it out, and let the environment's score count what a rollout took",
        )
    if args.stop_properly_penalty_coef is not None:
        yield Problem(
            "--stop_properly_penalty_coef is for one response, and a rollout in an environment has several",
            "leave it out, and let the environment's score look at `ending`",
        )
    is_short = args.max_len is not None and args.max_len < args.prompt_max_len + args.generate_max_len
    if is_short and args.thinking_budget is None:
        yield Problem(
            f"--max_len {args.max_len} gives the engines a smaller context than the turns of an environment fill",
            "leave it out, so that it is --prompt_max_len + --generate_max_len",
        )
