"""The metrics of a run: name, unit, meaning, tier and healthy range of each, in one place.

The live view, the report and docs/metrics.md are made from it. Look at the tiers in order: :data:`TIERS` has the
question that each one answers.
"""

from collections.abc import Mapping
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
        name: its key in metrics.jsonl. "seconds.NAME" is a key of the object `seconds`; "NAME.*" means one number per
            file of REWARD, or per environment.
        unit: "share" is from 0 to 1; "nat", "token", "s", "byte"; "" for a number without unit.
        tier: see TIERS.
        healthy: the inclusive range that needs no attention; a bound of None leaves that side open. None if the
            range depends on the run.
        when: the option that makes a run write it; "" if every run does.
    """

    name: str
    unit: str
    tier: int
    meaning: str
    healthy: tuple[float | None, float | None] | None = None
    when: str = ""


SEVERAL = "several environments"

SCHEMA = (
    Metric("exact_match", "share", 1, "held-out problems solved, by exact match alone (pass@1)"),
    Metric("correct", "share", 1, "training rollouts whose answer matches the gold answer"),
    Metric("correct_whole", "share", 1, "the same over rollouts that were not cut; the difference bounds the cost of "
           "the length limit"),
    Metric("reward", "", 1, "mean reward over rollouts, including any judge's part"),
    Metric("reward.*", "", 1, "mean reward from this file alone, before its weight", when="several files in REWARD"),
    Metric("answered", "share", 1, "rollouts with a readable answer; cut rollouts seldom have one", (0.7, None)),
    Metric("ppo_kl", "nat", 2, "mean log ratio of the sampling policy to the trained policy, over tokens",
           (-0.05, 0.05)),
    Metric("ppo_clip_ratio", "share", 2, "tokens whose ratio was clipped; none are with --policy_loss_type sapo",
           (None, 0.2)),
    Metric("clip_ratio_low", "share", 2, "tokens with a negative advantage whose ratio was clipped at the lower bound",
           (None, 0.1)),
    Metric("clip_ratio_high", "share", 2, "tokens with a positive advantage whose ratio was clipped at the upper "
           "bound; with --policy_loss_type cispo, tokens with any advantage, at --cispo_max_ratio", (None, 0.1)),
    Metric("policy_loss", "", 2, "mean loss; do not expect it to fall in GRPO; its scale depends on the loss"),
    Metric("policy_loss_max", "", 2, "largest loss of a micro-batch, by magnitude"),
    Metric("policy_loss_spike", "", 2, "policy_loss_max divided by the median loss magnitude of micro-batches with a "
           "nonzero advantage", (None, 10.0)),
    Metric("grad_norm", "", 2, "L2 norm of the gradient before clipping, mean over the optimizer steps", (None, 1.0)),
    Metric("grad_norm_max", "", 2, "largest of these norms", (None, 3.0)),
    Metric("advantage_mean", "", 2, "mean advantage, over rollouts", (-0.1, 0.1)),
    Metric("zero_spread_groups", "share", 2, "groups whose rollouts all got the same reward; they give no gradient",
           (None, 0.7)),
    Metric("logprob_diff_mean", "nat", 2, "mean absolute difference between the trainer's and the engine's log-probs, "
           "over sampled tokens", (None, 0.05)),
    Metric("logprob_diff_max", "nat", 2, "largest of these differences; several nat where rounding changes the choice "
           "of an expert"),
    Metric("logprob_diff_first", "nat", 2, "mean of these differences over the first third of each response",
           (None, 0.05)),
    Metric("logprob_diff_last", "nat", 2, "mean of these differences over the last third; drift with position is an "
           "error in the trainer or engine", (None, 0.05)),
    Metric("routing_differs", "share", 2, "expert choices, over tokens and layers, that the trainer would have made "
           "differently from the engine", when="--routing_replay"),
    Metric("improbable_tokens", "share", 2, "sampled tokens that the engine gave a probability below 1e-4",
           (None, 0.001)),
    Metric("response_length", "token", 3, "mean length of a response"),
    Metric("response_length_p50", "token", 3, "median length"),
    Metric("response_length_p90", "token", 3, "90th percentile of the length"),
    Metric("thinking_length", "token", 3, "mean length of the part before the final message, plus that message's "
           "header; the whole response if it has no final message"),
    Metric("answer_length", "token", 3, "mean length of the final message, over rollouts that have one"),
    Metric("truncated", "share", 3, "rollouts cut at the length limit", (None, 0.3)),
    Metric("thinking_truncated", "share", 3, "rollouts whose thinking was cut at its budget; an answer follows",
           when="--thinking_budget"),
    Metric("thinking_closed", "share", 3, "rollouts that ended their thinking within its budget",
           when="--thinking_budget"),
    Metric("answer_truncated", "share", 3, "rollouts whose answer was cut at its budget",
           (None, 0.3), when="--thinking_budget"),
    Metric("entropy", "nat", 3, "mean entropy of the policy at the sampled tokens, at --temperature"),
    Metric("repetition", "share", 3, "3-grams of a response that occurred earlier in it, mean over rollouts",
           (None, 0.3)),
    Metric("masked_rollouts", "", 3, "number of rollouts that count in their group but not in the loss",
           when="--mask_truncated"),
    Metric("token_mismatch", "", 3, "rows per rollout whose tokens differ between engine and trainer, or lack the "
           "engine's log-probs", (None, 0.0)),
    Metric("turns", "", 3, "turns per rollout", when="--environment"),
    Metric("tool_calls", "", 3, "tool calls per rollout", when="--environment"),
    Metric("tool_errors", "", 3, "failed tool calls per rollout", (None, 1.0), when="--environment"),
    Metric("rollout_tokens", "token", 3, "tokens sampled in all turns of a rollout", when="--environment"),
    Metric("ended_by_turns", "share", 3, "rollouts that ended at the turn limit", (None, 0.3), when="--environment"),
    Metric("ended_by_time", "share", 3, "rollouts that ended at the time limit", (None, 0.05), when="--environment"),
    Metric("ended_by_length", "share", 3, "rollouts that ran out of tokens", (None, 0.3), when="--environment"),
    Metric("ended_by_error", "share", 3, "rollouts that ended with an environment error; they have no reward",
           (None, 0.0), when="--environment"),
    Metric("close_failed", "share", 3, "rollouts whose environment failed to close, or closed too late",
           (None, 0.0), when="--environment"),
    Metric("environment_share.*", "share", 3, "rollouts in this environment", when=SEVERAL),
    Metric("environment_score.*", "share", 3, "mean score in this environment", when=SEVERAL),
    Metric("environment_reward.*", "", 3, "mean reward in this environment", when=SEVERAL),
    Metric("environment_turns.*", "", 3, "turns per rollout in this environment", when=SEVERAL),
    Metric("environment_errors.*", "share", 3, "rollouts in this environment that ended with its error", when=SEVERAL),
    Metric("environment_tokens", "token", 3, "tokens from tools and users since the last rewrite of the history",
           when="--environment"),
    Metric("reward_correct_correlation", "", 4, "correlation of reward and correctness in the step", (0.5, None)),
    Metric("reward_correct_correlation_rolling", "", 4, "the same over the last 10 steps", (0.5, None)),
    Metric("high_reward_wrong", "share", 4, "wrong rollouts among those with at least the median reward of the correct "
           "ones", (None, 0.05)),
    Metric("judge_quality", "share", 4, "mean quality over rollouts that the judge did not fail on; 0 for a response "
           "that is not sent (empty, or unfinished with --no-judge_unfinished)"),
    Metric("judge_quality_right", "share", 4, "mean quality of judged rollouts that are correct"),
    Metric("judge_quality_wrong", "share", 4, "mean quality of judged rollouts that are wrong or have no answer"),
    Metric("judge_calls", "", 4, "calls to the judge per rollout"),
    Metric("judge_failed", "share", 4, "rollouts that no model judged", (None, 0.05)),
    Metric("judge_fallbacks", "share", 4, "rollouts judged by a model other than the first", (None, 0.2)),
    Metric("judge_cached", "share", 4, "rollouts whose judgment was already stored"),
    Metric("judge_seconds", "s", 4, "mean time from request to judgment"),
    Metric("judge_tokens", "token", 4, "tokens sent to and received from the judge per rollout"),
    Metric("reward_missing", "share", 4, "rollouts without a reward; training leaves them out", (None, 0.01)),
    Metric("branches", "", 5, "rewrites of a rollout's history; each begins another row", when="--environment"),
    Metric("branches_dropped", "", 5, "rows per rollout that training leaves out because of --max_branches",
           (None, 0.0), when="--environment"),
    Metric("token_advantage_mean", "", 5, "mean advantage over tokens; below 0 if long rollouts have lower rewards"),
    Metric("advantage_length_correlation", "", 5, "correlation of advantage and response length", (-0.5, 0.5)),
    Metric("unallocated_mass", "share", 5, "probability of vocabulary entries that are not tokens", (None, 0.0001)),
    Metric("actor_lr", "", 5, "learning rate applied, mean over the step's optimizer steps", (1e-12, None)),
    Metric("optimizer_step", "", 5, "optimizer steps since the run started"),
    Metric("optimizer_steps", "", 5, "optimizer steps in this step; all but the first are off-policy"),
    Metric("staleness", "", 5, "optimizer steps between the policy that sampled the batch and the step's starting "
           "policy", when="--pipeline"),
    Metric("seconds.generate", "s", 5, "sampling and rewarding the batch; with --pipeline, until its last token"),
    Metric("seconds.wait", "s", 5, "waiting for the batch's last rewards, and for the engines after the update",
           when="--pipeline"),
    Metric("reward_seconds", "s", 5, "time from the response to its reward, including the judge"),
    Metric("seconds.old_log_probs", "s", 5, "computing advantages and the log-probs that the reward reads"),
    Metric("seconds.train", "s", 5, "forward pass, backward pass, and optimizer"),
    Metric("seconds.sync", "s", 5, "sending the adapter to the engines"),
    Metric("seconds.save", "s", 5, "writing checkpoints"),
    Metric("seconds.total", "s", 5, "the whole step"),
    Metric("tokens_per_second", "token/s", 5, "sampled tokens divided by seconds.total"),
    Metric("sampled_tokens", "token", 5, "tokens sampled in this step"),
    Metric("host_memory", "byte", 5, "memory in use on the machine that writes this line"),
    Metric("device_memory", "byte", 5, "peak memory that PyTorch held on the device of any rank in this step; 0 on a "
           "CPU"),
    Metric("engine_memory", "byte", 5, "peak memory that PyTorch held in any worker of an engine in the previous step; "
           "on a CPU, the memory of its process"),
    Metric("disk_free", "byte", 5, "least free disk space among the folders that the run writes to",
           (5000000000.0, None)),
    Metric("lost_writes", "", 5, "lines that the run has failed to write", (None, 0.0)),
    Metric("reward_std", "", 5, "standard deviation of the reward, over rollouts"),
    Metric("group_reward_std", "", 5, "standard deviation of the reward within a group, mean over groups"),
    Metric("score", "", 5, "mean score: correctness, or the score of your own reward, which evaluations then measure "
           "instead of exact_match"),
    Metric("has_final", "share", 5, "rollouts with a final message"),
    Metric("reward_error", "share", 5, "rollouts that could not be graded or on which your own reward failed",
           (None, 0.01)),
    Metric("judge_regrouped", "share", 5, "rollouts rewarded by correctness alone because another rollout of their "
           "group was not judged", when="--judge_fallback group"),
    Metric("total_length", "token", 5, "mean length of prompt and response"),
    Metric("prompt_length", "token", 5, "mean length of the prompt", when="--thinking_budget"),
    Metric("response_clip_ratio", "share", 5, "OpenRLHF's name for truncated"),
    Metric("return", "", 5, "mean return; in GRPO, equal to the advantage"),
    Metric("kl", "nat", 5, "estimated KL divergence from the reference, the run's starting policy; 0 with "
           "--init_kl_coef 0"),
    Metric("logprobs_diff", "nat", 5, "mean log ratio of policy to reference, over tokens; uses the engine's log-probs "
           "if the trainer computes none; 0 with --init_kl_coef 0"),
    Metric("vllm_kl", "nat", 5, "mean log ratio of the engine to the trainer",
           (-0.01, 0.01), when="--enable_vllm_is_correction"),
    Metric("importance_cut", "share", 5, "tokens whose importance weight was truncated or set to 0",
           (None, 0.05), when="--enable_vllm_is_correction"),
    Metric("importance_weight", "", 5, "mean importance weight of the sampled tokens",
           (0.9, 1.1), when="--enable_vllm_is_correction"),
    Metric("advantage_clipped", "share", 5, "tokens whose advantage was clipped", (None, 0.1), when="--advantage_clip"),
    Metric("length_limit", "token", 5, "limit on a response in this step (--length_schedule)"),
    Metric("length_penalty", "", 5, "mean penalty of the soft length limit, subtracted from the rewards",
           when="--overlong_buffer_len"),
    Metric("dynamic_filtering_pass_rate", "", 5, "percentage of drawn groups within --dynamic_filtering_reward_range",
           when="--dynamic_filtering"),
    Metric("groups_drawn", "", 5, "groups that the step sampled, including those that it left out",
           when="--dynamic_filtering"),
    Metric("groups_too_hard", "share", 5, "drawn groups with a mean score at or below the range",
           when="--dynamic_filtering"),
    Metric("groups_too_easy", "share", 5, "drawn groups with a mean score at or above the range",
           when="--dynamic_filtering"),
    Metric("groups_filled", "", 5, "groups outside the range that the step trains on because it may draw no more",
           when="--dynamic_filtering"),
    Metric("score_drawn", "", 5, "mean score of the drawn groups; correct and score cover only the batch",
           when="--dynamic_filtering"),
    Metric("entropy_loss", "nat", 5, "entropy whose bonus is in the loss, mean over the micro-batches",
           when="--entropy_loss_coef"),
    Metric("metric_errors", "", 5, "parts of this line that could not be computed; the log gives the reasons",
           (None, 0.0)),
    Metric("dropped_values", "", 5, "numbers left out of this step because they were not finite", (None, 0.0)),
)  # fmt: skip

BY_NAME = {metric.name: metric for metric in SCHEMA}
# Those that come from the reward function, which your own may log, too.
OF_REWARDS = {"correct", "answered", "has_final", "reward_error", "reward_seconds", "judge_quality", "judge_calls"}
OF_REWARDS |= {"judge_failed", "judge_fallbacks", "judge_cached", "judge_seconds", "judge_tokens", "judge_regrouped"}


def flat(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl or eval.jsonl by the schema's names, including names it lacks."""
    seconds = row.get("seconds")
    phases = seconds.items() if isinstance(seconds, Mapping) else ()
    numbers = {**row, **{f"seconds.{name}": value for name, value in phases}}
    return {
        name: float(value)
        for name, value in numbers.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in ("step", "time")
    }
