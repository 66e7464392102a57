"""Settings as flags of the trainer."""

import argparse

import pytest

from grpo.launch.config import trainer_parser
from grpo.settings import flags
from grpo.settings.table import BY_FLAG, SETTINGS


def test_each_flag_is_openrlhfs_or_ours_and_of_the_type_of_its_setting():
    ours = argparse.ArgumentParser()
    flags.add(ours.add_argument_group())
    actions = {action.dest: action for action in trainer_parser()._actions}
    for flag, setting in BY_FLAG.items():
        assert setting.is_ours == (f"--{flag}" in ours._option_string_actions), flag
        action = actions[flag]
        if setting.kind is bool:
            assert bool(setting.more) == (action.nargs is None), f"{flag} has a value"
        else:
            assert (action.type or str) is setting.kind, flag


def test_a_setting_without_effect_is_left_out():
    assert all(setting.only_with in SETTINGS for setting in SETTINGS.values() if setting.only_with)
    values = {name: setting.default or "" for name, setting in SETTINGS.items()}
    assert "--overlong_penalty_factor" not in flags.words(values)
    assert "--overlong_penalty_factor 0.5" in " ".join(flags.words(values | {"OVERLONG_BUFFER": "2"}))
    assert "--cispo_max_ratio" not in flags.words(values)
    assert "--cispo_max_ratio 5.0" in " ".join(flags.words(values | {"POLICY_LOSS": "cispo"}))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("JUDGE_UNFINISHED", "all", "set it to 1"),
        ("JUDGE_FALLBACK", "mercy", "use one of correctness, mean_quality, group"),
        ("CORRECTNESS_WEIGHT", "-0.1", "give 0 or more"),
        ("QUALITY_WEIGHT", "nan", "give 0 or more"),
        ("JUDGE_TRIES", "0", "give 1 or more"),
        ("JUDGE_TRIES", "1.5", "give a whole number"),
        ("JUDGE_DEADLINE", "inf", "give 1 or more"),
        ("TURN_LIMIT", "0", "give 1 or more"),
        ("ROLLOUT_SECONDS", "0", "give more than 0"),
        ("TEMPLATE", "x", "use one of served, hub"),
    ],
)
def test_a_wrong_variable_of_the_workers_is_named(name: str, value: str, message: str):
    [problem] = flags.variable_problems({f"GRPO_{name}": value, "GRPO_MAX_BRANCHES": "0", "GRPO_OTHER": "x"})
    assert problem.what.startswith(f"{name} is ") and problem.remedy.startswith(message)


def test_flags_in_the_words_of_the_settings():
    assert (
        flags.find_setting_name("--lora_rank") == "LORA_RANK"
        and flags.find_setting_name("--ref_num_gpus_per_node") == "ACTOR_GPUS"
    )
    assert flags.find_setting_name("--dual_clip") == "--dual_clip" and flags.find_setting_name("JUDGE") == "JUDGE"
