"""Runs that are drawn, healthy and with an ailment: binomial noise of prompts and rollouts, all speeds and sizes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Lines = list[dict[str, Any]]


@dataclass
class Draft:
    """The curves of a run before noise, by step; `columns` are metrics that nothing else decides."""

    rng: np.random.Generator
    steps: int
    prompts: int
    rollouts: int
    correct: np.ndarray
    held_out: np.ndarray
    cut: np.ndarray
    right: np.ndarray
    wrong: np.ndarray
    correlation: float
    columns: dict[str, np.ndarray]
    is_judged: bool
    is_scored: bool
    beside: float = 0.0
    flags: dict[str, Any] = field(default_factory=dict)

    def ramp(self, start: float, width: float) -> np.ndarray:
        """Return 0 up to a share of the run, then a rise to 1 over another share."""
        at = np.arange(1, self.steps + 1)
        return np.clip((at - start * self.steps) / max(width * self.steps, 1), 0, 1)


def draft(rng: np.random.Generator, steps: int) -> Draft:
    """Draw a healthy run: tiny or large, fast or slow, with or without a judge or a score of the user's own."""
    prompts, rollouts = [(8, 8), (8, 8), (4, 8), (16, 8), (64, 16), (4, 4)][rng.integers(6)]
    at = np.arange(1, steps + 1)
    learned = 1 - np.exp(-at / np.exp(rng.uniform(np.log(4), np.log(150))))
    start, gain = rng.uniform(0.1, 0.6), rng.uniform(0.1, 0.45)
    correct = np.clip(start + gain * learned, 0, 0.97)
    rate = 1e-5 * np.minimum(1, at / max(3, 0.03 * steps))

    def noisy(level: float | np.ndarray, spread: float) -> np.ndarray:
        return level * rng.lognormal(0, spread, steps)

    columns = {
        "actor_lr": rate,
        "optimizer_steps": np.full(steps, float(rng.integers(1, 4))),
        "ppo_kl": rng.normal(0, rng.uniform(5e-4, 2e-3), steps) * rate * 1e5,
        "ppo_clip_ratio": noisy(rng.uniform(2e-3, 8e-3), 0.4) * rate * 1e5,
        "grad_norm": noisy(rng.uniform(0.02, 0.5), rng.uniform(0.15, 0.45)),
        "policy_loss_max": noisy(0.08, 0.45),
        "policy_loss_spike": noisy(2.5, 0.4),
        "logprob_diff_mean": noisy(rng.uniform(0.004, 0.03), 0.12),
        "entropy": noisy(rng.uniform(0.1, 0.9) * rng.uniform(0.25, 1.05) ** learned, rng.uniform(0.03, 0.12)),
        "response_length": noisy(rng.uniform(60, 6000) * rng.uniform(0.8, 1.7) ** learned, 0.08),
        "repetition": np.clip(rng.normal(0.1, 0.02, steps), 0, 1),
        "advantage_length_correlation": rng.normal(-0.1, 0.1, steps),
        "token_advantage_mean": rng.normal(-0.01, 0.02, steps),
        "unallocated_mass": noisy(1e-7, 0.5),
        "judge_failed": (rng.random(steps) < 0.1) * rng.uniform(0, 0.06, steps),
        **{name: np.zeros(steps) for name in ("reward_missing", "token_mismatch", "lost_writes")},
    }
    quality = rng.uniform(0.6, 0.85) + 0.05 * learned
    is_judged = bool(rng.random() < 0.6)
    is_scored = bool(not is_judged and rng.random() < 0.4)
    held_out = np.concatenate([[start], correct]) + rng.normal(0, 0.05)
    cut, correlation = rng.uniform(0, 0.2) * (1 - 0.5 * learned), rng.uniform(0.75, 0.95)
    shape = (rng, steps, prompts, rollouts, correct, held_out.clip(0.02, 0.98), cut, quality, quality - 0.3)
    return Draft(*shape, correlation, columns, is_judged, is_scored)


