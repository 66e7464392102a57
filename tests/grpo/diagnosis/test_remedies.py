"""Every action names a variable of train_grpo.sh or a flag of the trainer, and a value that can be."""

import re

import pytest

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.finding import Evidence, format_title
from grpo.diagnosis.history import build_history
from grpo.diagnosis.range_remedies import RANGES
from grpo.diagnosis.remedies import OUT_OF_RANGE, REMEDIES, finding
from grpo.diagnosis.rules import RULES
from grpo.diagnosis.rules.ranges import WATCHED
from grpo.launch.config import trainer_parser
from grpo.rollout.multi_turn.settings import VARIABLES as ENVIRONMENT
from grpo.settings.table import SETTINGS
from grpo.stack.checkout import CHECKOUT
from reward.settings import VARIABLES
from tests.grpo.diagnosis.test_early import CONFIG, make_row

RANGE_NAMES = {OUT_OF_RANGE + metric: remedy for metric, remedy in RANGES.items()}
ADVICE = [(name, advice) for name, remedy in (REMEDIES | RANGE_NAMES).items() for advice in remedy.advice]


def test_every_rule_has_a_remedy():
    assert set(REMEDIES) == set(RULES) - {"out_of_range"} and set(RANGES) == set(WATCHED)
    assert all(remedy.cause and remedy.advice for remedy in [*REMEDIES.values(), *RANGES.values()])


def test_findings_have_the_names_of_the_documentation():
    page = (CHECKOUT / "docs" / "diagnosis.md").read_text()
    assert set(re.findall(r"^\| ([a-z -]+) \|", page, re.MULTILINE)) - {"finding"} == set(map(format_title, RULES))


def test_every_setting_exists():
    script = (CHECKOUT / "train_grpo.sh").read_text()
    flags = {option for action in trainer_parser()._actions for option in action.option_strings}
    flags |= set(re.findall(r"#   (--[\w-]+) ", script))  # the script's own
    for name, advice in ADVICE:
        assert advice.setting in (flags if advice.setting.startswith("--") else SETTINGS), (name, advice.setting)


DAMAGED = [
    *("correctness_fall", "instability", "lr_shock", "length_collapse", "entropy_collapse", "entropy_rise"),
    *("out_of_range:repetition", "out_of_range:improbable_tokens"),
    *("out_of_range:unallocated_mass", "out_of_range:dropped_values"),
]


@pytest.mark.parametrize("name", DAMAGED)
def test_where_the_policy_is_damaged_going_back_is_the_first_remedy(name, tmp_path):
    unknown = finding(build_history([]), name, "critical", 42, 50, EVIDENCE)
    assert str(unknown.actions[0]).startswith("ADAPTER DIR/checkpoints/step_N/adapter: ")
    config = {"flags": {"run_dir": str(tmp_path), "ckpt_path": str(tmp_path / "checkpoints")}}
    none_saved = finding(build_history([], config=config), name, "critical", 42, 50, EVIDENCE)
    assert not any(action.is_way_back for action in none_saved.actions) and none_saved.actions
    for step in (20, 40, 41, 60):
        (tmp_path / "checkpoints" / f"step_{step}" / "adapter").mkdir(parents=True)
    known = finding(build_history([], config=config), name, "critical", 42, 50, EVIDENCE)
    assert str(known.actions[0]).startswith(f"ADAPTER {tmp_path}/checkpoints/step_40/adapter: "), (
        "41 drew the first low samples"
    )


def test_a_fall_brings_the_way_back_to_the_front_of_its_cause():
    rows = [
        make_row(step, truncated=0.2 if step < 30 else 0.9, correct=0.5 if step < 30 else 0.05) for step in range(1, 45)
    ]
    [exploded] = [one for one in diagnose(build_history(rows, config=CONFIG)).findings if one.name == "truncation"]
    assert "correctness_fall" in exploded.consequences and exploded.actions[0].is_way_back
    assert {"GENERATE_MAX_LEN", "LEARNING_RATE"} <= {action.setting for action in exploded.actions}


def list_actions(name, **settings):
    judge = {key: settings.pop(key) for key in list(settings) if key.isupper()}
    run = build_history([], config={"flags": settings, "judge": judge})
    return {action.setting: str(action) for action in finding(run, name, "warning", 1, 2, EVIDENCE).actions}


EVIDENCE = Evidence("correct", 1, 2, {"first": 0.5})


