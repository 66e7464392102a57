"""What each pathology does to a synthetic run; see `synthetic_runs`.

Each function bends a healthy run and returns the step at which the pathology begins. At strength 1.0 a practitioner
would call the symptoms obvious from the curves; at 0.3 they are hardly visible.
"""

import math

import numpy as np

from tests.grpo.diagnosis.synthetic_latent import Ill, Latent, draw_correlated


def _draw_onset(latent: Latent, rng: np.random.Generator) -> int:
    """Return the index of the onset: well after the warmup, and well before the end."""
    return int(latent.steps * rng.uniform(0.35, 0.6))


def _make_ramp(latent: Latent, begin: int, width: float) -> np.ndarray:
    return np.clip((np.arange(latent.steps) - begin) / width, 0, 1)


def _mark_steps_since(latent: Latent, begin: int) -> np.ndarray:
    return (np.arange(latent.steps) >= begin).astype(float)


def _stop_learning(latent: Latent, begin: int, left: float = 0.0) -> None:
    for skill in (latent.skill, latent.held_out_skill, latent.sure):
        skill[begin:] = skill[begin] + left * (skill[begin:] - skill[begin])


def flat_learning(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    _stop_learning(latent, 0, 1 - strength)
    level = latent.log_length.mean()  # fewer cut responses would mean more right ones
    latent.log_length = level + (1 - strength) * (latent.log_length - level) + draw_correlated(rng, latent.steps, 0.02)
    latent.kl *= 10 ** (-2.5 * strength)
    latent.clip *= 10 ** (-2.5 * strength)
    if not latent.judged and rng.random() < 0.5:
        latent.spread = 2 + 10 * strength  # nearly every problem is always right, or always wrong
    return latent.warm_up + 1


def over_fitting(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    gain = 3.0 * (1 - np.exp(-3 * np.arange(latent.steps) / latent.steps))
    start = rng.uniform(-1.2, 0.0)
    latent.skill = start + gain
    latent.held_out_skill = start + (1 - 1.15 * strength) * gain
    return int(0.25 * latent.steps)


def correctness_fall(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    """Break a policy that solved most of its problems from one step to the next; nothing else shows.

    Never at the peak of the learning rate: there it would be a shock.
    """
    begin = _draw_onset(latent, rng) if rng.random() < 0.7 else latent.warm_up + int(rng.integers(6, 15))
    room = max(0.8 - latent.skill[:begin].mean(), 0)  # a solve rate of 0 cannot fall
    cut = math.log(latent.profile.limit) - latent.log_length.mean() - 0.8  # and truncation would keep it near 0
    latent.log_length = latent.log_length + min(cut, 0)
    drop = strength * rng.uniform(3, 6) * _mark_steps_since(latent, begin)
    latent.skill, latent.held_out_skill = latent.skill + room - drop, latent.held_out_skill + room - drop
    return begin + 1


def reward_hacking(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    begin = _draw_onset(latent, rng)
    ramp = strength * _make_ramp(latent, begin, rng.uniform(8, 20))
    _stop_learning(latent, begin, 1 - strength)
    worse = rng.uniform(0, 0.8)
    latent.skill, latent.held_out_skill = latent.skill - worse * ramp, latent.held_out_skill - worse * ramp
    latent.wrong = np.minimum(latent.wrong + rng.uniform(0.4, 0.6) * ramp, 0.95)
    latent.right = np.minimum(latent.right + 0.2 * ramp, 0.97)
    latent.correctness_weight = min(latent.correctness_weight, 0.6)
    return begin + 1


def instability(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    begin = _draw_onset(latent, rng)
    ramp = strength * _make_ramp(latent, begin, rng.uniform(5, 15))
    spiking = rng.random(latent.steps) < 0.6
    far = ramp * spiking * rng.lognormal(math.log(0.15), 0.5, latent.steps) * (latent.updates > 1)
    latent.kl, latent.clip = latent.kl + far, latent.clip + 1.5 * far
    latent.grad = latent.grad * np.exp(ramp * rng.uniform(1.9, 2.8))
    latent.entropy = latent.entropy * np.exp(-0.6 * ramp)
    drop = rng.uniform(2.0, 3.5) * ramp
    latent.skill, latent.held_out_skill = latent.skill - drop, latent.held_out_skill - drop
    return begin + 1


def spikes(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    spikes = np.sort(rng.choice(np.arange(latent.steps // 4, latent.steps), int(rng.integers(1, 6)), replace=False))
    latent.loss[spikes] *= 1 + strength * rng.uniform(25, 100, len(spikes))
    latent.grad[spikes] *= 1 + strength * rng.uniform(2, 10, len(spikes))
    return int(spikes[0]) + 1


def lr_shock(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    early = latent.updates > 1 and rng.random() < 0.3
    begin = latent.warm_up - 1 if early else _draw_onset(latent, rng)
    shock = strength * _mark_steps_since(latent, begin) * np.exp(-np.maximum(np.arange(latent.steps) - begin, 0) / 5)
    if not early:
        latent.rate = latent.rate * np.where(np.arange(latent.steps) >= begin, 1 + strength * rng.uniform(3, 9), 1)
    latent.updates = max(latent.updates, 2)
    noise = np.exp(draw_correlated(rng, latent.steps, 0.4))
    latent.kl = latent.kl + noise * shock * rng.uniform(0.15, 0.4)
    latent.clip = latent.clip + noise * shock * rng.uniform(0.4, 0.6)
    latent.grad = latent.grad * (1 + rng.uniform(3, 8) * shock)
    drop = (
        rng.uniform(0.8, 1.5)
        * strength
        * _mark_steps_since(latent, begin)
        * np.exp(-0.05 * np.arange(latent.steps)[::1])
    )
    latent.skill, latent.held_out_skill = latent.skill - drop, latent.held_out_skill - drop
    return begin + 1


def off_policy(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    latent.updates = int(rng.choice([8, 16, 32]))
    warm = np.minimum((np.arange(latent.steps) + 1) / latent.warm_up, 1)
    noise = np.exp(draw_correlated(rng, latent.steps, 0.25))
    latent.clip = warm * noise * (0.05 + strength * rng.uniform(0.25, 0.4))
    latent.kl = warm * np.exp(draw_correlated(rng, latent.steps, 0.4)) * (0.005 + strength * rng.uniform(0.03, 0.12))
    latent.skill = latent.skill[0] + 0.5 * (latent.skill - latent.skill[0])
    return latent.warm_up + 1


def mismatch(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    begin = _draw_onset(latent, rng) if rng.random() < 0.7 else 0
    width = float(rng.choice([1, 20]))
    wrong = (
        strength
        * rng.uniform(0.1, 0.3)
        * _make_ramp(latent, begin, width)
        * np.exp(draw_correlated(rng, latent.steps, 0.2))
    )
    latent.diff = latent.diff + wrong
    return max(begin, latent.warm_up) + 1


def length_collapse(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    begin = _draw_onset(latent, rng)
    ramp = strength * _make_ramp(latent, begin, rng.uniform(3, 12))
    latent.log_length = latent.log_length - rng.uniform(0.9, 1.8) * ramp
    _stop_learning(latent, begin, 1 - strength)
    worse = rng.uniform(0, 1.5)
    latent.skill, latent.held_out_skill = latent.skill - worse * ramp, latent.held_out_skill - worse * ramp
    return begin + 1


def entropy_collapse(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    begin = _draw_onset(latent, rng)
    ramp = strength * _make_ramp(latent, begin, rng.uniform(5, 15))
    latent.entropy = latent.entropy * np.exp(-rng.uniform(1.8, 3.0) * ramp)
    latent.agree = 0.7 * ramp
    over = max(latent.skill[begin] - 0.5, 0.0)  # it is not a collapse if nearly everything is solved
    latent.skill, latent.held_out_skill = latent.skill - over, latent.held_out_skill - over
    _stop_learning(latent, begin, 1 - strength)
    return begin + 1


def truncation(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    begin = _draw_onset(latent, rng) if rng.random() < 0.8 else 0
    room = math.log(latent.profile.limit) - latent.log_length[begin:].mean()
    target = strength * (room + rng.uniform(0.0, 0.4)) if begin else strength * (room + 0.6)
    latent.log_length = latent.log_length + target * _make_ramp(latent, begin, rng.uniform(5, 15) if begin else 1)
    return max(begin, latent.warm_up) + 1


def judge_outage(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    begin, length = _draw_onset(latent, rng), int(rng.integers(4, 16))
    latent.failed[begin : begin + length] = strength * rng.uniform(0.6, 1.0)
    return begin + 1


def judge_drift(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    begin, sign = _draw_onset(latent, rng), rng.choice([-1, 1])
    if sign > 0:
        latent.right, latent.wrong = latent.right - 0.15, latent.wrong - 0.1
    change = sign * strength * rng.uniform(0.18, 0.26) * _mark_steps_since(latent, begin)
    latent.right = np.clip(latent.right + change, 0.02, 0.98)
    latent.wrong = np.clip(latent.wrong + change, 0.02, 0.98)
    if rng.random() < 0.5:
        latent.fallbacks[begin:] = strength * rng.uniform(0.7, 1.0)
    return begin + 1


def judge_dependent(latent: Latent, rng: np.random.Generator, strength: float) -> int:
    latent.correctness_weight = 0.6 - 0.5 * strength
    middle = (latent.right + latent.wrong) / 2
    latent.right = middle + (1 - 0.95 * strength) * (latent.right - middle)
    latent.wrong = middle + (1 - 0.95 * strength) * (latent.wrong - middle)
    latent.quality_noise = 0.14 + 0.1 * strength
    latent.log_length = latent.log_length - 0.4  # a cut response is wrong: correlation without a judge
    return latent.warm_up + 1


ILLS: dict[str, Ill] = {
    ill.__name__: ill
    for ill in (
        *(flat_learning, over_fitting, correctness_fall, reward_hacking, instability, spikes, lr_shock),
        *(off_policy, mismatch, length_collapse, entropy_collapse, truncation),
        *(judge_outage, judge_drift, judge_dependent),
    )
}
# Fewest steps of a sick run: slow pathologies show late.
LEAST = dict.fromkeys(ILLS, 40) | {"flat_learning": 60, "over_fitting": 60}