def draw(run: Draft) -> tuple[Lines, Lines, dict[str, Any]]:
    """Return the lines of metrics.jsonl and eval.jsonl, and config.json's content."""
    rng, size, columns = run.rng, run.prompts * run.rollouts, run.columns
    odds = np.log(run.correct.clip(1e-4, 0.999) / (1 - run.correct.clip(1e-4, 0.999)))[:, None]
    right = rng.binomial(run.rollouts, 1 / (1 + np.exp(-odds - rng.normal(0, 1.2, (run.steps, run.prompts)))))
    correct = right.mean(axis=1) / run.rollouts
    columns["truncated"] = rng.binomial(size, run.cut.clip(0, 1)) / size
    columns["correct_whole"] = np.clip(correct * (1 + 0.1 * columns["truncated"]), 0, 1)
    correlations = run.correlation + rng.normal(0, 0.04, run.steps)
    columns["reward_correct_correlation_rolling"] = correlations
    spread = ((right == 0) | (right == run.rollouts)).mean(axis=1)
    columns.setdefault("zero_spread_groups", spread * (0.3 if run.is_judged else 1))
    weight = 0.6 if run.is_judged else 1.0
    columns |= {"correct": correct, "reward": weight * correct + run.beside}
    if run.is_judged:
        levels = {"right": run.right, "wrong": run.wrong}
        noise = 0.3 / size**0.5
        columns |= {f"judge_quality_{name}": level + rng.normal(0, noise, run.steps) for name, level in levels.items()}
        quality = correct * columns["judge_quality_right"] + (1 - correct) * columns["judge_quality_wrong"]
        columns["reward"] = columns["reward"] + 0.4 * quality
    if run.is_scored:
        columns = {name: values for name, values in columns.items() if not name.startswith(("correct", "reward_corr"))}
        columns |= {"score": 10 * correct, "reward": 10 * correct}
    rows = [
        {"step": at + 1, **{name: float(values[at]) for name, values in columns.items()}} for at in range(run.steps)
    ]
    evals, scale, problems = [], 10 if run.is_scored else 1, int(rng.choice([30, 64, 256]))
    for step in range(0, run.steps + 1, 10):
        solved = rng.binomial(problems, run.held_out[step].clip(0, 1)) / problems
        half = 1.96 * max(solved * (1 - solved) / problems, 0.25 / problems**2) ** 0.5
        ends = {"ci_low": scale * max(solved - half, 0), "ci_high": scale * min(solved + half, 1)}
        name = "score" if run.is_scored else "exact_match"
        evals.append({"step": step, name: scale * solved, **ends, "n": problems, "problems": problems})
    flags = {"rollout_batch_size": run.prompts, "n_samples_per_prompt": run.rollouts, "actor_learning_rate": 1e-5}
    judge = {"JUDGE": str(int(run.is_judged)), "CORRECTNESS_WEIGHT": str(weight)}
    return rows, evals, {"flags": flags | run.flags, "judge": judge, "judge_off": "" if run.is_judged else "off"}


def _set(metric: str, value: float, start: float = 0.5) -> Callable[[Draft], None]:
    def change(run: Draft) -> None:
        late = run.ramp(start, 0) == 1
        run.columns[metric] = np.where(
            late, value * run.rng.lognormal(0, 0.05, run.steps), run.columns.get(metric, 0.0)
        )

    return change


def _level(run: Draft, correct: float | np.ndarray, held_out: float | np.ndarray) -> None:
    run.correct, run.held_out = np.zeros(run.steps) + correct, np.concatenate([[0.3], np.zeros(run.steps) + held_out])


def fall(run: Draft) -> None:
    level = np.maximum(run.correct, 0.4) * (1 - 0.7 * run.ramp(0.5, 0.05))
    _level(run, level, level)


def flat(run: Draft) -> None:
    _level(run, 0.4, 0.4)
    run.right, run.wrong = np.zeros(run.steps) + 0.7, np.zeros(run.steps) + 0.4
    run.columns["entropy"] = 0.4 * run.rng.lognormal(0, 0.03, run.steps)
    run.columns |= {name: run.columns[name] * 0.01 for name in ("ppo_kl", "ppo_clip_ratio")}


def memorized(run: Draft) -> None:
    _level(run, 0.3 + 0.6 * run.ramp(0, 0.8), 0.3)