def test_actions_use_the_values_of_the_run():
    changes = list_actions("instability", actor_learning_rate=9e-6, rollout_batch_size=8, n_samples_per_prompt=8,
                    train_batch_size=8)  # fmt: skip
    assert changes["LEARNING_RATE"].startswith("LEARNING_RATE 3e-06 (now 9e-06)")
    assert changes["TRAIN_BATCH_SIZE"].startswith("TRAIN_BATCH_SIZE 16 (now 8)")
    assert "now" not in list_actions("instability")["LEARNING_RATE"]


def test_a_rollout_that_is_one_batch_cannot_be_cut_into_fewer():
    changes = list_actions("instability", rollout_batch_size=8, n_samples_per_prompt=8, train_batch_size=64)
    assert "TRAIN_BATCH_SIZE" not in changes and "ROLLOUT_BATCH_SIZE" in changes


def test_settings_already_in_place_are_not_advised():
    changes = list_actions("mismatch", enforce_eager=True, attn_implementation="eager", engine_model="other")
    assert set(changes) == {"ENGINE_MODEL", "--resume", "TEMPERATURE", "ROUTING_REPLAY"}
    assert next(iter(changes)) == "ROUTING_REPLAY" and "ROUTING_REPLAY" not in list_actions(
        "mismatch", routing_replay=True
    )
    assert "JUDGE_FALLBACK" not in list_actions("judge_outage", JUDGE_FALLBACK="group")


@pytest.mark.parametrize("name", ["instability", "spikes", "entropy_collapse"])
def test_a_bound_that_the_loss_does_not_read_is_not_advised(name):
    bounds = {"EPS_CLIP", "--eps_clip_low_high", "--dual_clip"}
    assert bounds & set(list_actions(name, policy_loss_type="gspo")) == bounds & set(list_actions(name)) != set()
    assert not bounds & set(list_actions(name, policy_loss_type="cispo"))


def test_settings_already_better_are_not_advised():
    kept = list_actions("reward_hacking", CORRECTNESS_WEIGHT="0.95", QUALITY_WEIGHT="0.05", init_kl_coef=0.01)
    assert set(kept) == {"JUDGE_MODELS", "REWARD"}
    assert set(list_actions("reward_hacking", init_kl_coef=0.0)) == {
        *("JUDGE_MODELS", "REWARD", "CORRECTNESS_WEIGHT", "QUALITY_WEIGHT", "KL_COEF")
    }
    assert "TEMPERATURE" not in list_actions("entropy_collapse", temperature=1.0)
    assert "QUALITY_WEIGHT" not in list_actions("length_collapse", JUDGE="0")


@pytest.mark.parametrize("value", ["x", "", None, [1], {}, float("nan")])
def test_a_strange_setting_does_not_stop_the_diagnosis(value):
    assert "LEARNING_RATE" in list_actions("instability", actor_learning_rate=value)


def test_without_a_judge_reward_hacking_points_to_the_reward_function() -> None:
    run = build_history([], config={"judge": {"JUDGE": "0"}})
    hacking = finding(run, "reward_hacking", "warning", 1, 2, EVIDENCE)
    assert "judge" not in hacking.cause and [action.setting for action in hacking.actions] == ["REWARD", "KL_COEF"]


def test_with_several_optimizer_steps_the_remedy_is_the_batch_size() -> None:
    many = {"rollout_batch_size": 16, "n_samples_per_prompt": 8, "train_batch_size": 4}
    for name in ("off_policy", "correctness_fall", "out_of_range:ppo_kl", "out_of_range:ppo_clip_ratio"):
        assert list_actions(name, **many)["TRAIN_BATCH_SIZE"].startswith("TRAIN_BATCH_SIZE 8 (now 4)")


def test_the_present_value_is_never_advised():
    for name, chosen in ADVICE:
        setting = chosen.setting
        part = "judge" if setting in VARIABLES else "environment" if setting in ENVIRONMENT else "flags"
        number = [chosen.change.split()[0]] if chosen.change[0].isdigit() else []
        for now in (0, 1, 2, 0.5, True, [chosen.change], chosen.change, *number):
            run = build_history(
                [], config={part: {SETTINGS[setting].flag if setting in SETTINGS else setting[2:]: now}}
            )
            changes = [one.change for one in finding(run, name, "warning", 1, 2, EVIDENCE).actions]
            for advised, _, present in (change.partition(" (now ") for change in changes if "(now " in change):
                assert present.rstrip(")") not in (advised, *number), (name, setting, advised)


def test_environment_settings_show_their_current_value() -> None:
    run = build_history([], config={"environment": {"TURN_LIMIT": "8"}})
    [action] = finding(run, "out_of_range:ended_by_turns", "warning", 1, 2, EVIDENCE).actions
    assert str(action).startswith("TURN_LIMIT 16 (now 8)")
