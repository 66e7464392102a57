"""For each metric outside its healthy range: the likely cause, and what to change, in the order to try it."""

from grpo.diagnosis.advice import (
    CLIP_ADVANTAGE,
    CLIP_GRADIENT,
    CLIP_RATIO,
    CORRECTNESS,
    DEADLINE,
    DUAL_CLIP,
    EAGER_ATTENTION,
    EAGER_ENGINE,
    EASIER_DATA,
    GO_BACK,
    JUDGE,
    KL,
    LABELS,
    LARGER_BATCH,
    LARGER_GROUPS,
    LENGTH,
    OVERLONG,
    QUALITY,
    QUOTA,
    RATE_DOWN,
    RESTART,
    REWARD,
    SAME_TEMPERATURE,
    SAME_WEIGHTS,
    SAVE_LESS,
    TAIL,
    THINKING,
    WARMER,
    WHOLE_GROUPS,
    Advice,
    Remedy,
)

_FAR = Remedy(
    "the updates of a rollout move the policy far from the one that sampled it: they are too many, or too large",
    (LARGER_BATCH, RATE_DOWN, CLIP_RATIO, CLIP_GRADIENT),
)
_DIFFERENCE = Remedy(
    "trainer and engine give the sampled tokens other log-probs: a sync, temperature, precision or kernel",
    (EAGER_ENGINE, RESTART, SAME_TEMPERATURE, SAME_WEIGHTS, EAGER_ATTENTION),
)
_CORRELATION = Remedy(
    "the reward does not go with correctness: its sign, its weights, or a judge that looks at other things",
    (REWARD, CORRECTNESS, QUALITY, JUDGE),
)

