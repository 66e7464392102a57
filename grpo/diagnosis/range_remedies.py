"""For each metric outside its healthy range: the likely cause, and what to change, in the order to try it."""

from grpo.diagnosis import advice
from grpo.diagnosis.advice import Advice, Remedy

_FAR = Remedy(
    "the updates of a step move the policy too far from the sampling policy: they are too many or too large",
    (advice.LARGER_BATCH, advice.RATE_DOWN, advice.CLIP_RATIO, advice.CLIP_GRADIENT),
)
_DIFFERENCE = Remedy(
    "trainer and engine compute different log-probs: check sync, temperature, precision and kernels",
    advice.SAME_POLICY,
)
_CORRELATION = Remedy(
    "the reward does not follow correctness: check its sign, its weights, and what the judge rewards",
    (advice.REWARD, advice.CORRECTNESS, advice.QUALITY, advice.JUDGE),
)

RANGES = {
    "answered": Remedy(
        "responses have no readable answer: they are cut, or do not follow the prompt's format",
        (
            advice.LENGTH,
            advice.THINKING,
            Advice("TRAIN_DATA", "with the instruction to box the answer", "the grader looks for a box"),
        ),
    ),
    "repetition": Remedy(
        "responses repeat themselves: updates have damaged the policy, or the length limit is too generous",
        (advice.GO_BACK, advice.RATE_DOWN, advice.KL, advice.WARMER, advice.OVERLONG),
    ),
    "high_reward_wrong": Remedy(
        "wrong rollouts are rewarded like right ones: the judge is fooled, or the weight of correctness is too low",
        (advice.CORRECTNESS, advice.QUALITY, advice.JUDGE),
    ),
    "reward_correct_correlation": _CORRELATION,
    "reward_correct_correlation_rolling": _CORRELATION,
    "zero_spread_groups": Remedy(
        "the problems are too hard or too easy: the rewards within a group are equal and give no gradient",
        (advice.FILTERING, advice.EASIER_DATA, advice.LARGER_GROUPS, advice.WARMER),
    ),
    "judge_failed": Remedy(
        "the judge fails on some rollouts, which are then rewarded by another measure than the rest",
        (advice.QUOTA, advice.DEADLINE, advice.WHOLE_GROUPS),
    ),
    "judge_fallbacks": Remedy(
        "the first model of the judge often fails, and another one judges instead",
        (
            Advice("JUDGE_RPM", "to your quota", "the first model then answers instead of a fallback"),
            Advice("JUDGE_MODELS", "with a reliable model first", "the same judge for all rollouts"),
        ),
    ),
    "reward_missing": Remedy(
        "rollouts get no reward: the reward function or the environment fails on them; the engines' log has the reason",
        (Advice("REWARD", "a function that handles every response", "test it on the lines of samples/"),),
    ),
    "disk_free": Remedy(
        "a disk that the run writes to is almost full",
        (
            Advice("CKPT_DIR", "on another disk", "a full disk stops checkpoints"),
            Advice("METRICS_DIR", "on another disk", "takes metrics and rollouts"),
            advice.SAVE_LESS,
        ),
    ),
    "lost_writes": Remedy(
        "metrics or rollouts could not be written: the disk is full or missing",
        (Advice("METRICS_DIR", "on another disk", "lines that cannot be written are lost"), advice.SAVE_LESS),
    ),
    **dict.fromkeys(("ppo_kl", "ppo_clip_ratio", "clip_ratio_low", "clip_ratio_high"), _FAR),
    **dict.fromkeys(
        ("grad_norm", "grad_norm_max"),
        Remedy(
            "gradients are far larger than usual: a few tokens with a very large ratio or advantage, or precision",
            (advice.CLIP_ADVANTAGE, advice.DUAL_CLIP, advice.RATE_DOWN, advice.LARGER_BATCH, advice.EAGER_ATTENTION),
        ),
    ),
    "policy_loss_spike": Remedy(
        "some micro-batches have a very large ratio or advantage; samples/step_N.jsonl marks it (largest loss)",
        (advice.CLIP_ADVANTAGE, advice.DUAL_CLIP, advice.CLIP_GRADIENT, advice.RATE_DOWN),
    ),
    "actor_lr": Remedy(
        "the learning rate is 0, so the policy no longer changes: its schedule is over, or LEARNING_RATE is too small",
        (
            Advice("LR_SCHEDULER", "cosine_with_min_lr", "it does not fall to 0"),
            Advice("NUM_EPISODES", "twice as many", "the schedule ends with the last episode", 2.0),
            advice.RATE_UP,
        ),
    ),
    "advantage_mean": Remedy(
        "the advantages of a step do not cancel out: rollouts lack a reward, or advantages are clipped",
        (advice.REWARD, Advice("ADVANTAGE_ESTIMATOR", "dr_grpo", "subtracts the mean of each group")),
    ),
    "advantage_clipped": Remedy(
        "--advantage_clip is below the usual size of the advantages",
        (Advice("--advantage_clip", "twice as high", "clips only outliers", 2.0), advice.REWARD),
    ),
    **dict.fromkeys(
        ("logprob_diff_mean", "logprob_diff_max", "logprob_diff_first", "logprob_diff_last", "vllm_kl"), _DIFFERENCE
    ),
    **dict.fromkeys(("importance_cut", "importance_weight"), _DIFFERENCE),
    "improbable_tokens": Remedy(
        "the engine samples very improbable tokens: the temperature is too high, or the policy is damaged",
        (advice.GO_BACK, advice.COOLER, advice.TAIL, advice.RATE_DOWN, advice.KL),
    ),
    "unallocated_mass": Remedy(
        "the policy gives probability to vocabulary rows that are not tokens: the updates are too large",
        (advice.GO_BACK, advice.RATE_DOWN, advice.KL, advice.CLIP_GRADIENT),
    ),
    "token_mismatch": Remedy(
        "the tokens of engine and trainer differ: another tokenizer, or another base model in the engines",
        (advice.SAME_WEIGHTS, advice.EAGER_ENGINE),
    ),
    "truncated": Remedy(
        "responses exceed the length limit; a response that is cut has no answer",
        (advice.LENGTH, advice.THINKING, advice.OVERLONG),
    ),
    "answer_truncated": Remedy(
        "answers exceed ANSWER_BUDGET",
        (Advice("ANSWER_BUDGET", "twice as long", "answers can end before they are cut", 2.0), advice.LENGTH),
    ),
    "advantage_length_correlation": Remedy(
        "the advantage depends on the length: long responses are cut or penalised, or the judge prefers a length",
        (
            advice.LENGTH,
            Advice("LOSS_AGGREGATION", "constant", "every token counts the same, in long and in short rollouts"),
            Advice("OVERLONG_PENALTY", "to a half", "length then costs less relative to correctness", 0.5),
            advice.CORRECTNESS,
            advice.QUALITY,
        ),
    ),
    "reward_error": Remedy(
        "the reward function cannot grade some rollouts: unreadable labels, or an exception (see the log)",
        (advice.LABELS, Advice("REWARD", "a function that handles every response", "test it on the lines of samples/")),
    ),
    "ended_by_turns": Remedy(
        "rollouts run out of turns", (Advice("TURN_LIMIT", "twice as many", "rollouts can end by themselves", 2.0),)
    ),
    "ended_by_time": Remedy(
        "rollouts run out of time: tools are slow or the engines are busy",
        (
            Advice("ROLLOUT_SECONDS", "twice as long", "rollouts can end by themselves", 2.0),
            Advice("TOOL_SECONDS", "to a half", "a tool that hangs then costs less time", 0.5),
        ),
    ),
    "ended_by_length": Remedy(
        "rollouts run out of tokens",
        (advice.LENGTH, Advice("TURN_LIMIT", "to a half", "fewer turns share the same tokens", 0.5)),
    ),
    "ended_by_error": Remedy(
        "the environment raises an exception on some rollouts, which get no reward; see the engines' log",
        (Advice("ENVIRONMENT", "that handles every action", "test it on the failed rollouts in samples/"),),
    ),
    "close_failed": Remedy(
        "what an environment used may stay open: its close failed; see the engines' log",
        (Advice("ENVIRONMENT", "whose close cannot fail", "test it on rollouts that end at each limit"),),
    ),
    "branches_dropped": Remedy(
        "histories are rewritten more often than MAX_BRANCHES allows",
        (Advice("MAX_BRANCHES", "twice as many", "fewer are dropped, but the actor needs more memory", 2.0),),
    ),
    "metric_errors": Remedy(
        "some metrics could not be computed; the actor's log has the exception",
        (Advice("--check", "before the next start", "it reports versions that were not tested"),),
    ),
    "dropped_values": Remedy(
        "numbers were not finite: an update overflowed",
        (advice.GO_BACK, advice.RATE_DOWN, advice.CLIP_GRADIENT, advice.CLIP_ADVANTAGE),
    ),
}
