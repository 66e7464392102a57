"""The diagnosis of drawn runs, its table, its advice, and lines that nobody should write.

It takes many runs, step by step, to show that rules find ailments in time and leave healthy runs alone.
"""

import json
import random

import pytest

from grpo.diagnosis.diagnose import Finding, Monitor, alarms, diagnose
from grpo.diagnosis.record import Record
from grpo.diagnosis.thresholds import REMEDIES, WATCH, advise
from grpo.flags.other_names import VARIABLES
from grpo.flags.parser import make_parser
from tests.grpo.diagnosis.made_runs import AILMENTS, make

BAD = (10**400, -(10**400), float("nan"), float("inf"), None, "x", [], {}, True, 1e308, 5e-324, 2**60, -1, 0)


def test_healthy_runs_give_no_alarm() -> None:
    flagged = {seed: [one.name for one in alarms(diagnose(*make(seed)))] for seed in range(1000, 1100)}
    assert sum(map(bool, flagged.values())) <= 1, {seed: names for seed, names in flagged.items() if names}


@pytest.mark.parametrize("ailment", AILMENTS)
def test_an_ailment_is_named(ailment: str) -> None:
    found = [{one.name for one in alarms(diagnose(*make(seed, ailment)))} for seed in range(10)]
    assert sum(AILMENTS[ailment][1] in names for names in found) >= 9, found


@pytest.mark.parametrize("seed", range(40))
def test_no_line_makes_it_fail(seed: int) -> None:
    chance = random.Random(seed)
    rows, evals, config = make(seed, chance.choice([None, *AILMENTS]))
    for row in (*rows, *evals, *config.values()):
        for key in list(row) if isinstance(row, dict) else ():
            if chance.random() < 0.2:
                row[key] = chance.choice(BAD)
    config = chance.choice([config, {key: chance.choice(BAD) for key in config}, None])
    json.dumps([vars(one) for one in diagnose([*rows, None, 3], evals, config)])


def test_spikes_from_five_times_and_falls_at_the_peak_of_the_rate_are_watched() -> None:
    rows, evals, config = make(3)
    rows = [row | {"grad_norm": 0.2 if row["step"] != 15 else 1.3} for row in rows]
    assert [one.severity for one in diagnose(rows, evals, config) if one.name == "spikes"] == [WATCH]
    level = [0.5, 0.52, 0.47, 0.51, 0.49, 0.53, 0.5, 0.48, 0.3, 0.33, 0.3, 0.34, 0.33, 0.29]
    dip = [
        {"step": at, "correct": value, "actor_lr": 1e-6 * min(at, 9)}
        for at, value in enumerate([*level, *level[:8]], 1)
    ]
    assert "lr_shock" in {one.name for one in diagnose(dip)}


def test_an_onset_is_told_once_and_again_when_it_is_critical() -> None:
    rows, evals, config = make(5, "diverged")
    monitor, told = Monitor(config), list[Finding]()
    for end in (*range(1, len(rows), 3), len(rows)):
        told += monitor.new_onsets(rows[:end], [row for row in evals if row["step"] <= end])
    names = [(one.name, one.severity) for one in told]
    assert "instability" in dict(names) and len(names) == len(set(names))


@pytest.mark.parametrize("begin", range(1, 9))
def test_an_alarm_is_told_when_it_begins_also_in_the_first_steps(begin: int) -> None:
    rows = [{"step": step, "judge_failed": 0.9 * (step >= begin)} for step in range(1, 31)]
    monitor, told = Monitor(), dict[str, int]()
    for end in range(1, len(rows) + 1):
        told |= {one.name: end for one in monitor.new_onsets(rows[:end]) if one.name not in told}
    assert begin <= told["judge_outage"] <= begin + 2


def list_advice(finding: str, **flags: object) -> str:
    return " ".join(advise(Record([], [], {"flags": flags, "judge_off": "off"}), finding, 9))


def test_no_advice_is_impossible_or_without_effect() -> None:
    assert "--max_ckpt_num" not in list_advice("out_of_range:disk_free", max_ckpt_num=1)
    assert "--num_episodes" not in list_advice("over_fitting", num_episodes=1)
    assert "--max_norm 0.33" in list_advice("out_of_range:grad_norm", max_norm=1.0)
    assert "--advantage_clip" not in list_advice("out_of_range:advantage_mean", advantage_clip=None)


def test_advice_changes_something() -> None:
    assert "--actor_learning_rate 3.3e-06 (now 1e-05)" in list_advice("instability", actor_learning_rate=1e-5)
    assert "--init_kl_coef" not in list_advice("instability", init_kl_coef=0.01) and "--judge" not in list_advice(
        "reward_hacking"
    )
    for finding in ("length_collapse", "out_of_range:advantage_length_correlation", "out_of_range:unallocated_mass"):
        assert "--loss_aggregation sequence_mean (now token_mean)" in list_advice(
            finding, loss_aggregation="token_mean"
        )
        assert "constant" not in list_advice(finding) and "--overlong_penalty_factor" not in list_advice(finding)
    assert "--overlong_penalty_factor 0.25" in list_advice(
        "length_collapse", overlong_buffer_len=512, overlong_penalty_factor=0.5
    )
    full = {"rollout_batch_size": 8, "n_samples_per_prompt": 8, "train_batch_size": 64}
    assert "--train_batch_size" not in list_advice("off_policy", **full)


def test_every_change_names_a_setting_or_a_flag() -> None:
    names = {change.split(" ")[0] for text in REMEDIES.values() for change in text.split("; ")}
    assert names <= make_parser()._option_string_actions.keys() | VARIABLES.keys()
