"""Synthetic runs: lines of metrics.jsonl and eval.jsonl with the noise of real ones, healthy or sick.

The noise-free run (`Latent`: skill, length, entropy, ...) is bent by `synthetic_ills` and then observed through
samples. These have problems of different difficulty, groups of samples of one problem, responses cut at the limit,
judgements in sixteenths, and heavy-tailed gradient norms. Noise of neighboring steps is correlated.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grpo.run.estimators import interval
from tests.grpo.diagnosis.synthetic_latent import Ill, Latent, draw_healthy


@dataclass
class SyntheticRun:
    """Attributes:
    onsets: the step at which each pathology of the run begins; {} for a healthy one.
    """

    rows: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    config: dict[str, Any]
    onsets: dict[str, int] = field(default_factory=dict)


def make_run(seed: int, ill: tuple[str, Ill] | None = None, strength: float = 1.0, least: int = 20) -> SyntheticRun:
    """Return a run.

    Args:
        ill: a pathology's name and its effect on a run; None for a healthy one.
        strength: at 1.0 a practitioner would call it obvious.
        least: fewest steps; the most are 150.
    """
    rng = np.random.default_rng([seed, *(ord(letter) for letter in ill[0])] if ill else seed)
    latent = draw_healthy(rng, least)
    if ill and ("judge" in ill[0] or ill[0] == "reward_hacking"):
        latent.judged = True
    onsets = {ill[0]: ill[1](latent, rng, strength)} if ill else {}
    # Over-fitting needs evaluations; some of the other runs have none.
    evaluated = (ill is not None and ill[0] == "over_fitting") or rng.random() > 0.15
    run = SyntheticRun(*_observe(latent, rng, evaluated), _make_config(latent), onsets)
    _lose_some(run, rng, columns=ill is None)
    return run


def _observe(
    latent: Latent, rng: np.random.Generator, evaluated: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    profile = latent.profile
    difficulty = rng.normal(0, latent.spread, profile.train_problems)
    held_out = rng.normal(0, latent.spread, profile.eval_problems)
    rows, evals = [], []
    for step in range(latent.steps + 1):
        if step:
            rows.append(_observe_step(latent, rng, step, difficulty))
        if evaluated and (step % 10 == 0 or step == latent.steps):
            evals.append(_evaluate(latent, rng, step, held_out))
    return rows, evals


def _evaluate(latent: Latent, rng: np.random.Generator, step: int, difficulty: np.ndarray) -> dict[str, Any]:
    samples = latent.profile.eval_samples
    chance = 1 / (1 + np.exp(-(latent.held_out_skill[max(step - 1, 0)] - difficulty)))
    rates = rng.binomial(samples, chance) / samples
    low, high = interval(rates.tolist(), samples)
    problems = len(difficulty)
    return {
        "step": step,
        "time": 1.8e9 + 60 * step,
        "exact_match": float(rates.mean()),
        "ci_low": low,
        "ci_high": high,
        "n": problems,
        "samples": problems * samples,
    }


def _observe_step(latent: Latent, rng: np.random.Generator, step: int, difficulty: np.ndarray) -> dict[str, Any]:
    profile, t = latent.profile, step - 1
    shape = (profile.prompts, profile.samples)
    prompts = rng.choice(len(difficulty), profile.prompts, replace=False)
    effect = rng.normal(0, 0.25, (profile.prompts, 1))
    lengths = np.exp(latent.log_length[t] + effect + rng.normal(0, 0.33, shape))
    cut = lengths >= profile.limit
    chance = 1 / (1 + np.exp(-(latent.skill[t] - difficulty[prompts])))
    correct = rng.random(shape) < chance[:, None]
    correct = np.where(rng.random(shape) < latent.agree[t], correct[:, :1], correct) & ~cut
    columns = {
        "policy_loss": float(rng.normal(0, 0.004) + 0.3 * rng.standard_t(3) * 0.01),
        "actor_lr": float(latent.rate[t]),
        "response_length": float(np.minimum(lengths, profile.limit).mean()),
        "truncated": float(cut.mean()),
        "correct": float(correct.mean()),
        "answered": float((~cut).mean()),
        **_observe_reward(latent, rng, t, correct, cut),
        **_observe_update(latent, rng, t),
    }
    largest = max(abs(columns["advantage_min"]), columns["advantage_max"], 0.05)
    columns["policy_loss_max"] = float(largest * rng.uniform(0.4, 1.0) * latent.loss[t])
    columns["policy_loss_spike"] = float(rng.lognormal(math.log(4), 0.6) * max(latent.loss[t] / 2, 1))
    seconds = {"generate": 20.0, "train": 30.0, "total": 55.0}
    return {"step": step, "time": 1.8e9 + 60 * step, "seconds": seconds, "lost_writes": 0, **columns}


def _observe_reward(
    latent: Latent, rng: np.random.Generator, t: int, correct: np.ndarray, cut: np.ndarray
) -> dict[str, float | None]:
    reward, logs = correct.astype(float), {}
    if latent.judged:
        mean = np.where(correct, latent.right[t], latent.wrong[t])
        quality = np.round(16 * np.clip(rng.normal(mean, latent.quality_noise), 0, 1)) / 16 * ~cut
        failed = (rng.random(correct.shape) < latent.failed[t]) & ~cut
        asked = ~failed & ~cut
        weight = latent.correctness_weight
        reward = np.where(failed, reward, weight * reward + (1 - weight) * quality)
        logs = {
            "judge_failed": float(failed.mean()),
            "judge_fallbacks": float((asked & (rng.random(correct.shape) < latent.fallbacks[t])).mean()),
            "judge_quality": _compute_mean(quality[asked]),
            "judge_quality_right": _compute_mean(quality[asked & correct]),
            "judge_quality_wrong": _compute_mean(quality[asked & ~correct]),
        }
    advantage = reward - reward.mean(axis=1, keepdims=True)
    mixed = correct.any() and not correct.all()
    high = reward >= np.median(reward[correct]) if correct.any() else np.zeros_like(correct)
    return {
        "reward": float(reward.mean()),
        **logs,
        "advantage_mean": float(advantage.mean()),
        "advantage_std": float(advantage.std()),
        "advantage_min": float(advantage.min()),
        "advantage_max": float(advantage.max()),
        "zero_spread_groups": float((np.ptp(reward, axis=1) == 0).mean()),
        "reward_correct_correlation": float(np.corrcoef(reward.ravel(), correct.ravel())[0, 1]) if mixed else None,
        "high_reward_wrong": _compute_mean((~correct)[high]),
    }


def _observe_update(latent: Latent, rng: np.random.Generator, t: int) -> dict[str, float]:
    low = rng.uniform(0.3, 0.7)
    return {
        "ppo_kl": float(latent.kl[t] * (1 if rng.random() < 0.8 else -1)),
        "ppo_clip_ratio": float(min(latent.clip[t], 1)),
        "clip_ratio_low": float(low * min(latent.clip[t], 1)),
        "clip_ratio_high": float((1 - low) * min(latent.clip[t], 1)),
        "grad_norm": float(latent.grad[t]),
        "grad_norm_max": float(latent.grad[t] * (1 + 0.3 * abs(rng.standard_t(3)))),
        "optimizer_steps": float(latent.updates),
        "optimizer_step": float(latent.updates * (t + 1)),
        "entropy": float(latent.entropy[t] * latent.sure[t]),
        "logprob_diff_mean": float(latent.diff[t]),
        "logprob_diff_max": float(latent.diff[t] * rng.lognormal(math.log(40), 0.4)),
        "improbable_tokens": float(latent.diff[t] * rng.uniform(0.001, 0.02)),
    }


def _compute_mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if values.size else None


def _make_config(latent: Latent) -> dict[str, Any]:
    profile = latent.profile
    flags = {
        "actor_learning_rate": profile.rate,
        "rollout_batch_size": profile.prompts,
        "n_samples_per_prompt": profile.samples,
        "train_batch_size": profile.prompts * profile.samples // latent.updates,
        "generate_max_len": profile.limit,
    }
    weight = latent.correctness_weight
    judge = {"JUDGE": "1", "CORRECTNESS_WEIGHT": f"{weight:g}", "QUALITY_WEIGHT": f"{1 - weight:g}"}
    return {"name": profile.name, "flags": flags, "judge": judge if latent.judged else {"JUDGE": "0"}}


# Columns that other versions did not log.
_NEWER = ("entropy", "logprob_diff_mean", "judge_quality_right", "high_reward_wrong", "policy_loss_max", "actor_lr")


def _lose_some(run: SyntheticRun, rng: np.random.Generator, columns: bool) -> None:
    """Remove what real files lack: non-finite numbers, an evaluation, columns of newer versions."""
    for row in run.rows:
        for name in ("grad_norm", "correct", "ppo_kl", "entropy"):
            if rng.random() < 0.005:
                row[name] = None
    if len(run.evals) > 5 and rng.random() < 0.2:
        del run.evals[int(rng.integers(1, len(run.evals) - 1))]
    if columns and rng.random() < 0.2:
        for name in rng.choice(_NEWER, 3, replace=False):
            for row in run.rows:
                row.pop(name, None)
