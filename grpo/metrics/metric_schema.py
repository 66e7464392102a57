"""The metrics of a run: name, unit, meaning, tier, healthy range and source of each, in one place.

The live view, the report and docs/metrics.md are made from it. The first two also name the metrics that a run has not
written. Tiers give the order to look in: 1 is it learning, 2 is the update sound, 3 what do the responses look like, 4
is the reward honest, 5 the rest: speed, resources, details of the update.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TIERS = {
    1: "Is it learning?",
    2: "Is the update sound?",
    3: "What do the responses look like?",
    4: "Is the reward honest?",
    5: "Where do time and memory go, and what else is there?",
}


@dataclass(frozen=True)
class Metric:
    """One metric of a step.

    Attributes:
        name: its key in metrics.jsonl (in eval.jsonl for the source "eval"). "seconds.NAME" is a key of the object
            `seconds`; "NAME.*" means one number per model.
        unit: "share" is from 0 to 1; "nat", "token", "sample", "s", "byte"; "" for a number without unit.
        tier: see TIERS.
        healthy: the inclusive range that needs no attention; a bound of None leaves a side open. None if it depends on
            the run.
        source: where it is computed: "openrlhf", "eval", "actor", "experience", "reward", "rollout" (our executor in
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


SCHEMA = (
    Metric("exact_match", "share", 1, "held-out problems solved, by exact match alone (pass@1)", "eval"),
    Metric("correct", "share", 1, "training samples whose answer is the gold answer", "reward"),
    Metric("correct_whole", "share", 1, "the same, of the samples that were not cut: what is lost by the length limit, "
           "at most, is the difference", "experience"),
    Metric("reward", "", 1, "mean reward of the samples, judge included", "openrlhf"),
    Metric("answered", "share", 1, "samples with an answer that can be read", "reward", (0.8, None)),
    Metric("ppo_kl", "nat", 2, "mean log ratio of the sampling policy to the trained one, over tokens", "openrlhf",
           (-0.05, 0.05)),
    Metric("ppo_clip_ratio", "share", 2, "tokens whose ratio was clipped", "openrlhf", (None, 0.2)),
    Metric("clip_ratio_low", "share", 2, "tokens clipped from below: the advantage is negative", "actor", (None, 0.1)),
    Metric("clip_ratio_high", "share", 2, "tokens clipped from above: the advantage is positive", "actor", (None, 0.1)),
    Metric("policy_loss", "", 2, "mean loss; not expected to fall in GRPO", "openrlhf"),
    Metric("policy_loss_max", "", 2, "largest loss of a micro-batch by magnitude", "actor"),
    Metric("policy_loss_spike", "", 2, "policy_loss_max over the median of micro-batches with an advantage", "actor",
           (None, 10.0)),
    Metric("grad_norm", "", 2, "L2 norm of the gradient before clipping, mean of the optimizer steps", "actor",
           (None, 1.0)),
    Metric("grad_norm_max", "", 2, "the largest of them", "actor", (None, 3.0)),
    Metric("advantage_mean", "", 2, "mean advantage, over samples", "experience", (-0.1, 0.1)),
    Metric("advantage_std", "", 2, "standard deviation of the advantage, over samples", "experience"),
    Metric("advantage_min", "", 2, "smallest advantage", "experience"),
    Metric("advantage_max", "", 2, "largest advantage", "experience"),
    Metric("zero_spread_groups", "share", 2, "prompts whose samples all got one reward: they teach nothing",
           "experience", (None, 0.7)),
    Metric("logprob_diff_mean", "nat", 2, "mean |trainer - engine| log-prob of the sampled tokens", "experience",
           (None, 0.05)),
    Metric("logprob_diff_max", "nat", 2, "the largest of them", "experience", (None, 2.0)),
    Metric("logprob_diff_first", "nat", 2, "mean over the first third of each response", "experience", (None, 0.05)),
    Metric("logprob_diff_last", "nat", 2, "mean over the last third: a drift with position is an error of one side",
           "experience", (None, 0.05)),
    Metric("improbable_tokens", "share", 2, "sampled tokens to which the engine gave less than 1e-4", "experience",
           (None, 0.001)),
    Metric("response_length", "token", 3, "mean length of a response", "openrlhf"),
    Metric("response_length_p50", "token", 3, "median length", "experience"),
    Metric("response_length_p90", "token", 3, "length that one in ten exceeds", "experience"),
    Metric("response_length_max", "token", 3, "longest response", "experience"),
    Metric("thinking_length", "token", 3, "mean length of what comes before the final message, with its header; of a "
           "response without, all", "experience"),
    Metric("answer_length", "token", 3, "mean length of the final message, of samples that have one", "experience"),
    Metric("truncated", "share", 3, "samples cut at the length limit", "openrlhf", (None, 0.3)),
    Metric("thinking_truncated", "share", 3, "samples whose thinking was cut at its budget, and which then answered",
           "rollout",
           when="THINKING_BUDGET"),
    Metric("thinking_closed", "share", 3, "samples that ended their thinking themselves, within its budget", "rollout",
           when="THINKING_BUDGET"),
    Metric("answer_truncated", "share", 3, "samples whose answer was cut at its budget", "rollout", (None, 0.3),
           when="THINKING_BUDGET"),
    Metric("delimiter_log_prob", "nat", 3, "the engine's log-prob of the tokens that ended a thought by force, of "
           "samples that have some", "rollout",
           when="THINKING_BUDGET"),
    Metric("reward_thinking_truncated", "", 3, "mean reward of samples whose thinking was cut", "experience",
           when="THINKING_BUDGET"),
    Metric("reward_thinking_whole", "", 3, "mean reward of the others, under a thinking budget", "experience",
           when="THINKING_BUDGET"),
    Metric("entropy", "nat", 3, "mean entropy of the policy at the sampled tokens", "actor"),
    Metric("entropy_p10", "nat", 3, "tenth percentile of the tokens", "actor"),
    Metric("entropy_p90", "nat", 3, "ninetieth percentile of the tokens", "actor"),
    Metric("repetition", "share", 3, "3-grams of a response that were there before in it, mean of the samples",
           "experience", (None, 0.3)),
    Metric("token_mismatch", "", 3, "samples of a rollout for which the engine had other tokens, or gave no log-prob",
           "rollout", (None, 0.0)),
    Metric("turns", "", 3, "turns of a rollout in an environment", "rollout",
           when="ENVIRONMENT"),
    Metric("tool_calls", "", 3, "tool calls of a rollout", "rollout",
           when="ENVIRONMENT"),
    Metric("tool_errors", "", 3, "tool calls of a rollout that failed", "rollout",
           when="ENVIRONMENT"),
    Metric("ended_by_turns", "share", 3, "rollouts that the limit of turns ended", "rollout", (None, 0.3),
           when="ENVIRONMENT"),
    Metric("ended_by_time", "share", 3, "rollouts that the limit of time ended", "rollout", (None, 0.05),
           when="ENVIRONMENT"),
    Metric("ended_by_length", "share", 3, "rollouts that ran out of tokens", "rollout", (None, 0.3),
           when="ENVIRONMENT"),
    Metric("ended_by_error", "share", 3, "rollouts that an error of the environment ended; they have no reward",
           "rollout", (None, 0.0), when="ENVIRONMENT"),
    Metric("environment_tokens", "token", 3, "what tools and users said since the last rewriting", "rollout",
           when="ENVIRONMENT"),
    Metric("reward_correct_correlation", "", 4, "correlation of reward and correctness in the step", "experience",
           (0.5, None)),
    Metric("reward_correct_correlation_rolling", "", 4, "the same over the last 10 steps", "experience", (0.5, None)),
    Metric("high_reward_wrong", "share", 4, "wrong samples among those with a reward of a right one's median or more",
           "experience", (None, 0.05)),
    Metric("judge_quality", "share", 4, "mean quality: 0 for a response that is not sent (empty; no final answer, with "
           "JUDGE_UNFINISHED=0); without those that the judge failed on", "reward"),
    Metric("judge_quality_right", "share", 4, "mean quality of judged samples with the gold answer", "experience"),
    Metric("judge_quality_wrong", "share", 4, "mean quality of judged samples without it, with or without an answer",
           "experience"),
    Metric("judge_calls", "", 4, "calls of the judge a sample", "reward"),
    Metric("judge_calls.*", "", 4, "calls of this model a sample", "reward"),
    Metric("judge_failures.*", "", 4, "calls of this model that gave no answer, a sample", "reward"),
    Metric("judge_failed", "share", 4, "samples that no model judged", "reward", (None, 0.05)),
    Metric("judge_fallbacks", "share", 4, "samples that another model than the first judged", "reward", (None, 0.2)),
    Metric("judge_fallbacks.*", "share", 4, "samples that this later model judged", "reward"),
    Metric("judge_cached", "share", 4, "samples whose judgement was there", "reward"),
    Metric("judge_seconds", "s", 4, "mean time from asking to judgement", "reward"),
    Metric("judge_tokens", "token", 4, "tokens that the judge was sent and answered, mean of the samples", "reward"),
    Metric("reward_missing", "share", 4, "samples without a reward: they take no part in the update", "openrlhf",
           (None, 0.01)),
    Metric("branches", "", 5, "times that a rollout's history was rewritten, each of which begins a sample",
           "rollout",
           when="ENVIRONMENT"),
    Metric("branches_dropped", "", 5, "samples of a rollout that are not trained on (MAX_BRANCHES)", "rollout",
           (None, 0.0),
           when="ENVIRONMENT"),
    Metric("token_advantage_mean", "", 5, "mean advantage over tokens; below 0 long samples are the worse ones",
           "experience"),
    Metric("advantage_length_correlation", "", 5, "correlation of advantage and length", "experience", (-0.5, 0.5)),
    Metric("unallocated_mass", "share", 5, "probability of rows of the vocabulary that stand for no token",
           "actor", (None, 1e-4)),
    Metric("actor_lr", "", 5, "learning rate, mean over the micro-batches of the step", "openrlhf"),
    Metric("optimizer_step", "", 5, "optimizer steps since the run started", "actor"),
    Metric("optimizer_steps", "", 5, "optimizer steps of this rollout; more than one is off-policy", "actor"),
    Metric("seconds.generate", "s", 5, "sampling, with the reward", "launcher"),
    Metric("reward_seconds", "s", 5, "from response to reward, judge included, mean of the samples", "reward"),
    Metric("seconds.old_log_probs", "s", 5, "log-probs of the sampling policy, and advantages", "launcher"),
    Metric("seconds.train", "s", 5, "forward, backward, optimizer", "launcher"),
    Metric("seconds.sync", "s", 5, "the adapter to the engines", "launcher"),
    Metric("seconds.save", "s", 5, "checkpoints", "launcher"),
    Metric("seconds.total", "s", 5, "the whole step", "launcher"),
    Metric("tokens_per_second", "token/s", 5, "sampled tokens over the whole step's time", "launcher"),
    Metric("sampled_tokens", "token", 5, "sampled in this step, by all samples", "experience"),
    Metric("sync_bytes", "byte", 5, "what one sync sends to each engine", "actor"),
    Metric("host_memory", "byte", 5, "memory in use on this machine", "launcher"),
    Metric("device_memory", "byte", 5, "most that PyTorch held on the device of any rank in this step; 0 on a CPU",
           "actor"),
    Metric("disk_free", "byte", 5, "left where checkpoints go", "launcher", (5e9, None)),
    Metric("lost_writes", "", 5, "lines that could not be written so far", "launcher", (None, 0.0)),
    Metric("reward_std", "", 5, "standard deviation of the reward, over samples", "experience"),
    Metric("group_reward_std", "", 5, "standard deviation of the reward in a group, mean of the groups", "openrlhf"),
    Metric("score", "", 5, "what the reward function gives as score: correctness", "openrlhf"),
    Metric("has_final", "share", 5, "samples with a final message", "reward"),
    Metric("reward_error", "share", 5, "samples that could not be graded", "reward", (None, 0.01)),
    Metric("judge_regrouped", "share", 5, "samples rewarded by correctness for the sake of their group", "reward",
           when="JUDGE_FALLBACK=group"),
    Metric("total_length", "token", 5, "mean length of prompt and response", "openrlhf"),
    Metric("prompt_length", "token", 5, "mean length of the prompt, where an executor of ours says it", "rollout",
           when="THINKING_BUDGET"),
    Metric("response_clip_ratio", "share", 5, "OpenRLHF's name for truncated", "openrlhf"),
    Metric("return", "", 5, "mean return: in GRPO the advantage", "openrlhf"),
    Metric("kl", "nat", 5, "estimated divergence from the reference, the model without its adapter; 0 with KL_COEF=0",
           "openrlhf"),
    Metric("logprobs_diff", "nat", 5, "mean log ratio of the policy (the engine's log-probs, where no pass is made) to "
           "the reference, over tokens; 0 with KL_COEF=0", "openrlhf"),
    Metric("vllm_kl", "nat", 5, "mean log ratio of the engine to the trainer, with importance correction", "openrlhf",
           (-0.01, 0.01),
           when="--enable_vllm_is_correction"),
    Metric("importance_cut", "share", 5, "tokens whose importance weight was truncated or set to 0", "actor",
           (None, 0.05),
           when="--enable_vllm_is_correction"),
    Metric("importance_weight", "", 5, "mean importance weight of the sampled tokens", "actor", (0.9, 1.1),
           when="--enable_vllm_is_correction"),
    Metric("advantage_clipped", "share", 5, "tokens whose advantage was clipped, with --advantage_clip", "actor",
           (None, 0.1),
           when="--advantage_clip"),
    Metric("length_limit", "token", 5, "most tokens that a response of this step may have", "experience"),
    Metric("length_penalty", "", 5, "mean of what the soft length penalty took off the rewards", "experience",
           when="OVERLONG_BUFFER"),
    Metric("dynamic_filtering_pass_rate", "", 5, "prompts that were kept, in percent of those sampled", "openrlhf",
           when="--dynamic_filtering"),
    Metric("entropy_loss", "nat", 5, "OpenRLHF's entropy, mean of the micro-batches", "openrlhf",
           when="--entropy_loss_coef"),
    Metric("metric_errors", "", 5, "parts of this line that could not be computed; the log says why", "actor",
           (None, 0.0)),
    Metric("dropped_values", "", 5, "numbers of this step that were not finite and are left out", "launcher",
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
