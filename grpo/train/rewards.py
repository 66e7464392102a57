"""Checks the rewards of a batch, and gives every rollout a complete set of numeric logs."""

import logging
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch

from grpo.rollout.rows import Sample
from grpo.stack.problem import UserError
from reward import settings

logger = logging.getLogger("openrlhf.grpo.rewards")

_REASONS = {  # why a rollout has no reward, with the remedy, by the log that counts it
    "ended_by_error": (
        "ended by an error of the environment, which the engines' log has",
        "try the environment with ./train_grpo.sh --check",
    ),
    "token_mismatch": (
        "had log-probs from the engine that are not finite or belong to other tokens, which logs/driver.log names",
        "if an update destroyed the adapter, continue from an earlier step with a lower --actor_learning_rate",
    ),
    "ended_by_length": ("ran out of tokens before a first turn", "raise --prompt_max_len"),
    "ended_by_time": ("ran out of time before a first turn", "raise --rollout_seconds"),
}
_FAULT_OF_REWARD = (
    "are of a reward function that failed",
    "its first traceback is in logs/driver.log of the run directory; ./train_grpo.sh --check calls it once",
)


def scalar(value: object) -> float:
    """Return a number, or a tensor or list that starts with one, as a float; NaN for anything else.

    A string or None from a reward function would otherwise raise far from its cause.
    """
    if isinstance(value, torch.Tensor):
        value = value.flatten().tolist()
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return float(value) if isinstance(value, Real) else math.nan


def read_score(rewards_info: dict[str, Any]) -> Any:
    """Return the score of one reward result, or its reward if the score is missing. A score of 0.0 is a score."""
    score = rewards_info.get("scores")
    return rewards_info.get("rewards") if score is None else score


def complete(samples: Sequence[Sample], group_size: int) -> None:
    """Check the reward of every rollout of a step, and give all rollouts the same logs, in place.

    - With --judge_fallback group, a group with a failed judgement is rewarded by correctness alone, so that one measure
      compares its rollouts. ``info["judge_regrouped"]`` counts them.
    - A reward is missing if the reward function failed, or --judge_fallback mean_quality had no mean yet. It becomes
      NaN, and ``info["reward_missing"]`` counts it: :mod:`grpo.train.advantages` keeps the rollout out of the update
      and of its group's mean.
    - A missing log, including ``info["reward"]`` and ``info["score"]``, becomes the mean of the batch. The step's
      average is then over the rollouts that have it: a group without any reward counts as nothing, not as 0.
    - ``missing`` names what a rollout lacked; :func:`grpo.run.run_log.describe_samples` records it.

    Args:
        samples: the rollouts of a step, those of a group next to each other.

    Raises:
        UserError: if no rollout has a reward and the judge is not the cause.
    """
    rewards = torch.tensor([scalar(sample.rewards) for sample in samples], dtype=torch.float32)
    if settings.variables().get("JUDGE_FALLBACK") == "group":
        rewards = _reward_by_correctness(samples, rewards, group_size)
    missing = ~rewards.isfinite()  # an infinite reward would make every advantage of its group NaN
    if missing.all() and not _read_log(samples, "judge_failed").nan_to_num().any():
        raise explain_missing_rewards(samples)
    known = torch.where(missing, math.nan, rewards)
    logged = torch.where(missing, known.nanmean().nan_to_num(0.0), rewards)  # metrics need one for each
    for sample, reward, mean, gone in zip(samples, known, logged, missing, strict=True):
        sample.missing = {"reward"} if gone else set()
        sample.rewards = reward.view(1)  # NaN if missing: the update must see that. The log has the mean
        sample.info["reward"] = mean.view(1)
        sample.info["reward_missing"] = gone.float().view(1)
        if sample.scores is None or not sample.scores.isfinite().all():
            sample.missing.add("score")
            sample.scores = mean.view(1)
            sample.info["score"] = torch.where(gone, math.nan, mean).view(1)
    if missing.any():
        logger.warning("%d of %d rollouts have no reward; the update leaves them out", missing.sum(), len(samples))
    _complete_logs(samples)


def explain_missing_rewards(samples: Sequence[Sample]) -> UserError:
    """Return the error of a batch in which no rollout has a reward, with the reasons that were counted."""
    counts = {key: int((_read_log(samples, key) > 0).sum()) for key in _REASONS}
    found = [(counts[key], *_REASONS[key]) for key in counts if counts[key]] or [(len(samples), *_FAULT_OF_REWARD)]
    reasons = ", ".join(f"{number} {reason}" for number, reason, _ in found)
    return UserError(
        f"none of {len(samples)} rollouts has a reward: {reasons}", "; ".join(remedy for *_, remedy in found)
    )


def _reward_by_correctness(samples: Sequence[Sample], rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return `rewards` with correctness in place of the rewards of groups with a failed judgement.

    Args:
        rewards: float32 ``[len(samples)]``.
    """
    failed, correct = _read_log(samples, "judge_failed"), _read_log(samples, "correct")
    if failed.isnan().all():
        return rewards
    is_hit = (failed.view(-1, group_size) > 0).any(-1).repeat_interleave(group_size)
    for sample, hit in zip(samples, is_hit, strict=True):
        sample.info["judge_regrouped"] = hit.float().view(1)
    return torch.where(is_hit, correct, rewards)


def _read_log(samples: Sequence[Sample], key: str) -> torch.Tensor:
    """Return a log of all rollouts, float32 ``[len(samples)]``; NaN if missing."""
    return torch.tensor([scalar(sample.info.get(key)) for sample in samples], dtype=torch.float32)


def _complete_logs(samples: Sequence[Sample]) -> None:
    keys = dict.fromkeys(key for sample in samples for key in sample.info)
    # Each environment of several has numbers of its own.
    level = logging.DEBUG if any(key.startswith("environment_share.") for key in keys) else logging.WARNING
    for key in keys:
        values = _read_log(samples, key)
        finite = values.isfinite()
        if finite.all():
            continue
        for sample, is_there in zip(samples, finite, strict=True):
            sample.info.pop(key, None)
            if not is_there:
                sample.missing.add(key)
        if finite.any():
            for sample, value in zip(samples, torch.where(finite, values, values[finite].mean()), strict=True):
                sample.info[key] = value.view(1)
        logger.log(level, "log %r is missing or not finite in %d of %d rollouts", key, (~finite).sum(), len(samples))
