"""The rules on synthetic runs: every pathology is found where it is obvious, and nothing else is."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.history import build_history
from grpo.diagnosis.rules import EXPLAINS, RULES
from grpo.diagnosis.rules.ranges import WATCHED
from grpo.metrics.metric_schema import BY_NAME
from tests.grpo.diagnosis.synthetic_ills import ILLS

# The columns without which a rule cannot judge.
NEEDED = {
    "flat_learning": "correct",
    "over_fitting": "correct",
    "reward_hacking": "reward",
    "lr_shock": "actor_lr",
    "off_policy": "optimizer_steps",
    "mismatch": "logprob_diff_mean",
    "length_collapse": "response_length",
    "entropy_collapse": "entropy",
    "truncation": "truncated",
    "judge_outage": "judge_failed",
    "judge_drift": "judge_quality_wrong",
    "judge_dependent": "reward_correct_correlation",
}


def diagnose_changed(run, **changes):
    changed = replace(run, **changes)
    return diagnose(build_history(changed.rows, changed.evals, changed.config))


def list_names(run, **changes):
    return {finding.name for finding in diagnose_changed(run, **changes).findings}


def test_every_rule_has_a_synthetic_fault():
    elsewhere = {"passes_differ", "out_of_range", "doubtful_labels", "no_gradient", "lost_gradient", "entropy_rise"}
    elsewhere |= {"masked_gradient"}
    assert set(RULES) - set(ILLS) == elsewhere, "test_early.py, test_labels.py and test_missed.py"
    assert set(ILLS) < set(RULES) and set(NEEDED) <= set(RULES) and set(NEEDED.values()) <= set(BY_NAME)
    explained = {name for pair in EXPLAINS.items() for name in (pair[0], *pair[1])}
    assert explained <= set(RULES) | {f"out_of_range:{metric}" for metric in WATCHED}


@pytest.mark.parametrize("name", ILLS)
def test_an_obvious_case_is_found_near_its_onset(name, make_sick_runs):
    hits, errors = 0, []
    for run in make_sick_runs(name, 8):
        for finding in diagnose_changed(run).findings:
            if finding.name == name:
                hits += 1
                errors.append(abs(finding.onset - run.onsets[name]))
                break
    assert hits >= 6
    assert np.median(errors) <= (20 if name == "over_fitting" else 10)


def test_healthy_runs_are_silent(make_healthy_runs):
    assert sum(bool(diagnose_changed(run).findings) for run in make_healthy_runs(40)) <= 2


@pytest.mark.parametrize("name", ILLS)
def test_nothing_is_found_in_too_few_steps(name, make_sick_runs):
    # A metric out of range in every step is enough; trends need more steps.
    for run in make_sick_runs(name, 3):
        few = diagnose_changed(run, rows=run.rows[:6], evals=run.evals[:1])
        assert {finding.name.partition(":")[0] for finding in few.findings} <= {
            *("judge_outage", "mismatch", "truncation", "instability", "out_of_range")
        }
        assert len(few.not_judged) > 8 and all(few.not_judged.values())


@pytest.mark.parametrize("name", ILLS)
def test_everything_is_judged_once(name, make_sick_runs):
    run = next(make_sick_runs(name, 1))
    result = diagnose_changed(run)
    hidden = {other for finding in result.findings for other in finding.consequences}
    finding = {finding.name.partition(":")[0] for finding in result.findings}
    hidden = {name.partition(":")[0] for name in hidden}
    watched = {finding.name for finding in result.watched}
    said = finding | hidden | watched | set(result.fine) | set(result.not_judged)
    assert said == set(RULES) and not set(result.fine) & set(result.not_judged)
    json.dumps(result.as_dict(), allow_nan=False)
    assert all(line.strip() or line == "" for line in result.lines())


@pytest.mark.parametrize("name", NEEDED)
def test_rule_reports_a_missing_column(name, make_sick_runs):
    run = next(make_sick_runs(name, 1))
    rows = [{key: value for key, value in row.items() if key != NEEDED[name]} for row in run.rows]
    result = diagnose_changed(run, rows=rows)
    assert NEEDED[name] in result.not_judged[name]
    assert name not in {finding.name for finding in result.findings}


def test_spikes_without_loss_and_gradient_are_not_judged(make_sick_runs):
    run = next(make_sick_runs("spikes", 1))
    rows = [{key: value for key, value in row.items() if "_loss" not in key and "grad" not in key} for row in run.rows]
    assert "policy_loss" in diagnose_changed(run, rows=rows).not_judged["spikes"]


def test_without_a_judge_its_rules_are_not_judged(make_healthy_runs):
    run = next(make_healthy_runs(1))
    result = diagnose_changed(run, config=run.config | {"judge": {"JUDGE": "0"}})
    assert {name: result.not_judged.get(name) for name in ("judge_outage", "judge_drift", "judge_dependent")} == (
        dict.fromkeys(("judge_outage", "judge_drift", "judge_dependent"), "the run has no judge")
    )


@pytest.mark.parametrize("name", ["length_collapse", "entropy_collapse", "instability", "reward_hacking", "lr_shock"])
def test_the_order_of_lines_does_not_count(name, make_sick_runs):
    run = next(make_sick_runs(name, 1))
    order = np.random.default_rng(0).permutation(len(run.rows))
    assert (
        diagnose_changed(run, rows=[run.rows[index] for index in order]).as_dict()["findings"]
        == diagnose_changed(run).as_dict()["findings"]
    )


def test_scaling_model_dependent_metrics_does_not_change_findings(make_sick_runs, make_healthy_runs):
    for run in [
        *make_healthy_runs(5),
        *make_sick_runs("length_collapse", 2),
        *make_sick_runs("entropy_collapse", 2),
        *make_sick_runs("lr_shock", 2),
    ]:
        unscaled = list_names(run)
        for column, factor in product(("grad_norm", "response_length", "entropy", "actor_lr"), (1e-4, 1e3)):
            rows = [row | {column: None if row.get(column) is None else factor * row[column]} for row in run.rows]
            assert list_names(run, rows=rows) - {"out_of_range:grad_norm"} == unscaled, (column, factor)


def test_the_number_of_the_first_step_does_not_count(make_sick_runs):
    run = next(make_sick_runs("entropy_collapse", 1))
    later = [row | {"step": row["step"] + 1000} for row in run.rows]
    evals = [row | {"step": row["step"] + 1000} for row in run.evals]
    moved = diagnose_changed(run, rows=later, evals=evals).findings
    assert [(finding.name, finding.onset - 1000) for finding in moved] == [
        (finding.name, finding.onset) for finding in diagnose_changed(run).findings
    ]


@pytest.mark.parametrize(("column", "end"), [("reward", 3.0), ("response_length", 0.4)])
def test_a_policy_that_moves_elsewhere_is_not_flat(column, end, make_sick_runs):
    for run in make_sick_runs("flat_learning", 6):
        if "flat_learning" not in list_names(run) or np.median([row["zero_spread_groups"] for row in run.rows]) > 0.5:
            continue
        factors = np.linspace(1, end, len(run.rows))
        rows = [row | {column: row[column] * factor} for row, factor in zip(run.rows, factors, strict=True)]
        assert "flat_learning" not in list_names(run, rows=rows)
        break
    else:
        pytest.fail("no run was flat")


def test_policy_loss_raises_no_finding(make_healthy_runs):
    for run in make_healthy_runs(5):
        n, before = len(run.rows), list_names(run)
        for trend in (np.linspace(0.01, 0.5, n), np.full(n, 0.02), np.linspace(-0.5, 0.1, n)):
            rows = [row | {"policy_loss": float(value)} for row, value in zip(run.rows, trend, strict=True)]
            assert list_names(run, rows=rows) == before


def test_a_long_warm_up_raises_no_alarm(make_healthy_runs):
    """Warmup metrics are judged by their own level: the effect of an update grows with the learning rate."""
    for run in make_healthy_runs(8, least=60):
        rows = []
        for row in run.rows:
            share = min(row["step"] / 13, 1)
            small = {key: share * row[key] for key in ("ppo_kl", "ppo_clip_ratio") if row.get(key) is not None}
            rows.append(row | small | {"actor_lr": share * run.config["flags"]["actor_learning_rate"]})
        assert build_history(rows, run.evals, run.config).warm_up == 12
        assert list_names(run, rows=rows) <= list_names(run)


def test_eight_optimizer_steps_per_rollout_are_no_finding(make_healthy_runs):
    eights = [run for run in make_healthy_runs(30) if run.rows[0]["optimizer_steps"] == 8]
    assert eights and all("off_policy" not in list_names(run) for run in eights)


def test_a_gain_that_shortens_responses_is_no_collapse(make_healthy_runs):
    run = next(run for run in make_healthy_runs(20, least=60) if run.config["name"] == "tiny")
    n = len(run.rows)
    shares = np.linspace(1, 0.5, n)
    rows = [
        row | {"response_length": 40 * float(share), "correct": float(0.2 + 1.2 * (1 - share)), "truncated": 0.0}
        for row, share in zip(run.rows, shares, strict=True)
    ]
    assert "length_collapse" not in list_names(run, rows=rows)
    stupid = [row | {"correct": 0.3 + 0.02 * (row["step"] % 2)} for row in rows]
    assert "length_collapse" in list_names(run, rows=stupid)


def test_two_outages_are_two_findings(make_healthy_runs):
    run = next(run for run in make_healthy_runs(40, least=80) if run.config["judge"]["JUDGE"] == "1")
    down = {*range(20, 25), *range(60, 64)}
    rows = [row | {"judge_failed": 1.0 if row["step"] in down else 0.0} for row in run.rows]
    spells = [
        (finding.onset, finding.last)
        for finding in diagnose_changed(run, rows=rows).findings
        if finding.name == "judge_outage"
    ]
    assert spells == [(20, 24), (60, 63)]


def test_consequences_are_not_reported_beside_their_cause(make_sick_runs):
    for run in make_sick_runs("lr_shock", 5):
        findings = {finding.name: finding for finding in diagnose_changed(run).findings}
        assert "instability" not in findings or "lr_shock" not in findings
    for run in make_sick_runs("judge_drift", 5):
        assert not {"judge_drift", "reward_hacking"} <= list_names(run)
