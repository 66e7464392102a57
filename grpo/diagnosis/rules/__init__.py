"""The rules: each looks for one pathology in a run.

A rule returns its findings, or a sentence that says what is in order. It raises NotJudged if steps or columns are
missing. Healthy ranges come from grpo.metrics.metric_schema.
"""

from collections.abc import Callable

from grpo.diagnosis.finding import Finding
from grpo.diagnosis.history import RunHistory
from grpo.diagnosis.remedies import OUT_OF_RANGE
from grpo.diagnosis.rules import agreement, correctness, judge, labels, learning, ranges, rates, responses, update

Rule = Callable[[RunHistory], list[Finding] | str]

RULES: dict[str, Rule] = {
    "flat_learning": learning.flat_learning,
    "over_fitting": learning.over_fitting,
    "correctness_fall": correctness.correctness_fall,
    "reward_hacking": learning.reward_hacking,
    "doubtful_labels": labels.doubtful_labels,
    "no_gradient": update.no_gradient,
    "lost_gradient": update.lost_gradient,
    "masked_gradient": update.masked_gradient,
    "instability": update.instability,
    "spikes": update.spikes,
    "lr_shock": rates.lr_shock,
    "off_policy": rates.off_policy,
    "mismatch": agreement.mismatch,
    "passes_differ": agreement.passes_differ,
    "length_collapse": responses.length_collapse,
    "entropy_collapse": responses.entropy_collapse,
    "entropy_rise": responses.entropy_rise,
    "truncation": responses.truncation,
    "judge_outage": judge.judge_outage,
    "judge_drift": judge.judge_drift,
    "judge_dependent": judge.judge_dependent,
    "out_of_range": ranges.out_of_range,  # one finding per metric, named out_of_range:METRIC
}


def _ranges(*metrics: str) -> tuple[str, ...]:
    return tuple(OUT_OF_RANGE + metric for metric in metrics)


# What each finding may explain, directly. It is listed beside its cause only if it began at another time.
_UPDATE = _ranges(
    *("ppo_kl", "ppo_clip_ratio", "clip_ratio_low", "clip_ratio_high", "grad_norm", "grad_norm_max"),
    *("policy_loss_spike", "importance_cut", "importance_weight", "vllm_kl"),
)
_DIFFERENCE = _ranges(
    *("logprob_diff_mean", "logprob_diff_max", "logprob_diff_first", "logprob_diff_last", "improbable_tokens"),
    *("importance_cut", "importance_weight", "vllm_kl"),
)
_RUINED = (
    *("correctness_fall", "truncation", "length_collapse", "entropy_collapse", "entropy_rise", "spikes"),
    *_ranges("answered", "repetition", "improbable_tokens", "unallocated_mass", "truncated"),
)
_PAID = _ranges("high_reward_wrong", "reward_correct_correlation", "reward_correct_correlation_rolling")
EXPLAINS = {
    OUT_OF_RANGE + "reward_correct_correlation": ("correctness_fall", *_PAID),
    "instability": (*_UPDATE, *_RUINED),
    "lr_shock": ("instability", "off_policy", *_UPDATE, *_RUINED),
    "off_policy": ("instability", "correctness_fall", *_UPDATE),
    "mismatch": ("instability", "off_policy", "correctness_fall", *_DIFFERENCE, *_UPDATE),
    "passes_differ": ("instability", "off_policy", *_UPDATE),
    "spikes": ("correctness_fall", *_ranges("policy_loss_spike", "grad_norm", "grad_norm_max")),
    "length_collapse": ("correctness_fall",),
    "entropy_collapse": ("correctness_fall", *_ranges("zero_spread_groups")),
    "entropy_rise": ("correctness_fall", *_ranges("improbable_tokens", "repetition", "answered")),
    "truncation": ("correctness_fall", *_ranges("truncated", "answered", "advantage_length_correlation")),
    "flat_learning": _ranges("zero_spread_groups"),
    "judge_drift": ("reward_hacking", *_PAID),
    "judge_outage": ("reward_hacking", "judge_drift", *_ranges("judge_failed", "judge_fallbacks", "reward_missing")),
    "judge_dependent": _PAID,
    "no_gradient": ("flat_learning", "doubtful_labels", *_ranges("zero_spread_groups")),
    "lost_gradient": ("flat_learning",),
    "masked_gradient": ("flat_learning",),
    "reward_hacking": ("judge_dependent", "flat_learning", "correctness_fall", *_PAID),
}
