"""Our flags, and what we change about OpenRLHF's: ranges, choices, defaults, help.

A new flag is a call of `add_argument` here and the code that reads it as `args.NAME`. Then run
`python -P -m grpo.flags --page > docs/flags.md`.
"""

import argparse
import math
from collections.abc import Callable

from grpo.flags.other_names import GONE

SWITCH = argparse.BooleanOptionalAction
SHORTEST = 16  # tokens: a short boxed answer in gpt-oss's format, without any thinking, takes about 10


def within(
    interval: str, kind: type[int] | type[float] = float, note: str = "", without: float = math.nan
) -> Callable[[str], float]:
    """Return a type for argparse: a number within an interval, such as "(0, 1]", which leaves out 0.

    Args:
        note: what a user should know who gives another one.
        without: a number of the interval that is refused.
    """
    low, high = map(float, interval[1:-1].split(","))

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan  # for which no comparison holds
        is_above, is_below = value > low or (interval[0] == "[" and value == low), value < high
        if not is_above or not (is_below or (interval[-1] == "]" and value == high)) or value == without:
            what = f"{text!r} is not a {'whole ' * (kind is int)}number in {interval}"
            raise argparse.ArgumentTypeError(f"{what}: {note}" if note else what)
        return value

    return read


_COUNT, _COUNT_OR_NONE = within("[1, inf)", int), within("[0, inf)", int)
_POSITIVE, _NOT_NEGATIVE = within("(0, inf)"), within("[0, inf)")
_SHARE, _POSITIVE_SHARE = within("[0, 1]"), within("(0, 1]")
_INTERVAL = within("[-1, inf)", int, "a number of steps, or -1 for never", without=0)
# OpenRLHF's flags: what we accept
_TYPES = {
    # Adam moves each weight of the adapter by about the rate: a step of 0.1 would replace all of them
    "actor_learning_rate": within("(0, 0.1)", note="1e-6 to 1e-4 is usual, and 2e-3 for the tiny model"),
    "adam_betas": within("[0, 1)"),
    "aux_loss_coef": _NOT_NEGATIVE,
    "dual_clip": within("(1, inf)", note="less would clip every token"),
    "eps_clip": within("(0, 1)"),
    "eval_steps": _INTERVAL,
    "eval_temperature": within("[0, 2]"),
    "gamma": _POSITIVE_SHARE,
    "generate_max_len": within(f"[{SHORTEST}, inf)", int, "a short answer takes about 10 tokens"),
    "init_kl_coef": within("[0, inf)", note="less would reward distance from the reference"),
    "l2": _NOT_NEGATIVE,
    "lr_warmup_ratio": _SHARE,
    "max_norm": _NOT_NEGATIVE,
    "overlong_penalty_factor": within("[0, inf)", note="less would reward length"),
    "save_steps": _INTERVAL,
    "seed": within("[0, 4294967295]", int),
    "stop_properly_penalty_coef": _SHARE,
    "temperature": within("(0, 2]", note="at 0, all rollouts of a prompt would be equal"),
    "top_p": _POSITIVE_SHARE,
    "vllm_gpu_memory_utilization": _POSITIVE_SHARE,
} | dict.fromkeys(
    (
        *("actor_num_nodes", "actor_num_gpus_per_node", "vllm_num_engines", "vllm_tensor_parallel_size"),
        *("rollout_batch_size", "n_samples_per_prompt", "prompt_max_len", "train_batch_size", "lora_alpha"),
        *("micro_train_batch_size", "micro_rollout_batch_size", "num_episodes", "max_epochs", "max_ckpt_num"),
        *("eval_n_samples_per_prompt", "logging_steps", "max_len", "max_samples"),
    ),
    _COUNT,
)
CHOICES = {
    "advantage_estimator": ("dr_grpo", "group_norm", "rloo", "reinforce_baseline", "reinforce"),
    "attn_implementation": ("sinks", "eager"),
    # Schedules of transformers whose rates `--plan` knows
    "lr_scheduler": ("constant", "constant_with_warmup", "inverse_sqrt", "cosine_with_min_lr"),
}
# For runs of the launcher, where they differ from OpenRLHF's; None: it follows from other flags
DEFAULTS = {
    "eval_n_samples_per_prompt": None,
    "micro_rollout_batch_size": None,
    "micro_train_batch_size": None,
    "vllm_gpu_memory_utilization": None,
    "adam_offload": True,
    "attn_implementation": "sinks",
    "eval_temperature": 1.0,
    "gradient_checkpointing": True,
    "input_key": "prompt",
    "label_key": "label",
    "logging_steps": 1,
    "max_norm": 1.0,
    "overlong_penalty_factor": 0.5,
    "policy_loss_type": "ppo",
    "seed": 42,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "top_p": 1.0,
    "use_tensorboard": True,
    "zero_stage": 3,
}
# What OpenRLHF's main flags mean here
HELP = {
    "pretrain": "the model: a folder, or a hub id that is already in the hub's cache",
    "prompt_data": "the training problems, a .jsonl file",
    "eval_dataset": "the held-out problems; without it, eval.jsonl beside the training problems",
    "remote_rm_url": "your reward: .py files, or the URL of a server; without it, this project's",
    "rollout_batch_size": "prompts of a global step",
    "n_samples_per_prompt": "rollouts of a prompt: its group",
    "train_batch_size": "rollouts, not prompts, of an optimizer step",
    "generate_max_len": "the most tokens of a response",
    "actor_learning_rate": "the peak of the learning rate",
    "init_kl_coef": "weight of the KL to the starting policy, in the reward or, with --use_kl_loss, in the loss",
    "kl_estimator": "what the metric kl reports; with --use_kl_loss, the gradient is that of the KL itself",
    "eps_clip": "the ratio of a token is clipped this far from 1",
    "target_modules": "projections of the attention, and experts",
    "agent_func_path": "an agent of OpenRLHF's; --environment names an environment",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add our flags to the parser of ``openrlhf.cli.train_ppo_ray``, and change OpenRLHF's."""
    for name in GONE:
        remove(parser, name)
    for action in parser._actions:
        action.type = _TYPES.get(action.dest, action.type)
        action.choices = CHOICES.get(action.dest, action.choices)
        action.help = HELP.get(action.dest, action.help)
    _add_model(parser.add_argument_group("Model and adapter"))
    _add_rollouts(parser.add_argument_group("Rollouts and their length"))
    _add_algorithm(parser.add_argument_group("Algorithm"))
    _add_run(parser.add_argument_group("Evaluation, logs and faults"))
    internal = parser.add_argument_group("Set by the launcher")
    internal.add_argument("--run_dir", default="./run", help="folder for metrics.jsonl, eval.jsonl and samples/")
    internal.add_argument("--resume_from", help="continue from this checkpoint, a folder step_N")


def remove(parser: argparse.ArgumentParser, name: str) -> None:
    """Remove a flag with its aliases; OpenRLHF's code still reads its default."""
    options = parser._option_string_actions
    if action := options.get(f"--{name}"):
        for option in [option for option, other in options.items() if other is action]:
            del options[option]
        action.container._remove_action(action)  # type: ignore[attr-defined]
        parser.set_defaults(**{name: action.default})


# fmt: off
def _add_model(group: argparse._ActionsContainer) -> None:
    add = group.add_argument
    add("--adapter", metavar="DIR", help="a LoRA adapter of the model to start from, in PEFT's format, such as another "
        "run's final/. --lora_rank, --expert_rank, --lora_alpha and --target_modules must match it. Without it, a new "
        "adapter, which initially has no effect")
    add("--engine_model", metavar="MODEL", help="the model that the engines load, if not --pretrain")
    add("--experts", default="packed", choices=("packed", "bf16"), help="how the actor stores experts: packed, in "
        "MXFP4 as in the model's files (16 GB on each of 4 GPUs), or bf16 (234 GB in all)")
    add("--expert_rank", type=_COUNT, help="rank of each expert's adapter, for experts in --target_modules. Without "
        "it, --lora_rank divided by the experts per token, and at least 1")
    add("--actor_shard", default="zero3", choices=("zero3", "none", "engine"), help="zero3 gives each GPU a part of "
        "the frozen model, and gathers each layer for use. none keeps the whole model on each GPU, so only the "
        "adapter's gradients travel. engine uses the model of the engine on the same GPU, so it sets "
        "--colocate_all_models and an engine for each GPU")
    add("--offload", action=SWITCH, default=False, help="keep the actor's parts of the model in host memory. The "
        "launcher sets it with --experts bf16 and --actor_shard zero3")
    add("--stage3_param_persistence_threshold", type=_COUNT_OR_NONE, metavar="N", help="parameters with fewer elements "
        "stay whole on every rank. Without it, DeepSpeed's default")
    add("--gpu_gb", type=_POSITIVE, metavar="GB", help="memory per GPU, for --plan on another machine. Without it, "
        "that of this machine's GPUs, or 80 if unknown")


def _add_rollouts(group: argparse._ActionsContainer) -> None:
    add = group.add_argument
    add("--reasoning_effort", choices=("low", "medium", "high"), help="of gpt-oss's template; its default is medium")
    add("--template_variables", metavar="JSON", help='more variables of the template, such as {"model_identity": "You '
        'are a mathematician."}')
    add("--template_date", metavar="DATE", help="the date in gpt-oss's template, such as 2030-01-02. Without it, the "
        "day of the run's first start")
    add("--thinking_budget", type=int, metavar="TOKENS", help="tokens after which the thinking is cut, in each turn. "
        "Without it, --generate_max_len limits thinking and answer together")
    add("--answer_budget", type=int, metavar="TOKENS", help="tokens for the answer, with --thinking_budget. Both "
        "budgets and the delimiter must fit into --generate_max_len")
    add("--thinking_delimiter", default="harmony", help="what ends the thinking: harmony, the tokens of gpt-oss's "
        "format, or a text that contains them")
    add("--length_schedule", help="raises the response limit up to --generate_max_len: at global steps, as in "
        "1024,2048@50,3072@100, or once this share of the rollouts of the last 5 steps was truncated, as in "
        "1024,3072@20%%. Evaluations always use --generate_max_len")
    add("--dynamic_filtering_batches", type=_COUNT, default=4, help="with --dynamic_filtering, a step draws at most "
        "this many times --rollout_batch_size prompts. The groups nearest to the range then fill the step")


def _add_algorithm(group: argparse._ActionsContainer) -> None:
    add = group.add_argument
    add("--loss_aggregation", default="token_mean", choices=("sequence_mean", "token_mean", "constant"), help="the "
        "weight of a token with advantage A in a rollout of L tokens and a batch of S rollouts: sequence_mean A / "
        "(L S), which favors long wrong rollouts; token_mean A / (tokens of the batch); constant A / "
        "(S --generate_max_len), as in Dr. GRPO")
    add("--cispo_max_ratio", type=within("[1, inf)"), default=5.0, help="--policy_loss_type cispo caps the ratio, and "
        "so a token's weight, at this")
    add("--sapo_temperatures", type=_POSITIVE, nargs=2, default=[1.0, 1.05], help="with --policy_loss_type sapo, how "
        "fast a token's weight falls as its ratio moves away from 1: first for positive advantages, then for all "
        "others. Higher is faster")
    add("--advantage_clip", type=_POSITIVE, help="clip advantages to plus or minus this")
    add("--mask_truncated", action=SWITCH, default=False, help="exclude rollouts cut at the length limit from the loss "
        "and its denominator. They count in their group's mean")
    add("--pipeline", action=SWITCH, default=False, help="the engines sample the next batch while the actor trains on "
        "the current one; the rollouts are a step old")
    add("--old_log_probs", choices=("trainer", "engine"), help="whose log-probs are the denominator of the policy "
        "ratio. The launcher sets engine with --pipeline, else trainer")
    add("--routing_replay", action=SWITCH, default=False, help="the actor uses the engine's choice of experts for each "
        "token")
    add("--vllm_is_max_kl", type=_POSITIVE, help="with --enable_vllm_is_correction, weight 0 for tokens on which "
        "engine and actor differ by more")
    add("--parity_limit", type=_NOT_NEGATIVE, default=0.05,
        metavar="NAT", help="the run stops if the log-probs of engines and actor differ on the first rollouts by more "
        "than this on average, or in a way that rounding does not explain. 0: no check")
    add("--steps", type=_COUNT, dest="max_steps", metavar="N", help="global steps of the run, which the learning "
        "rate's schedule spans. A resumed run keeps them. Without it, all episodes")


def _add_run(group: argparse._ActionsContainer) -> None:
    add = group.add_argument
    add("--eval_at_start", action=SWITCH, default=True, help="evaluate before the first step")
    add("--metrics_dir", metavar="DIR", help="where metrics.jsonl and eval.jsonl go, if not into the run directory")
    add("--log_samples", type=_COUNT_OR_NONE, metavar="N", help="rollouts to write per step in addition to the extreme "
        "ones. Without it, all")
    add("--use_trackio", action=SWITCH, default=False, help="log to Trackio")
    add("--restarts", type=_COUNT_OR_NONE, default=3, metavar="N", help="how often a run may restart from its newest "
        "checkpoint after a crash, until it saves a new one. It does not restart if the same error recurs after the "
        "same step")
    add("--hang_minutes", type=_NOT_NEGATIVE, default=30.0, metavar="MINUTES",
        help="a run counts as hung if a phase (generate, train, sync, ...) takes longer than this, and longer than 5 "
        "times its usual time. A phase that the run has not completed before may take 4 times this. A hung run ends or "
        "restarts. 0: no check")
    add("--sigterm_seconds", type=_NOT_NEGATIVE, default=90.0, metavar="SECONDS",
        help="on SIGTERM (a spot machine's notice) or Ctrl-C, the run takes at most this long to save its last "
        "completed step, then ends within 10 s. A second signal ends it at once. 0: the first does")


def add_reward(group: argparse._ActionsContainer) -> None:
    """Add the flags of reward and judge, which reach every worker as GRPO_NAME."""
    add = group.add_argument
    add("--reward_weights", metavar="'W W'", help="a weight for each file of --remote_rm_url; the reward is the "
        "weighted sum. Without it, 1 each")
    add("--judge", action=SWITCH, default=False, help="Gemini judges the quality of responses. Without it, the reward "
        "is correctness alone")
    add("--judge_models", metavar="'M M'", help="models to try, in order, separated by blanks or commas")
    add("--correctness_weight", type=_NOT_NEGATIVE, help="weight of correctness in the reward")
    add("--quality_weight", type=_NOT_NEGATIVE, help="weight of the judge's quality. The two weights add up to 1")
    add("--judge_fallback", choices=("correctness", "mean_quality", "group"), help="the reward of a rollout on which "
        "every model fails: correctness alone, which favors correct rollouts; mean_quality, with the running mean "
        "quality of correct or of wrong rollouts; group, correctness alone for the whole group")
    add("--judge_unfinished", action=SWITCH, default=True, help="also judge responses without a final answer, which "
        "earn at most --quality_weight and cost a call each; otherwise their quality is 0")
    add("--judge_tries", type=_COUNT, default=3, help="calls to each model per rollout, within the deadline")
    add("--judge_deadline", type=within("[1, inf)"), default=240.0, metavar="SECONDS", help="for all models and one "
        "rollout, with all waiting")
    add("--judge_call_timeout", type=within("[1, inf)"), default=90.0, metavar="SECONDS", help="per call")
    add("--judge_rpm", type=_COUNT, default=120, metavar="N", help="your quota: requests per minute to each model, "
        "over all engines. The local server of --tiny has no quota")
    add("--judge_concurrency", type=_COUNT, default=32, metavar="N", help="concurrent calls to each model")
    add("--judge_base_url", default="https://generativelanguage.googleapis.com", metavar="URL", help="where the run "
        "sends key and prompts, without a proxy. It follows no redirects")


def add_environment(group: argparse._ActionsContainer) -> None:
    """Add the flags of rollouts in an environment, which reach every worker as GRPO_NAME."""
    add = group.add_argument
    add("--environment", metavar="NAME", help="several turns with tools: python, retrieval, a .py file with a class "
        "Environment, or verifiers:NAME. The environment gives the reward. Several environments, separated by blanks, "
        "share the problems; single among them means single answers. Without it, single answers")
    add("--environment_weights", metavar="'W W'", help="each environment's share of the lines of data, unless a line "
        "names its own. Without it, equal")
    add("--library", metavar="PATH", help="for retrieval: a folder of .txt and .md files, or a .jsonl file with title "
        "and text")
    add("--turn_limit", type=_COUNT, default=8, metavar="N", help="turns per rollout")
    add("--rollout_seconds", type=_POSITIVE, default=300.0, metavar="SECONDS", help="at most, per rollout")
    add("--tool_seconds", type=_POSITIVE, default=20.0, metavar="SECONDS", help="at most, per tool call")
    add("--score_seconds", type=_POSITIVE, default=60.0, metavar="SECONDS", help="at most, per call of score")
    add("--max_branches", type=_COUNT_OR_NONE, default=3, metavar="N", help="extra rows of a rollout whose history was "
        "rewritten, for example by removing thinking; further rows are dropped. The actor holds all rows of a rollout "
        "in memory at once")


# fmt: on


def make_environment_parser() -> argparse.ArgumentParser:
    """Return a parser of the flags of an environment alone."""
    return _make_parser(add_environment)


def _make_parser(*adds: Callable[[argparse._ActionsContainer], None]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for add in adds:
        add(parser)
    return parser


def _list_names(*adds: Callable[[argparse._ActionsContainer], None]) -> tuple[str, ...]:
    return tuple(action.option_strings[0][2:] for action in _make_parser(*adds)._actions)


OURS = _list_names(_add_model, _add_rollouts, _add_algorithm, _add_run)
ENVIRONMENT_FLAGS, EXPORTED = _list_names(add_environment), _list_names(add_reward, add_environment)