RANGES = {
    "answered": Remedy(
        "responses end without an answer that can be read: they are cut, or do not follow the prompt's format",
        (LENGTH, THINKING, Advice("TRAIN_DATA", "with the instruction to box the answer", "the grader finds it")),
    ),
    "repetition": Remedy(
        "responses go round in circles: the policy has left the model's language, or the limit invites filling",
        (RATE_DOWN, KL, WARMER, OVERLONG),
    ),
    "high_reward_wrong": Remedy(
        "wrong samples are paid like right ones: the judge is taken in, or correctness weighs too little",
        (CORRECTNESS, QUALITY, JUDGE),
    ),
    "reward_correct_correlation": _CORRELATION,
    "reward_correct_correlation_rolling": _CORRELATION,
    "zero_spread_groups": Remedy(
        "the problems are all too hard or all too easy: groups agree, and nothing can be learned from them",
        (EASIER_DATA, LARGER_GROUPS, WARMER),
    ),
    "judge_failed": Remedy(
        "the judge fails on some samples for good: they are paid by another measure than the rest",
        (QUOTA, DEADLINE, WHOLE_GROUPS),
    ),
    "judge_fallbacks": Remedy(
        "the first model of the judge often fails, and another one scores in its place",
        (
            Advice("JUDGE_RPM", "to the quota", "the first model is not left for a fallback"),
            Advice("JUDGE_MODELS", "one that answers first", "one judge for all samples"),
        ),
    ),
    "reward_missing": Remedy(
        "samples get no reward: the reward function or the environment fails on them, the engines' log says why",
        (Advice("REWARD", "a function that bears every response", "try it on the lines of samples/"),),
    ),
    "disk_free": Remedy(
        "the disk that checkpoints go to is filling up",
        (Advice("CKPT_DIR", "on another disk", "a full disk ends the saving"), SAVE_LESS),
    ),
    "lost_writes": Remedy(
        "lines of metrics or samples could not be written: the disk is full, or gone",
        (Advice("METRICS_DIR", "on another disk", "what is not written is lost"), SAVE_LESS),
    ),
    **dict.fromkeys(("ppo_kl", "ppo_clip_ratio", "clip_ratio_low", "clip_ratio_high"), _FAR),
    "policy_loss_spike": Remedy(
        "single micro-batches have a huge ratio or advantage: samples/step_N.jsonl marks the sample (largest loss)",
        (CLIP_ADVANTAGE, DUAL_CLIP, CLIP_GRADIENT, RATE_DOWN),
    ),
    "advantage_mean": Remedy(
        "advantages do not cancel out in a step: samples without a reward, or clipping, take some of them away",
        (REWARD, Advice("ADVANTAGE_ESTIMATOR", "dr_grpo", "the mean of each group is taken off")),
    ),
    "advantage_clipped": Remedy(
        "--advantage_clip cuts many advantages: it is below the usual size of the rewards' differences",
        (Advice("--advantage_clip", "twice as high", "only outliers are cut", 2.0), REWARD),
    ),
    **dict.fromkeys(
        ("logprob_diff_mean", "logprob_diff_max", "logprob_diff_first", "logprob_diff_last", "vllm_kl"), _DIFFERENCE
    ),
    **dict.fromkeys(("importance_cut", "importance_weight"), _DIFFERENCE),
    "improbable_tokens": Remedy(
        "the engine samples tokens that it holds for next to impossible: the temperature, or a policy that breaks up",
        (Advice("TEMPERATURE", "1.0", "less weight on the tail", enough=lambda now: now <= 1), TAIL, RATE_DOWN, KL),
    ),
    "unallocated_mass": Remedy(
        "the policy gives probability to rows of the vocabulary that stand for no token: its updates are too large",
        (RATE_DOWN, KL, CLIP_GRADIENT, GO_BACK),
    ),
    "token_mismatch": Remedy(
        "the engines' tokens are not those that the trainer gets: another tokenizer, or engines of another base model",
        (SAME_WEIGHTS, EAGER_ENGINE),
    ),
    "truncated": Remedy(
        "responses do not end within the length limit, and a cut one has no answer",
        (LENGTH, THINKING, OVERLONG),
    ),
    "answer_truncated": Remedy(
        "answers do not end within ANSWER_BUDGET",
        (Advice("ANSWER_BUDGET", "twice as long", "answers end", 2.0), LENGTH),
    ),
    "advantage_length_correlation": Remedy(
        "length decides over the advantage: long responses are cut or penalised, or a judge likes long or short ones",
        (
            LENGTH,
            Advice("LOSS_AGGREGATION", "constant", "a token counts as much in a long sample as in a short one"),
            Advice("OVERLONG_PENALTY", "to a half", "length costs less beside correctness", 0.5),
            CORRECTNESS,
            QUALITY,
        ),
    ),
    "reward_error": Remedy(
        "the reward function cannot grade some samples: labels that cannot be read, or an exception, which the log has",
        (LABELS, Advice("REWARD", "a function that bears every response", "try it on the lines of samples/")),
    ),
    "ended_by_turns": Remedy(
        "rollouts run out of turns", (Advice("TURN_LIMIT", "twice as many", "rollouts end by themselves", 2.0),)
    ),
    "ended_by_time": Remedy(
        "rollouts run out of time: tools are slow, or the engines are busy",
        (
            Advice("ROLLOUT_SECONDS", "twice as long", "rollouts end by themselves", 2.0),
            Advice("TOOL_SECONDS", "to a half", "a tool that hangs costs less", 0.5),
        ),
    ),
    "ended_by_length": Remedy(
        "rollouts run out of tokens", (LENGTH, Advice("TURN_LIMIT", "to a half", "fewer turns share the tokens", 0.5))
    ),
    "ended_by_error": Remedy(
        "the environment raises on some rollouts, which get no reward: the engines' log has the exception",
        (Advice("ENVIRONMENT", "that bears every action", "run it on the failed rollouts of samples/"),),
    ),
    "branches_dropped": Remedy(
        "histories are rewritten more often than samples of a rollout are kept",
        (Advice("MAX_BRANCHES", "twice as many", "fewer are dropped; they need the actor's memory", 2.0),),
    ),
    "metric_errors": Remedy(
        "parts of the metrics could not be computed: the actor's log has the exception",
        (Advice("--check", "before the next start", "it names versions that are not those tested"),),
    ),
    "dropped_values": Remedy(
        "numbers were not finite: an update has overflowed", (GO_BACK, RATE_DOWN, CLIP_GRADIENT, CLIP_ADVANTAGE)
    ),
}
