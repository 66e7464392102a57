"""The table of the diagnosis: limits of metrics, and what to change for each finding, in the order to try it."""

from typing import NamedTuple

from grpo.diagnosis.record import Record
from grpo.metrics.metric_schema import SCHEMA
from grpo.train import objectives

WATCH, WARNING, CRITICAL = "watch", "warning", "critical"
OUT_OF_RANGE = "out_of_range:"  # followed by a metric
FALLS, STALLS, SEVERAL, ONE = "correctness falls", "correctness stalls", "several optimizer steps", "one optimizer step"
EVER = "even if it recovers"


class Limit(NamedTuple):
    """A metric (see :meth:`Record.column`) is a finding if it stays outside [low, high] for so many steps, until now.

    `when` is a further condition: one of the constants above, or "".
    """

    metric: str
    finding: str
    low: float | None
    high: float | None
    steps: int
    when: str = ""
    severity: str = WARNING


LIMITS = (
    Limit("ppo_kl", "instability", -0.2, 0.2, 3, EVER, CRITICAL),
    Limit("ppo_kl", "instability", -0.05, 0.05, 3, FALLS, CRITICAL),
    Limit("ppo_clip_ratio", "instability", None, 0.2, 3, FALLS, CRITICAL),
    Limit("grad_norm@first", "instability", None, 3.0, 6, FALLS, CRITICAL),
    Limit("ppo_kl", "off_policy", -0.05, 0.05, 3, SEVERAL),
    Limit("ppo_kl", "off_policy", -0.03, 0.03, 5, SEVERAL),
    Limit("ppo_clip_ratio", "off_policy", None, 0.2, 3, SEVERAL),
    Limit("ppo_kl", "passes_differ", -0.01, 0.01, 5, ONE),
    Limit("ppo_clip_ratio", "passes_differ", None, 0.02, 5, ONE),
    Limit("logprob_diff_mean", "mismatch", None, 0.05, 3),
    Limit("logprob_diff_mean@first", "mismatch", None, 5.0, 3),
    Limit("truncated", "truncation", None, 0.5, 3),
    Limit("truncated@rise", "truncation", None, 0.25, 8),
    Limit("correct_whole-correct", "truncation", None, 0.1, 6),
    Limit("response_length@peak", "length_collapse", 0.5, None, 5, STALLS),
    Limit("entropy@first", "entropy_collapse", 0.25, None, 10, STALLS),
    Limit("entropy@first", "entropy_collapse", 0.5, None, 10, STALLS, WATCH),
    Limit("entropy@first", "entropy_rise", None, 2.0, 3, FALLS),
    Limit("judge_failed", "judge_outage", None, 0.2, 3, EVER, CRITICAL),
    Limit("reward_correct_correlation_rolling", "judge_dependent", 0.5, None, 6),
    Limit("tool_errors/tool_calls", "tool_errors", None, 0.3, 6),
    Limit("reward_missing", OUT_OF_RANGE + "reward_missing", None, 0.1, 3),
    Limit("reward_error", OUT_OF_RANGE + "reward_error", None, 0.1, 3),
    Limit("token_advantage_mean", OUT_OF_RANGE + "token_advantage_mean", -0.15, None, 6),
    Limit("grad_norm", OUT_OF_RANGE + "grad_norm", None, 10.0, 6),  # its scale depends on the model
    Limit("disk_free", OUT_OF_RANGE + "disk_free", 5e9, None, 2),
    Limit("lost_writes", OUT_OF_RANGE + "lost_writes", None, 0, 1),
)
# Any other metric outside its healthy range; three steps are enough for what is counted and should be 0.
RANGES = tuple(
    Limit(one.name, OUT_OF_RANGE + one.name, *one.healthy, steps=3 if one.healthy[1] == 0 else 6)
    for one in SCHEMA
    if one.healthy and not one.name.startswith("grad_norm")
)

