"""The rules: each looks for one pathology in a run.

A rule returns the findings, or in a sentence what it found in order, and raises NotJudged where it lacks steps or
columns. The ends of healthy ranges are those of grpo.metric_schema.
"""

from collections.abc import Callable

from grpo.diagnosis.finding import Finding
from grpo.diagnosis.history import History
from grpo.diagnosis.rules import judge, learning, responses, update

Rule = Callable[[History], list[Finding] | str]

RULES: dict[str, Rule] = {
    "flat_learning": learning.flat_learning,
    "over_fitting": learning.over_fitting,
    "correctness_fall": learning.correctness_fall,
    "reward_hacking": learning.reward_hacking,
    "instability": update.instability,
    "loss_spikes": update.loss_spikes,
    "lr_shock": update.lr_shock,
    "off_policy": update.off_policy,
    "mismatch": update.mismatch,
    "length_collapse": responses.length_collapse,
    "entropy_collapse": responses.entropy_collapse,
    "truncation": responses.truncation,
    "judge_outage": judge.judge_outage,
    "judge_drift": judge.judge_drift,
    "judge_dependent": judge.judge_dependent,
}

# What follows from a finding, and is not listed beside it unless it began well before.
EXPLAINS = {
    "instability": ("entropy_collapse", "correctness_fall"),
    "lr_shock": ("instability", "off_policy", "correctness_fall"),
    "off_policy": ("instability", "correctness_fall"),
    "mismatch": ("instability", "correctness_fall"),
    "length_collapse": ("correctness_fall",),
    "entropy_collapse": ("correctness_fall",),
    "truncation": ("correctness_fall",),
    "judge_drift": ("reward_hacking",),
    "judge_outage": ("reward_hacking", "judge_drift"),
    "reward_hacking": ("judge_dependent", "flat_learning", "correctness_fall"),
}
