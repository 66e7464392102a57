"""The diagnosis of runs that were really made, with faults that are independent of the rules."""

import pytest

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.finding import CRITICAL
from grpo.diagnosis.history import build_history
from grpo.diagnosis.rules import RULES
from tests.grpo.diagnosis.real_runs import RealRun, SickRun, read_all

RUNS: dict[str, RealRun] = {run.name: run for run in read_all()}
SICK = {name: run for name, run in RUNS.items() if isinstance(run, SickRun)}
HEALTHY = sorted(set(RUNS) - set(SICK))

# No metric is out of its range before step 9; the drift shows in step 12.
LATE = {"many-updates": 12}
LEFT_OUT = 12  # of 16
# True findings other than the fault itself: trainer and engine of a model damaged by noise differ by at least 0.02 nat,
# with dropout, correctness falls after step 12; and the entropy of a damaged policy rises.
ALSO_SO = {
    "adapter-damaged": {"mismatch", "entropy_rise"},
    "attention-dropout": {"correctness_fall"},
    "many-updates": {"entropy_rise"},
}


def test_there_are_enough_of_them() -> None:
    assert len(SICK) >= 10 and len(HEALTHY) >= 5
    assert all(len(run.rows) == 20 for run in RUNS.values())


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_gets_no_finding_after_any_step(name: str) -> None:
    assert not RUNS[name].named


@pytest.mark.parametrize("name", SICK)
def test_a_fault_is_named_in_time(name: str) -> None:
    run = SICK[name]
    if name in LATE:
        assert run.find_naming_step() == LATE[name]
    else:
        assert run.is_found_in_time(), run.named


def test_most_faults_are_noticed_even_without_their_own_rule() -> None:
    """Without the rule of a known fault, the other rules show how a new kind of fault would be noticed."""
    assert sum(run.is_noticed_by_other_rules() for run in SICK.values()) >= LEFT_OUT


def test_a_negated_reward_is_critical_and_the_first_cause_of_what_follows() -> None:
    run = SICK["reward-sign"]
    cause = diagnose(build_history(run.rows, run.evals, run.config)).findings[0]
    assert (cause.name, cause.severity) == ("out_of_range:reward_correct_correlation", CRITICAL)
    assert "correctness_fall" in cause.consequences and [action.setting for action in cause.actions[:2]] == [
        "ADAPTER",
        "REWARD",
    ]


def test_a_learning_rate_that_is_too_high_is_not_answered_with_longer_responses() -> None:
    run = SICK["lr-30x"]
    findings = diagnose(build_history(run.rows, run.evals, run.config)).findings
    assert "truncation" in findings[0].consequences and findings[0].actions[1].setting == "LEARNING_RATE"
    assert not any(action.setting == "GENERATE_MAX_LEN" for one in findings for action in one.actions[:2])


@pytest.mark.parametrize("name", ["adapter-damaged", "lr-30x", "many-updates"])
def test_no_remedy_is_lost_with_what_another_finding_explains(name: str) -> None:
    run = SICK[name]
    history = build_history(run.rows, run.evals, run.config)
    shown = diagnose(history).findings
    assert any(one.consequences for one in shown)
    every = [finding for rule in RULES for finding in diagnose(history, {rule: RULES[rule]}).findings]
    settings = [{action.setting for one in findings for action in one.actions} for findings in (every, shown)]
    assert settings[0] == settings[1]


@pytest.mark.parametrize("name", SICK)
def test_no_false_finding_is_reported(name: str) -> None:
    run = SICK[name]
    assert set(run.named) <= {*run.expected, *run.also_fine, *ALSO_SO.get(name, ())}
