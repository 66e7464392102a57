"""The noise-free course of a synthetic run: skill, length, entropy and others, healthy."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Profile:
    """The scale of a run: lengths in tokens; updates are optimizer steps per rollout."""

    name: str
    length: float
    limit: int
    rate: float
    prompts: int
    samples: int
    updates: tuple[int, ...]
    train_problems: int
    eval_problems: int
    eval_samples: int


PROFILES = (
    Profile("tiny", 30, 48, 2e-3, 16, 8, (1, 2), 1024, 256, 1),
    Profile("20b", 900, 2048, 1e-5, 16, 8, (1, 4), 117, 90, 1),
    Profile("120b", 1700, 3072, 1e-6, 8, 8, (8,), 72, 18, 4),
    Profile("120b, long", 4000, 8192, 3e-6, 8, 8, (1, 8), 117, 18, 8),
)


@dataclass
class Latent:
    """A noise-free run; arrays are [T], over the steps.

    Attributes:
        skill, held_out_skill: added to a problem's log-odds of being solved.
        right, wrong: mean quality that the judge gives right and wrong samples.
        agree: chance that a sample of a group is a copy of its first, as a single mode of answering produces.
        failed: chance that no model judges a sample.
        fallbacks: chance that a model other than the first judges it.
        sure: factor on the entropy, which falls as the answers are learned.
        loss: factor on the largest loss of the step.
        rate: learning rate.
    """

    profile: Profile
    steps: int
    warm_up: int
    updates: int
    judged: bool
    spread: float
    quality_noise: float
    correctness_weight: float
    skill: np.ndarray
    held_out_skill: np.ndarray
    right: np.ndarray
    wrong: np.ndarray
    agree: np.ndarray
    log_length: np.ndarray
    entropy: np.ndarray
    sure: np.ndarray
    kl: np.ndarray
    clip: np.ndarray
    grad: np.ndarray
    loss: np.ndarray
    diff: np.ndarray
    failed: np.ndarray
    fallbacks: np.ndarray
    rate: np.ndarray


Ill = Callable[[Latent, np.random.Generator, float], int]


def draw_correlated(rng: np.random.Generator, n: int, sigma: float, r: float = 0.4) -> np.ndarray:
    """Return normal noise of standard deviation `sigma` in which each value depends on the previous one; [n]."""
    noise = rng.normal(0, sigma, n)
    for index in range(1, n):
        noise[index] = r * noise[index - 1] + math.sqrt(1 - r * r) * noise[index]
    return noise


def draw_healthy(rng: np.random.Generator, least: int) -> Latent:
    profile = PROFILES[rng.integers(len(PROFILES))]
    n = int(rng.integers(least, 151))
    t = np.arange(n) / n
    shapes = (t, 1 - np.exp(-4 * t), 1 / (1 + np.exp(-10 * (t - 0.5))))
    learned = rng.uniform(0.9, 3.0) * shapes[rng.integers(3)]
    start = rng.uniform(-2.0, 0.3)
    warm_up = max(1, round(n * rng.uniform(0.02, 0.1)))
    updates = int(rng.choice(profile.updates))
    off_start = float(updates > 1)  # the first optimizer step of a rollout has a ratio of 1
    rate = profile.rate * np.minimum((np.arange(n) + 1) / warm_up, 1)
    if rng.random() < 0.5:
        rate = rate * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * t)))
    warm = np.minimum((np.arange(n) + 1) / warm_up, 1)
    return Latent(
        profile=profile,
        steps=n,
        warm_up=warm_up,
        updates=updates,
        judged=bool(rng.random() < 0.75),
        spread=rng.uniform(0.8, 2.0),
        quality_noise=rng.uniform(0.08, 0.18),
        correctness_weight=float(rng.choice([0.6, 0.6, 0.8, 0.5])),
        skill=start + learned,
        held_out_skill=start + rng.uniform(-0.5, 0.2) + rng.uniform(0.7, 1.0) * learned,
        right=rng.uniform(0.6, 0.85) + rng.uniform(0, 0.08) * t + draw_correlated(rng, n, 0.01),
        wrong=rng.uniform(0.2, 0.4) + rng.uniform(0, 0.08) * t + draw_correlated(rng, n, 0.01),
        agree=np.zeros(n),
        log_length=math.log(profile.length) + rng.uniform(-0.3, 0.2) * t + draw_correlated(rng, n, 0.03),
        entropy=rng.uniform(0.15, 1.2) * np.exp(draw_correlated(rng, n, 0.04)),
        sure=np.exp(-rng.uniform(0.1, 1.2) * learned / 2),
        kl=off_start * warm * rng.lognormal(math.log(6e-4), 0.9) * np.exp(draw_correlated(rng, n, 0.7)),
        clip=off_start * warm * rng.lognormal(math.log(0.01), 0.8) * np.exp(draw_correlated(rng, n, 0.5)),
        grad=rng.lognormal(math.log(0.1), 1.0)
        * np.exp(draw_correlated(rng, n, 0.2) + 0.2 * rng.standard_t(3, n).clip(-6, 6)),
        loss=np.exp(0.25 * rng.standard_t(4, n).clip(-4, 4)),
        diff=rng.lognormal(math.log(0.006), 0.6) * np.exp(draw_correlated(rng, n, 0.15)),
        failed=np.where(rng.random(n) < 0.02, rng.uniform(0, 0.35, n), rng.uniform(0, 0.02)),
        fallbacks=np.full(n, rng.uniform(0, 0.08)),
        rate=rate,
    )
