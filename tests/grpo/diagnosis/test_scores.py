"""With a reward of the user's own, the rules read its score, whatever its scale, and never call it exact match."""

import numpy as np
import pytest

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.finding import CRITICAL, WARNING
from grpo.diagnosis.history import build_history
from grpo.run.records import summarize

CONFIG = {"flags": {"rollout_batch_size": 16, "n_samples_per_prompt": 8}}
ONES, WIDE, SIGNED = (1.0, 0.0), (100.0, 0.0), (2.0, -1.0)  # how a share of right samples becomes a score
SPREAD = (500.0, 100.0)


def make_evaluation(step: int, scores: np.ndarray) -> dict[str, object]:
    """The line of eval.jsonl for one sample of each problem."""
    records = [{"id": str(at), "measure": "score", "score": float(score)} for at, score in enumerate(scores)]
    return {"step": step, **summarize(records, [1])}


def make_run(training, held_out, scale=ONES, every=10, **columns):
    """A run whose samples score the one or the other end of a scale, by shares for each step and each evaluation."""
    rng, (width, low) = np.random.default_rng(0), scale
    rows = [
        {"step": step, "score": low + width * rng.binomial(128, share) / 128, "actor_lr": 1e-6, **columns}
        for step, share in enumerate(training, 1)
    ]
    evals = [
        make_evaluation(every * at, low + width * rng.binomial(1, share, 200)) for at, share in enumerate(held_out)
    ]
    return build_history(rows, evals, CONFIG)


def find_finding(run, name):
    return next((one for one in diagnose(run).findings if one.name == name), None)


def test_lines_of_a_real_run_are_read() -> None:
    lines = [
        {"step": 0, "score": 0.3515625, "ci_low": 0.29540926888169144, "ci_high": 0.41214602185304866},
        {"step": 2, "score": 0.45703125, "ci_low": 0.39681502297522286, "ci_high": 0.5185299296058861},
    ]
    run = build_history(
        [{"step": 1, "score": 0.27}], [line | {"n": 256, "problems": 256, "samples": 256} for line in lines]
    )
    assert run.held_out.values.tolist() == [0.3515625, 0.45703125] and run.held_out_name == "held-out score"
    assert run.held_out_error == pytest.approx((0.4 * 0.6 / 256) ** 0.5, rel=0.05) and run.scale == (0.0, 1.0)


@pytest.mark.parametrize("scale", [ONES, WIDE, SIGNED])
def test_a_fall_of_the_score_is_found_on_any_scale(scale) -> None:
    width, low = scale
    held_out = find_finding(make_run([0.5] * 75, [0.6] * 7 + [0.2], scale), "correctness_fall")
    assert held_out.onset == 62 and [one.metric for one in held_out.evidence] == ["held-out score"]
    assert held_out.evidence[0].numbers["before"] == pytest.approx(low + 0.6 * width, abs=0.05 * width)
    assert held_out.says_it_fell and held_out.severity == CRITICAL
    both = find_finding(make_run([0.5] * 62 + [0.2] * 13, [0.6] * 7 + [0.2], scale), "correctness_fall")
    assert [one.metric for one in both.evidence] == ["score", "held-out score"] and both.severity == CRITICAL
    alone = find_finding(make_run([0.5] * 62 + [0.2] * 13, [0.6] * 8, scale), "correctness_fall")
    assert [one.metric for one in alone.evidence] == ["score"] and alone.severity == WARNING


