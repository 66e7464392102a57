"""What a rollout brings back to the trainer: rewards and numeric logs that are complete for every sample."""

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Sequence
from copy import copy
from numbers import Real
from typing import Any

import ray
import torch

from reward import settings

logger = logging.getLogger("openrlhf.grpo.rollout")

FIRST_STAGE = "train 1"


class RewardError(RuntimeError):
    """No sample of a rollout got a reward."""


def scalar(value: Any) -> float:
    """Return a number, or a tensor or list that starts with one, as a float; NaN for anything else.

    OpenRLHF puts each log through ``torch.tensor([value])``: a string or None raises there, far from its cause.
    """
    if isinstance(value, torch.Tensor):
        value = value.flatten().tolist()
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return float(value) if isinstance(value, Real) else math.nan


def score_of(rewards_info: dict[str, Any]) -> Any:
    """Return the score of one reward result, or its reward where it has none. A score of 0.0 is a score."""
    score = rewards_info.get("scores")
    return rewards_info.get("rewards") if score is None else score


def complete(samples: Sequence[Any], group_size: int) -> None:
    """Give every sample of a rollout batch a reward and the same logs, in place.

    - With JUDGE_FALLBACK=group, a group with a sample that the judge failed on is rewarded by correctness alone: its
      samples are compared by one measure. ``info["judge_regrouped"]`` counts them.
    - A missing reward (the reward function failed, or JUDGE_FALLBACK=mean_quality had no mean yet) becomes the mean of
      its group, so that it does not move the baseline of the others. ``info["reward_missing"]`` counts it, and
      :func:`grpo.multi_turn.branches.give_advantages` takes the sample out of the update.
    - A missing log, ``info["reward"]`` and ``info["score"]`` included, becomes the mean of the batch, so that the
      step's average is that of the samples that have it: a group without any reward counts as nothing, not as 0.
    - ``missing`` names what a sample did not have; :func:`grpo.run_log.describe_samples` says so.

    Args:
        samples: ``Experience`` of one sample each, the samples of a group next to each other.
        group_size: samples a prompt.

    Raises:
        RewardError: where no sample has a reward, and not for want of the judge.
    """
    if samples[0].rewards is None:  # a reward model scores them later
        return
    rewards = torch.tensor([scalar(sample.rewards) for sample in samples], dtype=torch.float32)
    if settings.variables().get("JUDGE_FALLBACK") == "group":
        rewards = _regroup(samples, rewards, group_size)
    missing = ~rewards.isfinite()
    if missing.all() and not _log(samples, "judge_failed").nan_to_num().any():
        raise RewardError(_no_reward_message(samples))
    known = torch.where(missing, math.nan, rewards)
    logged = torch.where(missing, known.nanmean().nan_to_num(0.0), rewards)  # OpenRLHF reads it: never left out
    for sample, reward, mean, gone in zip(samples, fill(known, group_size), logged, missing, strict=True):
        sample.missing = {"reward"} if gone else set()
        sample.rewards = reward.view(1)
        sample.info["reward"] = mean.view(1)
        sample.info["reward_missing"] = gone.float().view(1)
        if sample.scores is None or not sample.scores.isfinite().all():
            sample.missing.add("score")
            sample.scores = mean.view(1)
            sample.info["score"] = torch.where(gone, math.nan, mean).view(1)
    if missing.any():
        logger.warning("%d of %d samples have no reward; they take no part in the update", missing.sum(), len(samples))
    _complete_logs(samples)


def _no_reward_message(samples: Sequence[Any]) -> str:
    """Return why no sample has a reward, as far as that can be told."""
    if "ended_by_error" not in samples[0].info:
        return (
            "the reward function failed for every sample of the rollout: its error stands in the engines' log; "
            "try it by hand on a line of samples/"
        )
    faults, by_length, by_time, mismatched = (
        int((_log(samples, key) > 0).sum())
        for key in ("ended_by_error", "ended_by_length", "ended_by_time", "token_mismatch")
    )
    if not faults:  # a turn that had no room or no time to begin, or tokens that are not the engine's
        return (
            f"none of {len(samples)} rollouts has a reward, and no error of the environment ended one: {by_length} ran "
            f"out of tokens, {by_time} out of time, and {mismatched} had other tokens than the engine, whose log names "
            "them; raise PROMPT_MAX_LEN where the first messages have no room, and ROLLOUT_SECONDS where time is short"
        )
    return (
        f"the environment gave none of {len(samples)} rollouts a reward, and an error of its own ended {faults}: it "
        "stands in the engines' log; try it by hand with python -m eval.conversations"
    )


def known_scores(generator: Any, group: Sequence[Any]) -> list[float]:
    """Return the scores of the samples of a group that have one, by which dynamic filtering judges it; NaN for none.

    A group without any is left out, and another prompt drawn: an error that hits every rollout would use up all prompts
    in silence.

    Args:
        generator: OpenRLHF's ``SamplesGenerator``, after :func:`begin_batch`.
        group: ``Experience`` of one sample each.

    Raises:
        RewardError: where as many groups as a batch has come in a row without a score.
    """
    scores = [float(sample.scores[0]) for sample in group if sample.scores.isfinite().all()]
    if scores:
        generator.unscored.clear()
        return scores
    generator.unscored += group
    if len(generator.unscored) >= generator.args.rollout_batch_size * generator.args.n_samples_per_prompt:
        raise RewardError(_no_reward_message(generator.unscored))
    return [math.nan]


