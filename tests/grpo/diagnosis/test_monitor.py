"""The watch during training: every onset is named soon and once, and again when it becomes critical."""

import pytest

from grpo.diagnosis.diagnose import Monitor
from grpo.diagnosis.finding import CRITICAL, WARNING


def watch(run, every=1, first=1, last=None):
    """Return (step, finding) of everything that is named from step `first` to step `last`."""
    monitor, named = Monitor(run.config), []
    for end in range(first, min(last or len(run.rows), len(run.rows)) + 1, every):
        step = run.rows[end - 1]["step"]
        for finding in monitor.new_onsets(run.rows[:end], [row for row in run.evals if row["step"] <= step]):
            named.append((step, finding))
    return named


@pytest.mark.parametrize(
    ("name", "delay"),
    [
        ("judge_outage", 4), ("spikes", 4), ("lr_shock", 6), ("mismatch", 14), ("length_collapse", 16),
        ("instability", 25), ("reward_hacking", 25), ("entropy_collapse", 30), ("truncation", 25),
    ],
)  # fmt: skip
def test_onset_is_reported_once_and_soon(name, delay, make_sick_runs):
    delays = []
    for run in make_sick_runs(name, 3):
        onset = run.onsets[name]
        found = watch(run, first=onset, last=onset + delay + 5)
        named = [(step, finding) for step, finding in found if finding.name == name]
        assert [finding.severity for _, finding in named] in ([], [WARNING], [CRITICAL], [WARNING, CRITICAL])
        delays += [step - run.onsets[name] for step, _ in named[:1]]
    assert len(delays) >= 2 and sorted(delays)[1] <= delay and min(delays) >= 0


def test_healthy_runs_get_no_warning(make_healthy_runs):
    assert sum(bool(watch(run, every=5)) for run in make_healthy_runs(8)) <= 1


def test_recurring_fault_is_reported_again(make_healthy_runs):
    run = next(run for run in make_healthy_runs(40, least=80) if run.config["judge"]["JUDGE"] == "1")
    down = {*range(20, 25), *range(60, 64)}
    run.rows = [row | {"judge_failed": 1.0 if row["step"] in down else 0.0} for row in run.rows]
    assert [finding.onset for _, finding in watch(run, first=18, last=66) if finding.name == "judge_outage"] == [20, 60]


def test_repeated_rows_report_nothing(make_sick_runs):
    run = next(make_sick_runs("truncation", 1))
    monitor = Monitor(run.config)
    assert monitor.new_onsets(run.rows, run.evals)
    assert monitor.new_onsets(run.rows, run.evals) == []


def test_empty_run_has_no_finding():
    assert Monitor().new_onsets([]) == []