def test_scores_far_from_0_have_the_error_that_their_intervals_say() -> None:
    rng, (mean, deviation) = np.random.default_rng(1), SPREAD
    rows = [{"step": step, "score": mean + deviation * rng.normal() / 11, "actor_lr": 1e-6} for step in range(1, 81)]

    def is_found(last: float) -> bool:
        levels = [mean] * 8 + [last]
        evals = [make_evaluation(10 * at, rng.normal(level, deviation, 100)) for at, level in enumerate(levels)]
        return find_finding(build_history(rows, evals, CONFIG), "correctness_fall") is not None

    assert is_found(0.8 * mean) and not is_found(mean)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, size: np.where(rng.random(size) < 0.2, rng.exponential(10, size), 0.0),
        lambda rng, size: rng.normal(0, 1, size),
        lambda rng, size: np.exp(rng.normal(0, 1.5, size)),
        lambda rng, size: (rng.random(size) < 0.05).astype(float),
    ],
    ids=["rare and large", "around zero", "heavy tail", "rare"],
)
def test_noise_raises_no_alarm(draw, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [{"step": step, "score": draw(rng, 128).mean(), "truncated": 0.1} for step in range(1, 101)]
    evals = [make_evaluation(step, draw(rng, 100)) for step in range(0, 101, 5)]
    for end in range(10, 101, 10):
        assert not diagnose(build_history(rows[:end], [one for one in evals if one["step"] <= end], CONFIG)).findings


def make_own(run, scale):
    """The same run with an own reward: a share of right samples becomes a score, and nothing says what is right."""
    width, low = scale
    score = {"correct": "score", "exact_match": "score"}
    ends = (*score, "ci_low", "ci_high")

    def change(key: str, value: float | None) -> float | None:
        return low + width * value if key in ends and value is not None else value

    rows, evals = (
        [
            {score.get(key, key): change(key, row[key]) for key in row if key != "reward_correct_correlation"}
            for row in part
        ]
        for part in (run.rows, run.evals)
    )
    return build_history(rows, evals, run.config | {"judge_off": "own reward"})


@pytest.mark.parametrize("scale", [ONES, WIDE, SIGNED])
@pytest.mark.parametrize("name", ["length_collapse", "entropy_collapse"])
def test_a_collapse_is_found_without_correct(name: str, scale, make_sick_runs) -> None:
    found = [find_finding(make_own(run, scale), name) for run in make_sick_runs(name, 8)]
    assert sum(one is not None for one in found) >= 7
    assert all("score" in [evidence.metric for evidence in one.evidence] for one in found if one)


@pytest.mark.parametrize("scale", [ONES, WIDE, SIGNED])
def test_healthy_runs_without_correct_raise_no_alarm(scale, make_healthy_runs) -> None:
    for run in make_healthy_runs(20):
        assert not diagnose(make_own(run, scale)).findings


@pytest.mark.parametrize("scale", [ONES, WIDE, SIGNED, (0.4, 40.0)])
def test_a_score_that_stalls_or_falls_makes_a_collapse(scale) -> None:
    width, low = scale

    def list_collapses(scores: np.ndarray) -> set[str]:
        falls = np.concatenate([np.ones(30), np.linspace(1, 0, 20), np.zeros(30)])
        rows = [
            {"step": step, "score": low + width * score,
             "response_length": 300 + 700 * fall, "entropy": 0.1 + 0.9 * fall}
            for step, (score, fall) in enumerate(zip(scores, falls, strict=True), 1)
        ]  # fmt: skip
        return {one.name for one in diagnose(build_history(rows)).findings if "collapse" in one.name}

    noise = np.random.default_rng(3).normal(0, 0.01, 80)
    assert list_collapses(0.4 + noise) == {"length_collapse", "entropy_collapse"}
    assert list_collapses(np.linspace(0.5, 0.2, 80) + noise) == {"length_collapse", "entropy_collapse"}


@pytest.mark.parametrize("scale", [ONES, WIDE, SIGNED])
def test_a_score_that_rises_excuses_shorter_and_surer_responses(scale) -> None:
    width, low = scale
    rng, shares = np.random.default_rng(4), np.linspace(1, 0.5, 80)
    rows = [
        {"step": step, "score": low + width * (1.2 - share + rng.normal(0, 0.02)), "response_length": 1000 * share,
         "entropy": share**3}
        for step, share in enumerate(shares, 1)
    ]  # fmt: skip
    result = diagnose(build_history(rows))
    assert {"length_collapse", "entropy_collapse"} <= result.fine.keys()


def test_drift_from_the_start_reads_the_score() -> None:
    rng = np.random.default_rng(5)
    rows = [
        {"step": step, "score": 60 - 1.5 * step + rng.normal(0, 1), "ppo_kl": 0.004 * step, "optimizer_steps": 8.0,
         "actor_lr": 1e-6}
        for step in range(1, 13)
    ]  # fmt: skip
    drift = find_finding(build_history(rows, (), CONFIG), "off_policy")
    assert "score" in [one.metric for one in drift.evidence]


def test_groups_without_spread_are_excused_once_the_score_is_full() -> None:
    def is_found(end: float) -> bool:
        levels = np.minimum(np.linspace(0.4, 2 * end, 40), end)
        rows = [{"step": step, "score": level, "zero_spread_groups": level} for step, level in enumerate(levels, 1)]
        return find_finding(build_history(rows), "out_of_range:zero_spread_groups") is not None

    assert is_found(0.85) and not is_found(0.99)


def test_overfitting_is_found() -> None:
    rise = np.linspace(0.3, 0.9, 100)
    overfitted = find_finding(make_run(rise, [0.3] * 11, WIDE), "over_fitting")
    assert [one.metric for one in overfitted.evidence] == ["score", "held-out score"]
    assert find_finding(make_run(rise, np.linspace(0.3, 0.85, 11), WIDE), "over_fitting") is None


def test_doubtful_labels_are_found_if_levels_have_a_ratio() -> None:
    levels = [0.15] * 30, [0.8] * 4
    doubtful = find_finding(make_run(*levels, WIDE), "doubtful_labels")
    assert [one.metric for one in doubtful.evidence] == ["held-out score", "score"]
    assert find_finding(make_run(*levels, WIDE, truncated=0.7), "doubtful_labels") is None
    assert "negative" in diagnose(make_run(*levels, SIGNED)).not_judged["doubtful_labels"]


def test_a_score_that_rises_with_the_reward_excuses_no_reward_hacking() -> None:
    rewards = [*[0.4] * 60, *np.linspace(0.4, 0.8, 60)]
    rng = np.random.default_rng(2)
    rows = [
        {"step": step, "score": reward, "reward": reward + rng.normal(0, 0.01), "correct": 0.4, "actor_lr": 1e-6}
        for step, reward in enumerate(rewards, 1)
    ]
    shares = [rewards[max(step - 1, 0)] for step in range(0, 121, 10)]
    scores = [make_evaluation(10 * at, rng.binomial(1, share, 200)) for at, share in enumerate(shares)]
    exact = [{**{key: one[key] for key in ("step", "samples", "n")}, "exact_match": one["score"]} for one in scores]
    assert find_finding(build_history(rows, scores, CONFIG), "reward_hacking")
    assert find_finding(build_history(rows, exact, CONFIG), "reward_hacking") is None


def test_exact_match_is_named_only_where_it_is_one() -> None:
    run = make_run(np.linspace(0.3, 0.9, 60), np.linspace(0.3, 0.85, 7), WIDE, reward=0.5, correct=0.5)
    lines = "\n".join(diagnose(run).lines())
    assert "held-out score" in lines and "exact" not in lines


def test_evaluations_before_the_measure_changed_are_left_out() -> None:
    evals = [{"step": 0, "exact_match": 0.4}, {"step": 10, "score": 40.0}, {"step": 20, "score": 41.0}]
    run = build_history([{"step": step, "score": 40.0} for step in range(1, 21)], evals)
    assert run.held_out.steps.tolist() == [10, 20]
    assert run.notes == ["eval.jsonl: 1 evaluations measured something else and are left out"]