def fill(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return `rewards` with the mean of its group in place of each NaN; 0 in a group that has no other."""
    groups = rewards.view(-1, group_size)
    return torch.where(groups.isnan(), groups.nanmean(-1, keepdim=True).nan_to_num(0.0), groups).view(-1)


def _regroup(samples: Sequence[Any], rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return `rewards` with correctness in place of those of a group that was not judged whole.

    Args:
        rewards: float32 ``[len(samples)]``.
    """
    failed, correct = _log(samples, "judge_failed"), _log(samples, "correct")
    if failed.isnan().all():
        return rewards
    is_hit = (failed.view(-1, group_size) > 0).any(-1).repeat_interleave(group_size)
    for sample, hit in zip(samples, is_hit, strict=True):
        sample.info["judge_regrouped"] = hit.float().view(1)
    return torch.where(is_hit, correct, rewards)


def _log(samples: Sequence[Any], key: str) -> torch.Tensor:
    """Return a log of all samples, NaN where it is missing; float32 ``[len(samples)]``."""
    return torch.tensor([scalar(sample.info.get(key)) for sample in samples], dtype=torch.float32)


def _complete_logs(samples: Sequence[Any]) -> None:
    keys = dict.fromkeys(key for sample in samples for key in sample.info)
    for key in keys:
        values = _log(samples, key)
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
        logger.warning("log %r is missing or not finite in %d of %d samples", key, (~finite).sum(), len(samples))


def samples_a_prompt(args: Any, generate_kwargs: dict[str, Any]) -> int:
    """Return how many samples a prompt gets: the call's own number (an evaluation has one), else that of training."""
    return generate_kwargs.get("n_samples_per_prompt", args.n_samples_per_prompt)


def begin_stage(generator: Any, name: str) -> None:
    """Name what is sampled from here on, for instance "train 7" or "eval 10": the seeds follow from it.

    The first step seeds the order of the prompts, too, for which the loader has drawn a seed of its own in a process
    without one; what is resumed goes on in the order of its checkpoint.

    Args:
        generator: OpenRLHF's ``SamplesGenerator``.
    """
    if getattr(generator, "stage", None) != name:  # a step that goes on in the next episode continues its stage
        generator.stage, generator.drawn = name, Counter()
        if name == FIRST_STAGE:
            generator.prompts_dataloader.sampler.generator.manual_seed(generator.args.seed)


def seeded(generator: Any, params: Any, prompt: str) -> Any:
    """Return sampling parameters whose seed follows from the run's seed, the stage and the prompt.

    So a step that is done again after a resume samples the same responses, whichever engine gets the prompt and in
    whichever order. A prompt that a stage draws twice gets other samples the second time.

    Args:
        generator: OpenRLHF's ``SamplesGenerator``, after :func:`begin_stage`.
        params: vLLM's ``SamplingParams``; stays as it is.
    """
    generator.drawn[prompt] += 1
    mine = copy(params)
    mine.seed = seed_of(generator, prompt)
    return mine


def seed_of(generator: Any, prompt: str) -> int:
    """Return the seed of the prompt's latest draw; its samples have this one, the next, and so on."""
    text = f"{generator.args.seed} {generator.stage} {generator.drawn[prompt]} {prompt}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def in_order(generator: Any, samples: list[Any]) -> list[Any]:
    """Return the samples of a batch in the order in which their prompts were drawn, carried ones first.

    They come back in the order in which engines finish, from which micro-batches and optimizer steps would follow.

    Args:
        samples: ``Experience`` of one sample each; those of a group stay next to each other.
    """
    place = {prompt: number for number, prompt in enumerate(generator.drawn)}
    return sorted(samples, key=lambda sample: place.get(sample.prompts[0], -1))


def reward_of(args: Any, response: dict[str, Any], key: str) -> float | None:
    """Return ``response[key]`` as a number (NaN where it is missing), or None where a reward model scores later."""
    return scalar(response.get(key)) if args.remote_rm_url else None


def begin_batch(generator: Any, num_prompts: int, dynamic_filtering: bool) -> tuple[list[Any], int]:
    """Return the samples that :func:`carry_over` kept, and how many prompts are to be drawn beside them."""
    carried: list[Any] = []
    if dynamic_filtering:
        carried, generator.carried_samples = getattr(generator, "carried_samples", []), []
    generator.unscored = []
    return carried, num_prompts - len(carried) // generator.args.n_samples_per_prompt


def carry_over(generator: Any, accepted: list[Any], pending: list[Any]) -> None:
    """Keep samples of an unfinished batch for the next rollout, and cancel what is still running.

    The prompt loader ran out while dynamic filtering was filling a batch. Stock drops what was accepted; no training
    step lies between this rollout and the next, so the samples are still on-policy there.
    """
    for reference in pending:
        ray.cancel(reference)
    generator.carried_samples = accepted