# A change is a setting and how: "*" and "/" scale its value, "=" sets it, "+" does so if it is off, ">=" and "<=" if it
# is on the other side; the rest is words. A metric out of range has those of the longest beginning of its name here.
_LONGER = "--generate_max_len *1.5; --reasoning_effort =low; --thinking_budget +three quarters of --generate_max_len"
_CUT = f"{_LONGER}; --overlong_buffer_len +a quarter of --generate_max_len"
_PAID = "--correctness_weight >=0.9; --quality_weight <=0.1; --judge_models with another model first; REWARD with its \
sign and weights checked on the wrong rollouts with the highest rewards in samples/; --init_kl_coef +0.001"
_SAME = (
    "--routing_replay; --enforce_eager; --resume the run: it sends the whole adapter again; --engine_model with the \
weights of MODEL; --attn_implementation =eager"
)
_SPREAD = "TRAIN_DATA with problems that are solved sometimes; --n_samples_per_prompt *2; --temperature >=1"
_SMALLER = "--actor_learning_rate /3; --train_batch_size *2; --init_kl_coef +0.001; --eps_clip /2; --max_norm /3"
_LABELS = "TRAIN_DATA with right labels: compare them with samples/; REWARD that handles every response"
_SPIKES = "--advantage_clip +1; --dual_clip +3; --max_norm /3; --actor_learning_rate /3"
_QUOTA = (
    "--judge_rpm to your quota; --judge_models with one pinned model first; --judge_deadline *2; "
    "--judge_fallback =group"
)
_DISK = "--metrics_dir on another disk; --ckpt_path on another disk; --max_ckpt_num /2"
_BRIEF = "--loss_aggregation =sequence_mean; --overlong_penalty_factor /2"
_WORN = "--adapter; --actor_learning_rate /3; --init_kl_coef +0.001; --top_p >=1"
_ACTS = "ENVIRONMENT that handles every action: test it on samples/"
REMEDIES = {
    "flat_learning": f"--actor_learning_rate *3; {_SPREAD}",
    "over_fitting": "TRAIN_DATA with more problems; --num_episodes /2; --actor_learning_rate /3; --lora_rank /2",
    "correctness_fall": f"--adapter; {_SMALLER}; TRAIN_DATA in random order",
    "no_gradient": f"{_SPREAD}; {_LABELS}",
    "lost_gradient": "--check before the next start; --attn_implementation =eager; REWARD with its weights checked",
    "masked_gradient": f"{_LONGER}; --no-mask_truncated",
    "doubtful_labels": _LABELS,
    "reward_hacking": _PAID,
    "instability": f"--adapter; {_SMALLER}",
    "spikes": _SPIKES,
    "lr_shock": "--adapter; --actor_learning_rate /3; --lr_warmup_ratio *2; --lr_scheduler =constant_with_warmup",
    "off_policy": "--train_batch_size *2; --actor_learning_rate /3; --eps_clip /2; --no-pipeline",
    "mismatch": _SAME,
    "passes_differ": "--old_log_probs =engine; --attn_implementation =eager",
    "length_collapse": f"--adapter; {_BRIEF}; --actor_learning_rate /3; --init_kl_coef +0.001",
    "entropy_collapse": "--adapter; --eps_clip_low_high =0.2 0.28; --temperature >=1; --actor_learning_rate /3; "
    "--init_kl_coef +0.001",
    "entropy_rise": f"{_WORN}; --temperature <=1; --entropy_loss_coef <=0",
    "truncation": _CUT,
    "judge_outage": f"--check before the next start; {_QUOTA}",
    "judge_drift": f"{_QUOTA}; --correctness_weight >=0.9; --quality_weight <=0.1",
    "judge_dependent": _PAID,
    "tool_errors": f"{_ACTS}; --tool_seconds *2",
    "": "--check before the next start",
    "actor_lr": "--lr_scheduler =cosine_with_min_lr; --num_episodes *2; --actor_learning_rate *3",
    "advantage": "--advantage_estimator =dr_grpo; --advantage_clip *2; REWARD that handles every response",
    "advantage_length": f"{_BRIEF}; --generate_max_len *1.5",
    "answer_truncated": "--answer_budget *2; --generate_max_len *1.5",
    "answered": f"{_LONGER}; TRAIN_DATA with the instruction to box the answer",
    "branches": "--max_branches *2",
    "ended_by_length": "--generate_max_len *1.5; --turn_limit /2",
    "ended_by_time": "--rollout_seconds *2; --tool_seconds /2",
    "ended_by_turns": "--turn_limit *2",
    "repetition": f"{_WORN}; --temperature >=1; --overlong_buffer_len +a quarter of --generate_max_len",
    "token_advantage": f"{_BRIEF}; --generate_max_len *1.5",
    "token_mismatch": "--engine_model with the weights of MODEL; --enforce_eager",
    "unallocated": "--loss_aggregation =sequence_mean; --adapter; --actor_learning_rate /3; --init_kl_coef +0.001; "
    "--max_norm /3",
    "zero_spread": f"--dynamic_filtering; {_SPREAD}",
    **dict.fromkeys(("disk", "lost_writes"), _DISK),
    **dict.fromkeys(("ended", "environment", "close"), _ACTS),
    **dict.fromkeys(("grad", "policy_loss"), _SPIKES),
    **dict.fromkeys(("high_reward", "reward_correct"), _PAID),
    **dict.fromkeys(("improbable", "dropped"), f"{_WORN}; --max_norm /3"),
    **dict.fromkeys(("judge", "judge_f"), _QUOTA),
    **dict.fromkeys(("logprob", "vllm", "importance"), _SAME),
    **dict.fromkeys(("ppo", "clip"), _SMALLER),
    **dict.fromkeys(("reward_missing", "reward_error"), _LABELS),
    "truncated": _CUT,
}


