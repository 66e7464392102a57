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
_LONGER = "GENERATE_MAX_LEN *1.5; REASONING_EFFORT =low; THINKING_BUDGET +three quarters of GENERATE_MAX_LEN"
_CUT = f"{_LONGER}; OVERLONG_BUFFER +a quarter of GENERATE_MAX_LEN"
_PAID = (
    "CORRECTNESS_WEIGHT >=0.9; QUALITY_WEIGHT <=0.1; JUDGE_MODELS with another model first; REWARD with its sign and \
weights checked on the wrong rollouts with the highest rewards in samples/; KL_COEF +0.001"
)
_SAME = (
    "ROUTING_REPLAY =1; ENFORCE_EAGER =1; --resume the run: it sends the whole adapter again; ENGINE_MODEL with the \
weights of MODEL; ATTN_IMPLEMENTATION =eager"
)
_SPREAD = "TRAIN_DATA with problems that are solved sometimes; N_SAMPLES_PER_PROMPT *2; TEMPERATURE >=1"
_SMALLER = "LEARNING_RATE /3; TRAIN_BATCH_SIZE *2; KL_COEF +0.001; EPS_CLIP /2; MAX_GRAD_NORM /3"
_LABELS = "TRAIN_DATA with right labels: compare them with samples/; REWARD that handles every response"
_SPIKES = "--advantage_clip +1; --dual_clip +3; MAX_GRAD_NORM /3; LEARNING_RATE /3"
_QUOTA = "JUDGE_RPM to your quota; JUDGE_MODELS with one pinned model first; JUDGE_DEADLINE *2; JUDGE_FALLBACK =group"
_DISK = "METRICS_DIR on another disk; CKPT_DIR on another disk; MAX_CHECKPOINTS /2"
_BRIEF = "LOSS_AGGREGATION =sequence_mean; OVERLONG_PENALTY /2"
_WORN = "ADAPTER; LEARNING_RATE /3; KL_COEF +0.001; TOP_P >=1"
_ACTS = "ENVIRONMENT that handles every action: test it on samples/"
REMEDIES = {
    "flat_learning": f"LEARNING_RATE *3; {_SPREAD}",
    "over_fitting": "TRAIN_DATA with more problems; NUM_EPISODES /2; LEARNING_RATE /3; LORA_RANK /2",
    "correctness_fall": f"ADAPTER; {_SMALLER}; TRAIN_DATA in random order",
    "no_gradient": f"{_SPREAD}; {_LABELS}",
    "lost_gradient": "--check before the next start; ATTN_IMPLEMENTATION =eager; REWARD with its weights checked",
    "masked_gradient": f"{_LONGER}; MASK_TRUNCATED =0",
    "doubtful_labels": _LABELS,
    "reward_hacking": _PAID,
    "instability": f"ADAPTER; {_SMALLER}",
    "spikes": _SPIKES,
    "lr_shock": "ADAPTER; LEARNING_RATE /3; LR_WARMUP_RATIO *2; LR_SCHEDULER =constant_with_warmup",
    "off_policy": "TRAIN_BATCH_SIZE *2; LEARNING_RATE /3; EPS_CLIP /2; PIPELINE =0",
    "mismatch": _SAME,
    "passes_differ": "OLD_LOG_PROBS =engine; ATTN_IMPLEMENTATION =eager",
    "length_collapse": f"ADAPTER; {_BRIEF}; LEARNING_RATE /3; KL_COEF +0.001",
    "entropy_collapse": "ADAPTER; --eps_clip_low_high =0.2 0.28; TEMPERATURE >=1; LEARNING_RATE /3; KL_COEF +0.001",
    "entropy_rise": f"{_WORN}; TEMPERATURE <=1; --entropy_loss_coef <=0",
    "truncation": _CUT,
    "judge_outage": f"--check before the next start; {_QUOTA}",
    "judge_drift": f"{_QUOTA}; CORRECTNESS_WEIGHT >=0.9; QUALITY_WEIGHT <=0.1",
    "judge_dependent": _PAID,
    "tool_errors": f"{_ACTS}; TOOL_SECONDS *2",
    "": "--check before the next start",
    "actor_lr": "LR_SCHEDULER =cosine_with_min_lr; NUM_EPISODES *2; LEARNING_RATE *3",
    "advantage": "ADVANTAGE_ESTIMATOR =dr_grpo; --advantage_clip *2; REWARD that handles every response",
    "advantage_length": f"{_BRIEF}; GENERATE_MAX_LEN *1.5",
    "answer_truncated": "ANSWER_BUDGET *2; GENERATE_MAX_LEN *1.5",
    "answered": f"{_LONGER}; TRAIN_DATA with the instruction to box the answer",
    "branches": "MAX_BRANCHES *2",
    "ended_by_length": "GENERATE_MAX_LEN *1.5; TURN_LIMIT /2",
    "ended_by_time": "ROLLOUT_SECONDS *2; TOOL_SECONDS /2",
    "ended_by_turns": "TURN_LIMIT *2",
    "repetition": f"{_WORN}; TEMPERATURE >=1; OVERLONG_BUFFER +a quarter of GENERATE_MAX_LEN",
    "token_advantage": f"{_BRIEF}; GENERATE_MAX_LEN *1.5",
    "token_mismatch": "ENGINE_MODEL with the weights of MODEL; ENFORCE_EAGER =1",
    "unallocated": "LOSS_AGGREGATION =sequence_mean; ADAPTER; LEARNING_RATE /3; KL_COEF +0.001; MAX_GRAD_NORM /3",
    "zero_spread": f"DYNAMIC_FILTERING =1; {_SPREAD}",
    **dict.fromkeys(("disk", "lost_writes"), _DISK),
    **dict.fromkeys(("ended", "environment", "close"), _ACTS),
    **dict.fromkeys(("grad", "policy_loss"), _SPIKES),
    **dict.fromkeys(("high_reward", "reward_correct"), _PAID),
    **dict.fromkeys(("improbable", "dropped"), f"{_WORN}; MAX_GRAD_NORM /3"),
    **dict.fromkeys(("judge", "judge_f"), _QUOTA),
    **dict.fromkeys(("logprob", "vllm", "importance"), _SAME),
    **dict.fromkeys(("ppo", "clip"), _SMALLER),
    **dict.fromkeys(("reward_missing", "reward_error"), _LABELS),
    "truncated": _CUT,
}


