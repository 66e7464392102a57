"""The benchmark of the diagnosis at a tiny size, and the runs that it is made on."""

import functools
import json

import numpy as np
import pytest

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.history import of_rows
from grpo.metrics.metric_schema import BY_NAME
from scripts.bench import __main__ as bench
from scripts.bench import diagnose as diagnose_bench
from scripts.bench.diagnose import LEAST_SCORE, scores
from scripts.bench.parts import naive_rules
from scripts.bench.parts.synthetic_ills import ILLS, LEAST
from scripts.bench.parts.synthetic_latent import PROFILES
from scripts.bench.parts.synthetic_runs import make

TINY = ("--runs", "2", "--healthy", "4", "--watched", "1", "--seed", "3000000", "--copy-megabytes", "1")

cached_scores = functools.cache(scores)  # seconds for each call


@pytest.fixture(autouse=True)
def scored_once(monkeypatch):
    monkeypatch.setattr(diagnose_bench, "scores", cached_scores)


def test_both_diagnosers_are_scored_on_the_same_runs(capsys):
    bench.main(["diagnose", "--json", *TINY])
    report = json.loads(capsys.readouterr().out)
    details = report["details"]
    assert report["unit"] == "F1" and 0 < report["stock"] < report["ours"] <= 1
    for table in ("precision", "recall", "recall_at_0.7", "recall_at_0.4", "precision_stock", "recall_stock"):
        assert set(details[table]) == set(ILLS) and all(0 <= value <= 1 for value in details[table].values())
    assert details["worst_recall"] == pytest.approx(min(details["recall"].values()), abs=1e-3)


def test_precision_and_recall_reach_their_targets():
    """Of runs by which no rule was tuned; of few, so that chance is at its worst."""
    ours, stock, _ = cached_scores(runs=20, healthy=60, seed=3_000_000)
    for name in ILLS:
        assert ours.precision(name) >= LEAST_SCORE and ours.recall(name) >= LEAST_SCORE, name
    assert ours.false_alarms <= 2 and ours.mean_f1() > stock.mean_f1()


def test_score_below_its_target_is_reported(capsys, monkeypatch):
    monkeypatch.setattr(diagnose_bench, "LEAST_SCORE", 1.01)
    assert bench.main(["diagnose", *TINY]) == 0, "so few runs say nothing"
    monkeypatch.setattr(diagnose_bench, "ENOUGH", 2)
    assert bench.main(["diagnose", *TINY]) == 1
    assert "1.01 at least is wanted" in capsys.readouterr().err


def test_nothing_to_measure_is_refused(capsys):
    assert bench.main(["diagnose", "--runs", "0", "--copy-megabytes", "1"]) == 2
    assert "--runs" in capsys.readouterr().err


def test_run_is_determined_by_its_seed():
    for ill in (None, ("truncation", ILLS["truncation"])):
        first, again, other = make(3_000_001, ill), make(3_000_001, ill), make(3_000_002, ill)
        assert (first.rows, first.evals) == (again.rows, again.evals) and first.rows != other.rows


def test_runs_look_like_real_ones():
    runs = [make(seed) for seed in range(3_000_000, 3_000_040)]
    assert {run.config["name"] for run in runs} == {profile.name for profile in PROFILES}
    assert any(not run.evals for run in runs) and min(len(run.rows) for run in runs) >= 20
    for run in runs:
        json.dumps([run.rows, run.evals], allow_nan=False)
        assert not run.onsets and [row["step"] for row in run.rows] == list(range(1, len(run.rows) + 1))
        assert set(run.rows[0]) - {"step", "time", "seconds"} <= set(BY_NAME)
        assert all(row["ci_low"] <= row["exact_match"] <= row["ci_high"] for row in run.evals)
        assert all(0 <= row["truncated"] <= 1 and row["response_length"] > 0 for row in run.rows)


def test_correctness_has_the_noise_of_groups():
    """Samples of a problem are correlated: steps scatter more than with independent samples."""
    ratios = []
    for seed in range(3_000_000, 3_000_010):
        run = make(seed, least=80)
        correct = np.array([row["correct"] for row in run.rows if row["correct"] is not None])
        samples = run.config["flags"]["rollout_batch_size"] * run.config["flags"]["n_samples_per_prompt"]
        scatter = np.var(np.diff(correct)) / 2
        ratios.append(scatter / (correct.mean() * (1 - correct.mean()) / samples))
    assert 1.2 < np.median(ratios) < 5


@pytest.mark.parametrize("name", ILLS)
def test_fault_of_zero_strength_is_not_found(name):
    for seed in range(3_000_000, 3_000_003):
        run = make(seed, (name, ILLS[name]), 0.0, LEAST[name])
        assert set(run.onsets) == {name} and 1 <= run.onsets[name] <= len(run.rows) >= LEAST[name]
        assert name not in {finding.name for finding in diagnose(of_rows(run.rows, run.evals, run.config)).findings}


def test_the_naive_rules_know_the_same_names():
    assert set(naive_rules.RULES) == set(ILLS)
    assert naive_rules.findings([], []) <= set(ILLS)