def advise(run: Record, finding: str, step: int) -> tuple[str, ...]:
    """Return what to change for a finding that began at a step, with the run's values, unless it would do nothing."""
    name = finding.removeprefix(OUT_OF_RANGE)
    key = max((one for one in REMEDIES if name.startswith(one)), key=len)
    lines = [_resolve(run, *change.partition(" ")[::2], step) for change in REMEDIES[key].split("; ")]
    return tuple(line for line in lines if line)


def _is_useless(run: Record, name: str, step: int) -> bool:
    """Say whether a change of a setting would do nothing, or is refused."""
    rollouts = run.number("--rollout_batch_size") * run.number("--n_samples_per_prompt")
    reasons = {
        "--adapter": step <= 1,
        "--overlong_penalty_factor": run.number("--overlong_buffer_len") <= 0,
        "--train_batch_size": 0 < rollouts <= run.number("--train_batch_size"),  # already one optimizer step
    }
    if not objectives.is_read(name, str(run.setting("--policy_loss_type") or "ppo")):
        return True
    return reasons.get(name, name.startswith(("--judge_", "--correctness_", "--quality_")) and not run.has_judge)


def _resolve(run: Record, name: str, how: str, step: int) -> str:
    """Return a change with the run's values; "" for a change that would do nothing."""
    if _is_useless(run, name, step):
        return ""
    if name == "--adapter":
        return f"--adapter RUN_DIR/checkpoints/step_N/adapter: a checkpoint from before step {step}, for a new run"
    now = run.setting(name.replace("--no-", "--"))
    if not how:  # a switch
        return name if bool(now) == name.startswith("--no-") else ""
    goal = how.lstrip("*/=+<>")
    sign = how[: len(how) - len(goal)]
    if not sign:
        return f"{name} {how}"
    if isinstance(now, float):
        return _change_number(name, sign, goal, now, is_whole=isinstance(run.settings[name.removeprefix("--")], int))
    if sign in "*/":
        is_unset = run.settings.get(name.removeprefix("--"), goal) is None  # what it would limit is off
        return "" if is_unset else f"{name} {'times' if sign == '*' else 'divided by'} {goal}"
    shown = " ".join(map(str, now)) if isinstance(now, list) else str(now or "")
    return "" if shown == goal or sign == "<=" else f"{name} {goal}" + (f" (now {shown})" if shown else "")


def _change_number(name: str, sign: str, goal: str, now: float, is_whole: bool) -> str:
    if sign in "*/":
        scaled = now * float(goal) if sign == "*" else now / float(goal)
        goal = str(max(1, round(scaled))) if is_whole else f"{scaled:.2g}"
    is_there = {"+": now > 0, ">=": sign == ">=" and now >= float(goal), "<=": sign == "<=" and now <= float(goal)}
    return "" if is_there.get(sign, f"{now:g}" == goal) else f"{name} {goal} (now {now:g})"