def hacked(run: Draft) -> None:
    run.is_judged, run.is_scored = True, False
    _level(run, 0.45 - 0.2 * run.ramp(0.4, 0.4), 0.4)
    run.right, run.wrong = 0.5 + 0.45 * run.ramp(0.4, 0.4), 0.35 + 0.55 * run.ramp(0.4, 0.4)


def diverged(run: Draft) -> None:
    fall(run)
    run.columns["ppo_kl"] = run.columns["ppo_kl"] + 0.15 * run.ramp(0.5, 0.05)


def dulled(run: Draft) -> None:
    _level(run, 0.45, 0.45)
    run.columns["entropy"] = 0.5 * np.exp(-3 * run.ramp(0.1, 0.4)) * run.rng.lognormal(0, 0.08, run.steps)


def shrunk(run: Draft) -> None:
    _level(run, 0.45, 0.45)
    run.columns["response_length"] = run.columns["response_length"] * (1 - 0.65 * run.ramp(0.3, 0.3))


def spiked(run: Draft) -> None:
    run.columns["grad_norm"][run.steps // 2 :: 7][:4] *= 40


def drifted(run: Draft) -> None:
    run.is_judged, run.is_scored = True, False
    run.right, run.wrong = (level - 0.3 * (run.ramp(0.5, 0) == 1) for level in (run.right, run.wrong))


def unpaid(run: Draft) -> None:
    run.is_judged, run.is_scored, run.correlation = True, False, 0.2


def cut(run: Draft) -> None:
    run.cut = run.cut + 0.55 * run.ramp(0.4, 0.1)


def lost(run: Draft) -> None:
    run.columns["grad_norm"] = np.where(run.ramp(0.5, 0) == 1, 0.0, run.columns["grad_norm"])
    run.columns["zero_spread_groups"] = np.full(run.steps, 0.3)


def without_spread(run: Draft) -> None:
    run.columns |= {"grad_norm": np.zeros(run.steps), "zero_spread_groups": np.ones(run.steps)}


def mislabeled(run: Draft) -> None:
    _level(run, 0.12, 0.3 + 0.35 * run.ramp(0, 0.3))


def outage(run: Draft) -> None:
    run.columns["judge_failed"][run.steps // 2 :][:6] = 0.7


def several(run: Draft) -> None:
    ratio = 0.3 * run.rng.lognormal(0, 0.1, run.steps)
    run.columns |= {"optimizer_steps": np.full(run.steps, 8.0), "ppo_clip_ratio": ratio}


AILMENTS: dict[str, tuple[Callable[[Draft], None], str]] = {
    "fall": (fall, "correctness_fall"),
    "flat": (flat, "flat_learning"),
    "memorized": (memorized, "over_fitting"),
    "hacked": (hacked, "reward_hacking"),
    "diverged": (diverged, "instability"),
    "dulled": (dulled, "entropy_collapse"),
    "shrunk": (shrunk, "length_collapse"),
    "spiked": (spiked, "spikes"),
    "drifted": (drifted, "judge_drift"),
    "unpaid": (unpaid, "judge_dependent"),
    "cut": (cut, "truncation"),
    "lost": (lost, "lost_gradient"),
    "without_spread": (without_spread, "no_gradient"),
    "mislabeled": (mislabeled, "doubtful_labels"),
    "outage": (outage, "judge_outage"),
    "several": (several, "off_policy"),
    "apart": (_set("logprob_diff_mean", 0.15), "mismatch"),
    **{
        metric: (_set(metric, value), f"out_of_range:{metric}")
        for metric, value in {"repetition": 0.5, "reward_missing": 0.2, "token_mismatch": 0.1, "lost_writes": 1.0,
                              "unallocated_mass": 0.01, "token_advantage_mean": -0.3, "tool_errors": 1.6}.items()
    },
}  # fmt: skip


def make(seed: int, ailment: str | None = None) -> tuple[Lines, Lines, dict[str, Any]]:
    """Return a run of 20 to 450 steps, of 60 or more with an ailment."""
    rng = np.random.default_rng(seed)
    run = draft(rng, int(np.exp(rng.uniform(np.log(60 if ailment else 20), np.log(450)))))
    if ailment:
        AILMENTS[ailment][0](run)
    return draw(run)