def advise(run: Record, finding: str, step: int) -> tuple[str, ...]:
    """Return what to change for a finding that began at a step, with the run's values; not what would change nothing.

    Settings of train_grpo.sh, its options, and flags that go after its `--`.
    """
    name = finding.removeprefix(OUT_OF_RANGE)
    key = max((one for one in REMEDIES if name.startswith(one)), key=len)
    lines = [_resolve(run, *change.partition(" ")[::2], step) for change in REMEDIES[key].split("; ")]
    return tuple(line for line in lines if line)


def _is_useless(run: Record, name: str, step: int) -> bool:
    """Say whether a change of a setting would do nothing, or is refused."""
    rollouts = run.number("ROLLOUT_BATCH_SIZE") * run.number("N_SAMPLES_PER_PROMPT")
    reasons = {
        "ADAPTER": step <= 1,
        "OVERLONG_PENALTY": run.number("OVERLONG_BUFFER") <= 0,
        "PIPELINE": run.number("PIPELINE") <= 0,
        "TRAIN_BATCH_SIZE": 0 < rollouts <= run.number("TRAIN_BATCH_SIZE"),  # already one optimizer step
    }
    if not objectives.is_read(name, str(run.setting("POLICY_LOSS") or "ppo")):
        return True
    return reasons.get(name, name.startswith(("JUDGE_", "CORRECTNESS_", "QUALITY_")) and not run.has_judge)


def _resolve(run: Record, name: str, how: str, step: int) -> str:
    """Return a change with the run's values; "" for a change that would do nothing."""
    if _is_useless(run, name, step):
        return ""
    if name == "ADAPTER":
        return f"ADAPTER=RUN_DIR/checkpoints/step_N/adapter: the last checkpoint before step {step}, for a new run"
    goal, now = how.lstrip("*/=+<>"), run.setting(name)
    sign, value = how[: len(how) - len(goal)], now if isinstance(now, float) else None
    if not sign:
        return f"{name} {how}"
    if sign in "*/" and value is None:
        if run.is_unset(name):
            return ""
        return f"{name} {'times' if sign == '*' else 'divided by'} {goal}"
    if sign in "*/" and value is not None:
        scaled = value * float(goal) if sign == "*" else value / float(goal)
        goal = str(max(1, round(scaled))) if run.is_whole(name) else f"{scaled:.2g}"
    shown = f"{value:g}" if value is not None else " ".join(map(str, now)) if isinstance(now, list) else str(now or "")
    is_there = shown == goal or (value is None and sign == "<=")
    if value is not None and sign in ("+", ">=", "<="):
        is_there = value > 0 if sign == "+" else value >= float(goal) if sign == ">=" else value <= float(goal)
    return "" if is_there else f"{name}={goal}" + (f" (now {shown})" if shown else "")
