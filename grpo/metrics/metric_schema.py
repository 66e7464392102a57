"""The metrics of a run: name, unit, meaning, tier, healthy range and source of each, in one place.

The live view, the report and docs/metrics.md are made from it. Look at the tiers in order: :data:`TIERS` has the
question that each one answers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TIERS = {
    1: "Is it learning?",
    2: "Is the update sound?",
    3: "What do the responses look like?",
    4: "Is the reward honest?",
    5: "Where do time and memory go? Other details",
}


@dataclass(frozen=True)
class Metric:
    """One metric of a step.

    Attributes:
        name: its key in metrics.jsonl (in eval.jsonl for the source "eval"). "seconds.NAME" is a key of the object
            `seconds`; "NAME.*" means one number per file of REWARD.
        unit: "share" is from 0 to 1; "nat", "token", "sample", "s", "byte"; "" for a number without unit.
        tier: see TIERS.
        healthy: the inclusive range that needs no attention; a bound of None leaves that side open. None if the
            range depends on the run.
        source: where it is computed: "openrlhf", "eval", "actor", "rows", "reward", "rollout" (our executor in
            the engines) or "launcher".
        when: the option that makes a run write it; "" if every run does.
    """

    name: str
    unit: str
    tier: int
    meaning: str
    source: str
    healthy: tuple[float | None, float | None] | None = None
    when: str = ""


SEVERAL = "several environments"

SCHEMA = (
    Metric("exact_match", "share", 1, "held-out problems solved, by exact match alone (pass@1)", "eval"),
    Metric("correct", "share", 1, "training rollouts whose answer matches the gold answer", "reward"),
    Metric("correct_whole", "share", 1, "the same over rollouts that were not cut; the difference bounds the cost of "
           "the length limit", "rows"),
    Metric("reward", "", 1, "mean reward over rollouts, including any judge's part", "openrlhf"),
    Metric("reward.*", "", 1, "mean reward from this file alone, before its weight", "reward",
           when="several files in REWARD"),
    Metric("answered", "share", 1, "rollouts with a readable answer; cut rollouts seldom have one", "reward",
           (0.7, None)),
    Metric("ppo_kl", "nat", 2, "mean log ratio of the sampling policy to the trained policy, over tokens",
           "openrlhf", (-0.05, 0.05)),
    Metric("ppo_clip_ratio", "share", 2, "tokens whose ratio was clipped; none are with --policy_loss_type sapo",
           "openrlhf", (None, 0.2)),
    Metric("clip_ratio_low", "share", 2, "tokens with a negative advantage whose ratio was clipped at the lower bound",
           "actor", (None, 0.1)),
    Metric("clip_ratio_high", "share", 2, "tokens with a positive advantage whose ratio was clipped at the upper "
           "bound; with --policy_loss_type cispo, tokens with any advantage, at --cispo_max_ratio", "actor",
           (None, 0.1)),
    Metric("policy_loss", "", 2, "mean loss; do not expect it to fall in GRPO; its scale depends on --policy_loss_type",
           "openrlhf"),
    Metric("policy_loss_max", "", 2, "largest loss of a micro-batch, by magnitude", "actor"),
    Metric("policy_loss_spike", "", 2, "policy_loss_max divided by the median loss magnitude of micro-batches with a "
           "nonzero advantage", "actor", (None, 10.0)),
    Metric("grad_norm", "", 2, "L2 norm of the gradient before clipping, mean over the optimizer steps",
           "actor", (None, 1.0)),
    Metric("grad_norm_max", "", 2, "largest of these norms", "actor", (None, 3.0)),
    Metric("advantage_mean", "", 2, "mean advantage, over rollouts", "rows", (-0.1, 0.1)),
    Metric("advantage_std", "", 2, "standard deviation of the advantage, over rollouts", "rows"),
    Metric("zero_spread_groups", "share", 2, "groups whose rollouts all got the same reward; they give no gradient",
           "rows", (None, 0.7)),
    Metric("logprob_diff_mean", "nat", 2, "mean absolute difference between the trainer's and the engine's log-probs, "
           "over sampled tokens", "rows", (None, 0.05)),
    Metric("logprob_diff_max", "nat", 2, "largest of these differences; several nat where rounding changes the choice "
           "of an expert", "rows"),
    Metric("logprob_diff_first", "nat", 2, "mean of these differences over the first third of each response",
           "rows", (None, 0.05)),
    Metric("logprob_diff_last", "nat", 2, "mean of these differences over the last third; drift with position is an "
           "error in the trainer or engine", "rows", (None, 0.05)),
    Metric("routing_differs", "share", 2, "expert choices, over tokens and layers, that the trainer would have made "
           "differently from the engine", "actor", when="--routing_replay"),
    Metric("improbable_tokens", "share", 2, "sampled tokens that the engine gave a probability below 1e-4", "rows",
           (None, 0.001)),
    Metric("response_length", "token", 3, "mean length of a response", "openrlhf"),
    Metric("response_length_p50", "token", 3, "median length", "rows"),
    Metric("response_length_p90", "token", 3, "90th percentile of the length", "rows"),
    Metric("response_length_max", "token", 3, "longest response", "rows"),
    Metric("thinking_length", "token", 3, "mean length of the part before the final message, plus that message's "
           "header; the whole response if it has no final message", "rows"),
    Metric("answer_length", "token", 3, "mean length of the final message, over rollouts that have one", "rows"),
    Metric("truncated", "share", 3, "rollouts cut at the length limit", "openrlhf", (None, 0.3)),
    Metric("thinking_truncated", "share", 3, "rollouts whose thinking was cut at its budget; an answer follows",
           "rollout", when="--thinking_budget"),
    Metric("thinking_closed", "share", 3, "rollouts that ended their thinking within its budget",
           "rollout", when="--thinking_budget"),
    Metric("answer_truncated", "share", 3, "rollouts whose answer was cut at its budget",
           "rollout", (None, 0.3), when="--thinking_budget"),
    Metric("reward_thinking_truncated", "", 3, "mean reward of rollouts whose thinking was cut",
           "rows", when="--thinking_budget"),
    Metric("reward_thinking_whole", "", 3, "mean reward of rollouts whose thinking was not cut",
           "rows", when="--thinking_budget"),
    Metric("entropy", "nat", 3, "mean entropy of the policy at the sampled tokens, at --temperature", "actor"),
    Metric("entropy_p10", "nat", 3, "10th percentile of the entropy over tokens", "actor"),
    Metric("entropy_p90", "nat", 3, "90th percentile of the entropy over tokens", "actor"),
    Metric("repetition", "share", 3, "3-grams of a response that occurred earlier in it, mean over rollouts",
           "rows", (None, 0.3)),
    Metric("masked_rollouts", "", 3, "number of rollouts that count in their group but not in the loss", "rows",
           when="--mask_truncated"),
    Metric("token_mismatch", "", 3, "rows per rollout whose tokens differ between engine and trainer, or lack the "
           "engine's log-probs", "rollout", (None, 0.0)),
    Metric("turns", "", 3, "turns per rollout", "rollout", when="ENVIRONMENT"),
    Metric("tool_calls", "", 3, "tool calls per rollout", "rollout", when="ENVIRONMENT"),
    Metric("tool_errors", "", 3, "failed tool calls per rollout", "rollout", (None, 1.0), when="ENVIRONMENT"),
    Metric("rollout_tokens", "token", 3, "tokens sampled in all turns of a rollout", "rollout", when="ENVIRONMENT"),
    Metric("ended_by_turns", "share", 3, "rollouts that ended at the turn limit", "rollout", (None, 0.3),
           when="ENVIRONMENT"),
    Metric("ended_by_time", "share", 3, "rollouts that ended at the time limit", "rollout", (None, 0.05),
           when="ENVIRONMENT"),
    Metric("ended_by_length", "share", 3, "rollouts that ran out of tokens",
           "rollout", (None, 0.3), when="ENVIRONMENT"),
    Metric("ended_by_error", "share", 3, "rollouts that ended with an environment error; they have no reward",
           "rollout", (None, 0.0), when="ENVIRONMENT"),
    Metric("close_failed", "share", 3, "rollouts whose environment failed to close, or closed too late", "rollout",
           (None, 0.0), when="ENVIRONMENT"),
    Metric("environment_share.*", "share", 3, "rollouts in this environment", "rollout", when=SEVERAL),
    Metric("environment_score.*", "share", 3, "mean score in this environment", "rollout", when=SEVERAL),
    Metric("environment_reward.*", "", 3, "mean reward in this environment", "rollout", when=SEVERAL),
    Metric("environment_turns.*", "", 3, "turns per rollout in this environment", "rollout", when=SEVERAL),
    Metric("environment_errors.*", "share", 3, "rollouts in this environment that ended with its error", "rollout",
           when=SEVERAL),
    Metric("environment_tokens", "token", 3, "tokens from tools and users since the last rewrite of the history",
           "rollout", when="ENVIRONMENT"),
    Metric("reward_correct_correlation", "", 4, "correlation of reward and correctness in the step", "rows",
           (0.5, None)),
    Metric("reward_correct_correlation_rolling", "", 4, "the same over the last 10 steps", "rows", (0.5, None)),
    Metric("high_reward_wrong", "share", 4, "wrong rollouts among those with at least the median reward of the correct "
           "ones", "rows", (None, 0.05)),
    Metric("judge_quality", "share", 4, "mean quality over rollouts that the judge did not fail on; 0 for a response "
           "that is not sent (empty, or unfinished with --no-judge_unfinished)", "reward"),
    Metric("judge_quality_right", "share", 4, "mean quality of judged rollouts that are correct", "rows"),
    Metric("judge_quality_wrong", "share", 4, "mean quality of judged rollouts that are wrong or have no answer",
           "rows"),
    Metric("judge_calls", "", 4, "calls to the judge per rollout", "reward"),
    Metric("judge_failed", "share", 4, "rollouts that no model judged", "reward", (None, 0.05)),
    Metric("judge_fallbacks", "share", 4, "rollouts judged by a model other than the first", "reward", (None, 0.2)),
    Metric("judge_cached", "share", 4, "rollouts whose judgment was already stored", "reward"),
    Metric("judge_seconds", "s", 4, "mean time from request to judgment", "reward"),
    Metric("judge_tokens", "token", 4, "tokens sent to and received from the judge per rollout", "reward"),
    Metric("reward_missing", "share", 4, "rollouts without a reward; training leaves them out", "openrlhf",
           (None, 0.01)),
    Metric("branches", "", 5, "rewrites of a rollout's history; each begins another row", "rollout",
           when="ENVIRONMENT"),
    Metric("branches_dropped", "", 5, "rows per rollout that training leaves out because of --max_branches", "rollout",
           (None, 0.0), when="ENVIRONMENT"),
    Metric("advantage_min", "", 5, "smallest advantage", "rows"),
    Metric("advantage_max", "", 5, "largest advantage", "rows"),
    Metric("token_advantage_mean", "", 5, "mean advantage over tokens; below 0 if long rollouts have lower rewards",
           "rows"),
    Metric("advantage_length_correlation", "", 5, "correlation of advantage and response length",
           "rows", (-0.5, 0.5)),
    Metric("unallocated_mass", "share", 5, "probability of vocabulary entries that are not tokens", "actor",
           (None, 1e-4)),
    Metric("actor_lr", "", 5, "learning rate applied, mean over the step's optimizer steps", "actor", (1e-12, None)),
    Metric("optimizer_step", "", 5, "optimizer steps since the run started", "actor"),
    Metric("optimizer_steps", "", 5, "optimizer steps in this step; all but the first are off-policy", "actor"),
    Metric("staleness", "", 5, "optimizer steps between the policy that sampled the batch and the step's starting "
           "policy", "launcher", when="--pipeline"),
    Metric("seconds.generate", "s", 5, "sampling and rewarding the step's batch; with --pipeline, until its last token",
           "launcher"),
    Metric("seconds.wait", "s", 5, "waiting for the batch's last rewards, and for the engines after the update",
           "launcher", when="--pipeline"),
    Metric("reward_seconds", "s", 5, "time from the response to its reward, including the judge", "reward"),
    Metric("seconds.old_log_probs", "s", 5, "computing advantages and the log-probs that the reward reads", "launcher"),
    Metric("seconds.train", "s", 5, "forward pass, backward pass, and optimizer", "launcher"),
    Metric("seconds.sync", "s", 5, "sending the adapter to the engines", "launcher"),
    Metric("seconds.save", "s", 5, "writing checkpoints", "launcher"),
    Metric("seconds.total", "s", 5, "the whole step", "launcher"),
    Metric("tokens_per_second", "token/s", 5, "sampled tokens divided by seconds.total", "launcher"),
    Metric("sampled_tokens", "token", 5, "tokens sampled in this step", "rows"),
    Metric("sync_bytes", "byte", 5, "bytes that one sync sends to each engine", "actor"),
    Metric("host_memory", "byte", 5, "memory in use on the machine that writes this line", "launcher"),
    Metric("device_memory", "byte", 5, "peak memory that PyTorch held on the device of any rank in this step; 0 on a "
           "CPU", "actor"),
    Metric("engine_memory", "byte", 5, "peak memory that PyTorch held in any worker of an engine in the previous step; "
           "on a CPU, the memory of its process", "actor"),
    Metric("disk_free", "byte", 5, "least free disk space among the folders that the run writes to", "launcher",
           (5e9, None)),
    Metric("lost_writes", "", 5, "lines that the run has failed to write", "launcher", (None, 0.0)),
    Metric("reward_std", "", 5, "standard deviation of the reward, over rollouts", "rows"),
    Metric("group_reward_std", "", 5, "standard deviation of the reward within a group, mean over groups", "openrlhf"),
    Metric("score", "", 5, "mean score: correctness, or the score of your own reward, which evaluations then measure "
           "instead of exact_match", "openrlhf"),
    Metric("has_final", "share", 5, "rollouts with a final message", "reward"),
    Metric("reward_error", "share", 5, "rollouts that could not be graded or on which your own reward failed", "reward",
           (None, 0.01)),
    Metric("judge_regrouped", "share", 5, "rollouts rewarded by correctness alone because another rollout of their "
           "group was not judged", "reward", when="--judge_fallback group"),
    Metric("total_length", "token", 5, "mean length of prompt and response", "openrlhf"),
    Metric("prompt_length", "token", 5, "mean length of the prompt", "rollout", when="--thinking_budget"),
    Metric("response_clip_ratio", "share", 5, "OpenRLHF's name for truncated", "openrlhf"),
    Metric("return", "", 5, "mean return; in GRPO, equal to the advantage", "openrlhf"),
    Metric("kl", "nat", 5, "estimated KL divergence from the reference, the run's starting policy; 0 with "
           "--init_kl_coef 0", "openrlhf"),
    Metric("logprobs_diff", "nat", 5, "mean log ratio of policy to reference, over tokens; uses the engine's "
           "log-probs if the trainer computes none; 0 with --init_kl_coef 0", "openrlhf"),
    Metric("vllm_kl", "nat", 5, "mean log ratio of the engine to the trainer",
           "openrlhf", (-0.01, 0.01), when="--enable_vllm_is_correction"),
    Metric("importance_cut", "share", 5, "tokens whose importance weight was truncated or set to 0", "actor",
           (None, 0.05),
           when="--enable_vllm_is_correction"),
    Metric("importance_weight", "", 5, "mean importance weight of the sampled tokens", "actor", (0.9, 1.1),
           when="--enable_vllm_is_correction"),
    Metric("advantage_clipped", "share", 5, "tokens whose advantage was clipped",
           "actor", (None, 0.1), when="--advantage_clip"),
    Metric("length_limit", "token", 5, "limit on a response in this step (--length_schedule)", "rows"),
    Metric("length_penalty", "", 5, "mean penalty of the soft length limit, subtracted from the rewards",
           "rows", when="--overlong_buffer_len"),
    Metric("dynamic_filtering_pass_rate", "", 5, "percentage of drawn groups within --dynamic_filtering_reward_range",
           "openrlhf", when="--dynamic_filtering"),
    Metric("groups_drawn", "", 5, "groups that the step sampled, including those that it left out", "rows",
           when="--dynamic_filtering"),
    Metric("groups_too_hard", "share", 5, "drawn groups with a mean score at or below the range", "rows",
           when="--dynamic_filtering"),
    Metric("groups_too_easy", "share", 5, "drawn groups with a mean score at or above the range", "rows",
           when="--dynamic_filtering"),
    Metric("groups_filled", "", 5, "groups outside the range that the step trains on because it may draw no more",
           "rows", when="--dynamic_filtering"),
    Metric("score_drawn", "", 5, "mean score of the drawn groups; correct and score cover only the batch", "rows",
           when="--dynamic_filtering"),
    Metric("entropy_loss", "nat", 5, "entropy whose bonus is in the loss, mean over the micro-batches",
           "openrlhf", when="--entropy_loss_coef"),
    Metric("metric_errors", "", 5, "parts of this line that could not be computed; the log gives the reasons", "actor",
           (None, 0.0)),
    Metric("dropped_values", "", 5, "numbers left out of this step because they were not finite", "launcher",
           (None, 0.0)),
)  # fmt: skip

BY_NAME = {metric.name: metric for metric in SCHEMA}


def flat(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl or eval.jsonl by the schema's names, including names it lacks.

    Args:
        row: the line; `step` and `time` are not metrics.
    """
    return dict(_numbers(row, ""))


def _numbers(row: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, bool) or (not prefix and name in ("step", "time")):
            continue
        if isinstance(value, int | float):
            yield prefix + name, float(value)
        elif name == "seconds" and isinstance(value, Mapping):
            yield from _numbers(value, "seconds.")
