"""Ailments by their smallest series: each is named soon, with a remedy that helps."""

import numpy as np
import pytest

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.finding import CRITICAL, WATCH, Diagnosis
from grpo.diagnosis.history import build_history
from tests.grpo.diagnosis.test_early import CONFIG, find_first_named, make_row

PEAK = 1e-5


def draw_noisy(level, seed: int = 0, prompts: int = 8, samples: int = 8) -> np.ndarray:
    """Shares of right samples in each step, of problems of different difficulty; level: [steps]."""
    rng = np.random.default_rng(seed)
    level = np.clip(np.asarray(level, dtype=float), 1e-9, 1 - 1e-9)
    odds = np.log(level / (1 - level))[:, None] + rng.normal(0, 0.8, (len(level), prompts))
    return rng.binomial(samples, 1 / (1 + np.exp(-odds))).mean(axis=1) / samples


def make_rows(**columns) -> list[dict[str, float]]:
    """Healthy rows in which these columns, one value a step, take the place of the healthy ones."""
    steps = len(next(iter(columns.values())))
    changed = [{name: float(values[at]) for name, values in columns.items()} for at in range(steps)]
    return [make_row(at + 1, **(({"correct_whole": one["correct"]} if "correct" in one else {}) | one))
            for at, one in enumerate(changed)]  # fmt: skip


def make_evaluations(scores: dict[int, float]) -> list[dict[str, float]]:
    return [{"step": step, "exact_match": score, "n": 256, "samples": 256} for step, score in scores.items()]


def diagnose_rows(rows, evals=(), config=CONFIG) -> Diagnosis:
    return diagnose(build_history(rows, evals, config))


def test_held_out_alone_collapses() -> None:
    rows = make_rows(correct=draw_noisy(np.full(41, 0.5)))
    scores = (0.45, 0.50, 0.43, 0.52, 0.19, 0.13, 0.16, 0.22)
    evals = make_evaluations(dict(zip(range(0, 40, 5), scores, strict=True)))
    assert find_first_named(rows, evals) == {"correctness_fall": 20}
    [fall] = diagnose_rows(rows, evals).findings
    assert fall.severity == CRITICAL and fall.onset == 17 and fall.evidence[0].metric == "exact_match"
    assert fall.actions[0].setting == "ADAPTER"


def test_held_out_alone_collapses_on_few_problems() -> None:
    scores = (0.45, 0.50, 0.43, 0.52, 0.19, 0.13, 0.16, 0.22)
    evals = [
        one | {"n": 18, "samples": 144} for one in make_evaluations(dict(zip(range(0, 80, 10), scores, strict=True)))
    ]
    assert find_first_named(make_rows(correct=draw_noisy(np.full(71, 0.5))), evals)["correctness_fall"] <= 50


def test_one_bad_evaluation_among_good_ones_is_no_fall() -> None:
    evals = make_evaluations({0: 0.45, 5: 0.5, 10: 0.43, 15: 0.5, 20: 0.36, 25: 0.46, 30: 0.44})
    assert not find_first_named(make_rows(correct=draw_noisy(np.full(31, 0.5))), evals)


def test_two_older_findings_do_not_hide_a_fall() -> None:
    damaged = np.arange(23) >= 16
    rows = make_rows(
        correct=np.where(damaged, 0.1, 0.45), truncated=np.where(damaged, 0.86, 0.6), ppo_clip_ratio=np.full(23, 0.2),
        ppo_kl=np.full(23, 0.005), actor_lr=1e-8 * np.arange(1, 24),
    )  # fmt: skip
    result = diagnose_rows(rows)
    findings = {finding.name: finding for finding in result.findings}
    assert {"passes_differ", "correctness_fall"} <= set(findings)
    assert findings["correctness_fall"].onset == 17
    advised = {action.setting for finding in result.findings for action in finding.actions}
    assert {"GENERATE_MAX_LEN", "ADAPTER", "OLD_LOG_PROBS"} <= advised


def test_no_gradient_although_groups_have_spread() -> None:
    rows = make_rows(grad_norm=np.zeros(3), correct=draw_noisy([0.4] * 3))
    assert find_first_named(rows) == {"lost_gradient": 3}
    [finding] = diagnose_rows(rows).findings
    assert finding.severity == CRITICAL and "adapter" in finding.cause
    later = make_rows(grad_norm=[0.2] * 20 + [0.0] * 3, correct=draw_noisy([0.4] * 23))
    assert find_first_named(later) == {"lost_gradient": 23}


