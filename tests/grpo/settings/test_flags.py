"""Settings as flags of the trainer."""

import argparse

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
    assert "--retire_for" not in flags.words(values)
    assert "--retire_for 50" in " ".join(flags.words(values | {"RETIRE_AFTER": "2"}))
    assert "--partial_rollouts" not in flags.words(values)
    assert "--partial_policies 2" in " ".join(flags.words(values | {"PARTIAL_ROLLOUTS": "3"}))


def test_wrong_variables_are_named():
    wrong = {"GRPO_JUDGE_TRIES": "0", "GRPO_TURN_LIMIT": "few", "GRPO_TEMPLATE": "served", "GRPO_OTHER": "x"}
    assert [problem.what for problem in flags.variable_problems(wrong)] == ["JUDGE_TRIES is 0", "TURN_LIMIT is 'few'"]


def test_flags_in_the_words_of_the_settings():
    assert flags.name_of("--lora_rank") == "LORA_RANK" and flags.name_of("--ref_num_gpus_per_node") == "ACTOR_GPUS"
    assert flags.name_of("--dual_clip") == "--dual_clip" and flags.name_of("JUDGE") == "JUDGE"