@pytest.mark.parametrize(
    ("masks", "truncated", "alike", "name"),
    [
        (1, 1.0, 0.25, "masked_gradient"),
        (1, 0.75, 0.25, "masked_gradient"),  # the other quarter is that of the groups without spread
        (1, 0.7, 0.25, "lost_gradient"),
        (0, 1.0, 0.25, "lost_gradient"),
    ],
)
def test_a_gradient_that_the_user_masked_is_not_lost(masks, truncated, alike, name) -> None:
    rows = make_rows(
        grad_norm=np.zeros(3), correct=[0.2] * 3, truncated=[truncated] * 3, zero_spread_groups=[alike] * 3
    )
    config = {"flags": {"mask_truncated": bool(masks)}}
    [finding] = [one for one in diagnose(build_history(rows, (), config)).findings if "gradient" in one.name]
    assert finding.name == name and finding.severity == CRITICAL
    advised = {action.setting: action.change for action in finding.actions}
    if name == "masked_gradient":
        assert "MASK_TRUNCATED=1" in finding.cause
        assert advised["MASK_TRUNCATED"] == "0 (now 1)" and "GENERATE_MAX_LEN" in advised


@pytest.mark.parametrize("seed", range(2))
def test_fall_at_the_peak_of_the_learning_rate(seed: int) -> None:
    after = np.arange(22) >= 10
    rows = make_rows(
        correct=draw_noisy(np.where(after, 0.12, 0.45), seed), truncated=np.where(after, 0.86, 0.6),
        actor_lr=PEAK * np.minimum(np.arange(1, 23) / 10, 1),
    )  # fmt: skip
    assert find_first_named(rows)["lr_shock"] <= 15
    shock = next(finding for finding in diagnose_rows(rows).findings if finding.name == "lr_shock")
    assert [action.setting for action in shock.actions[:2]] == ["ADAPTER", "LEARNING_RATE"]


def test_a_judge_that_pays_for_what_correctness_loses() -> None:
    """The reward stays: the more correctness falls, the less the reward rises."""
    lost = 0.25 * np.clip((np.arange(60) - 20) / 25, 0, 1)
    correct = draw_noisy(0.55 - lost, prompts=32)
    rows = make_rows(correct=correct, reward=0.6 * correct + 0.4 * (0.5 + 1.5 * lost))
    config = CONFIG | {"judge": {"JUDGE": "1", "CORRECTNESS_WEIGHT": "0.6"}}
    assert find_first_named(rows, config=config)["reward_hacking"] <= 45
    assert "reward_hacking" in {finding.name for finding in diagnose_rows(rows, config=config).findings}
    assert "reward_hacking" not in find_first_named(rows), (
        "with an unknown weight, correctness may have lost what is left"
    )


def test_gradient_spikes_before_a_collapse() -> None:
    norms = np.concatenate([0.35 + 0.02 * np.cos(np.arange(15)), [9, 15, 28, 40, 55]])
    rows = make_rows(grad_norm_max=norms, correct=draw_noisy([0.5] * 20))
    assert find_first_named(rows)["spikes"] == 17


def test_a_loss_spike_is_reported_in_its_own_step() -> None:
    losses = np.where(np.arange(12) == 10, 14.0, 0.1)
    rows = make_rows(policy_loss_max=losses, correct=draw_noisy([0.5] * 12))
    assert find_first_named(rows) == {"spikes": 11}


@pytest.mark.parametrize(("loss", "found"), [("cispo", True), ("ppo", False)])
def test_a_loss_spike_counts_on_the_scale_of_the_loss(loss: str, found: bool) -> None:
    """A token's loss in CISPO is its log-prob times its advantage: of a sure policy, a small part of the advantage."""
    usual = 0.012 + 0.004 * np.cos(np.arange(30))
    rows = make_rows(
        policy_loss_max=np.where(np.arange(30) == 25, 0.3, usual), entropy=np.full(30, 0.06),
        correct=draw_noisy([0.5] * 30), advantage_max=np.full(30, 0.7), advantage_min=np.full(30, -0.8),
    )  # fmt: skip
    config = {"flags": {"policy_loss_type": loss}}
    assert ("spikes" in find_first_named(rows, config=config)) is found
    assert "spikes" not in find_first_named(rows[:25], config=config)


def test_entropy_rises_while_correctness_falls() -> None:
    ramp = np.clip((np.arange(60) - 20) / 20, 0, 1)
    rows = make_rows(entropy=0.5 + 1.6 * ramp, correct=draw_noisy(0.52 - 0.22 * ramp, prompts=16))
    assert find_first_named(rows)["entropy_rise"] <= 42
    assert diagnose_rows(rows).findings[0].actions[0].setting == "ADAPTER"


def test_entropy_that_halves_is_watched_and_a_quarter_is_a_finding() -> None:
    levels = np.where(np.arange(45) < 20, 0.5, np.where(np.arange(45) < 32, 0.22, 0.1))
    rows = make_rows(entropy=levels, correct=draw_noisy(np.full(45, 0.4), 1))
    assert [(one.name, one.severity) for one in diagnose_rows(rows[:25]).watched] == [("entropy_collapse", WATCH)]
    assert 32 < find_first_named(rows)["entropy_collapse"] <= 37


def test_collapse_of_a_run_whose_clipping_was_always_high() -> None:
    after = np.arange(46) >= 39
    rows = make_rows(
        correct=draw_noisy(np.where(after, 0.05, 0.42)), ppo_clip_ratio=np.full(46, 0.24),
        ppo_kl=np.where(after, 1.0, 0.03), grad_norm=np.where(after, 10.0, 0.2),
        grad_norm_max=np.where(after, 20.0, 0.4), actor_lr=PEAK * np.minimum(np.arange(1, 47) / 20, 1),
    )  # fmt: skip
    found = find_first_named(rows)
    assert found["passes_differ"] <= 5 and 40 <= found["instability"] <= 43
    unstable = next(finding for finding in diagnose_rows(rows).findings if finding.name == "instability")
    assert unstable.severity == CRITICAL and unstable.actions[0].setting == "ADAPTER"


def test_gradients_out_of_range_are_reported_whatever_correctness_does() -> None:
    correct = draw_noisy(np.full(40, 0.5))
    high = find_first_named(make_rows(correct=correct, grad_norm=np.full(40, 50.0), grad_norm_max=np.full(40, 60.0)))
    assert high == {"out_of_range:grad_norm": 6, "out_of_range:grad_norm_max": 6}
    once = np.where(np.arange(40) == 30, 500.0, 0.3)
    alone = diagnose_rows(make_rows(correct=correct, grad_norm=once / 4, grad_norm_max=once))
    assert not alone.findings and "spikes" in {one.name for one in alone.watched}, "it is clipped, and nothing fell"
    after = np.where(np.arange(40) > 30, 0.1, correct)
    assert "spikes" in find_first_named(make_rows(correct=after, grad_norm=once / 4, grad_norm_max=once))


def test_a_small_fall_is_watched() -> None:
    values = np.concatenate([np.tile([0.45, 0.5, 0.55], 7), [0.3, 0.28]])
    result = diagnose_rows(make_rows(correct=values))
    assert not result.findings and [one.name for one in result.watched] == ["correctness_fall"]
    assert any(line.startswith("WATCH: correctness fall, steps 22 to 23") for line in result.lines())


@pytest.mark.parametrize("at", [0, 2, 4])
@pytest.mark.parametrize(("name", "size"), [("grad_norm_max", 500.0), ("policy_loss_max", 40.0)])
def test_a_spike_in_one_of_the_first_steps_is_reported_once_others_tell_what_is_usual(at, name, size) -> None:
    values = np.full(12, 0.3)
    values[at] = size
    result = diagnose_rows(make_rows(**{name: values}))
    assert "spikes" in {one.name for one in (*result.findings, *result.watched)}


@pytest.mark.parametrize("spread", [[3, 9, 17, 26, 34], [10, 38]])
def test_steps_without_spread_do_not_make_the_others_spikes(spread) -> None:
    has_spread = np.isin(np.arange(40), spread)
    rows = make_rows(
        policy_loss_max=np.where(has_spread, 0.3, 0.0), grad_norm=np.where(has_spread, 0.2, 0.0),
        grad_norm_max=np.where(has_spread, 0.3, 0.0), advantage_max=np.where(has_spread, 0.4, 0.0),
        advantage_min=np.where(has_spread, -0.4, 0.0),
    )  # fmt: skip
    assert "spikes" not in find_first_named(rows)
