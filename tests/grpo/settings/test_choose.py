"""Which value counts, and what a user is told of it."""

import pytest

from grpo.settings import choose
from grpo.settings.options import Options, parse
from grpo.settings.recipe import default, list_edits, read, recipe, shipped
from grpo.settings.table import SETTINGS
from grpo.stack.problem import UserError


@pytest.fixture(autouse=True)
def cpu_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


def choose_settings(*options: str, edited: dict[str, str] | None = None, **given: str) -> dict[str, str]:
    return choose.choose(parse(options), given, recipe() | (edited or {}))


def test_a_default_stands_once():
    assert recipe().keys() == {name for name, setting in SETTINGS.items() if setting.default is None}
    for name, setting in SETTINGS.items():
        value = setting.value(text) if (text := default(name)) or (setting.kind is bool and name != "OFFLOAD") else None
        assert setting.problem(value) is None, name


def test_the_environment_wins_over_the_box_and_the_box_over_the_script():
    assert choose_settings()["NUM_ENGINES"] == "2"
    assert choose_settings("--gpus", "4")["NUM_ENGINES"] == "1"
    assert choose_settings("--gpus", "4", edited={"NUM_ENGINES": "3"})["NUM_ENGINES"] == "3", "an edit counts"
    assert choose_settings("--gpus", "4", NUM_ENGINES="3")["NUM_ENGINES"] == "3"
    assert choose_settings("--tiny")["LORA_RANK"] == "8"
    assert choose_settings("--tiny", edited={"LORA_RANK": "32"})["LORA_RANK"] == "32"
    assert choose_settings("--tiny", edited={"LORA_RANK": "32"}, LORA_RANK="16")["LORA_RANK"] == "16"
    assert choose_settings(edited={"RESTARTS": "5"})["RESTARTS"] == "5", "a line for any setting may be added"


@pytest.mark.parametrize(
    ("options", "count"), [((), "8"), (("--gpus", "4"), "4"), (("--gpus", "1"), "1"), (("--tiny",), "2")]
)
def test_one_copy_of_the_model_pairs_an_engine_with_each_rank(options, count):
    pairs = {"NUM_ENGINES": count, "ENGINE_TP": "1", "ACTOR_GPUS": count, "COLOCATE": "1"}
    values = choose_settings(*options, ACTOR_SHARD="engine")
    assert values | pairs == values == choose_settings(*options, edited={"ACTOR_SHARD": "engine"})
    assert choose_settings(*options, ACTOR_SHARD="engine", COLOCATE="0")["COLOCATE"] == "0"


def test_an_edit_of_the_script_counts_where_a_value_follows_from_others():
    assert choose_settings(edited={"PIPELINE": "1"})["OLD_LOG_PROBS"] == "engine"
    assert choose_settings(edited={"PIPELINE": "1", "OLD_LOG_PROBS": "trainer"})["OLD_LOG_PROBS"] == "trainer"
    assert choose_settings(edited={"COLOCATE": "1"})["ACTOR_GPUS"] == "8"


def test_the_shipped_values_are_those_of_the_script():
    assert recipe() == shipped() and list_edits(recipe()) == {}


def test_options_that_stand_for_settings():
    assert parse(["--steps", "4", "--no-graphs"]).settings == {"STEPS": "4", "ENFORCE_EAGER": "1"}


def test_what_an_option_sets_in_place_of_the_scripts_lines_is_listed_and_so_is_an_edit():
    edited = recipe() | {"LEARNING_RATE": "3e-5", "NUM_ENGINES": "1", "RESTARTS": "5", "SAVE_STEPS": "7"}
    given = {"SAVE_STEPS": "4"}
    lines = "\n".join(choose.describe_script(parse(["--gpus", "4"]), given, edited))
    assert [line.split()[0] for line in lines.replace("script ", "").splitlines()] == [
        "NUM_ENGINES=1", "LEARNING_RATE=3e-5", "RESTARTS=5", "ACTOR_GPUS=2",
    ]  # fmt: skip
    assert choose.describe_script(parse([]), {}, recipe()) == []
    tiny = {line.split("=")[0].split()[-1] for line in choose.describe_script(parse(["--tiny"]), {}, recipe())}
    changed = {name for name, value in choose_settings("--tiny").items() if value != choose_settings()[name]}
    assert {"LEARNING_RATE", "ROLLOUT_BATCH_SIZE", "MODEL"} <= tiny <= changed


def test_an_empty_variable_is_no_value_except_where_empty_is_one():
    given = choose.select_given({"LEARNING_RATE": "", "JUDGE_MODELS": "", "HOME": "/root", "STEPS": "3"})
    assert given == {"JUDGE_MODELS": "", "STEPS": "3"}


def test_what_the_user_changed_is_listed():
    options = Options(flags=["--eps_clip_low_high", "0.2", "0.28", "--use_kl_loss"])
    given = {"LEARNING_RATE": "2e-6", "LORA_RANK": "64", "STEPS": "5", "PIPELINE": "1", "OLD_LOG_PROBS": "engine"}
    changes = choose.changes(options, given, {}, recipe())
    assert changes == {
        "LEARNING_RATE": ["2e-6", "1e-5"],
        "STEPS": ["5", ""],
        "PIPELINE": ["1", "0"],
        "--eps_clip_low_high": ["0.2 0.28", ""],
        "--use_kl_loss": ["", ""],
    }
    assert choose.describe(changes, {})[:2] == [
        "set by you  LEARNING_RATE=2e-6 (default: 1e-5)",
        "            STEPS=5 (default: empty)",
    ]
    tiny = choose.changes(Options(is_tiny=True), {"LEARNING_RATE": "1e-6"}, {}, recipe())
    assert tiny == {"LEARNING_RATE": ["1e-6", "2e-3"]}


def test_what_is_in_the_users_file_is_no_change_of_this_start():
    file = {"LEARNING_RATE": "3e-6", "STEPS": "4"}
    changes = choose.changes(Options(), {"LEARNING_RATE": "3e-6", "STEPS": "5"}, file, recipe())
    assert changes == {"STEPS": ["5", "4"]}
    assert choose.describe(changes, file) == [
        "set by you  LEARNING_RATE=3e-6 (kept, or by --config)",
        "            STEPS=5 (default: 4)",
    ]


def test_a_file_of_settings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    lines = ["# about", "", "LORA_RANK=4 # small", "MODEL=$HOME/m", "CKPT_DIR=~/c", 'TARGET_MODULES="q_proj v_proj"']
    assert read(lines, "f") == {
        "LORA_RANK": "4",
        "MODEL": "/home/me/m",
        "CKPT_DIR": "/home/me/c",
        "TARGET_MODULES": "q_proj v_proj",
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("LORA_RANK 4", "f, line 2"),
        ("TARGET_MODULES=q_proj v_proj", "TARGET_MODULES"),
        ('TARGET_MODULES="q_proj', "line 2"),
        ("LORA_RNK=4", "LORA_RNK .*LORA_RANK"),
        ("GREETING=4", "GREETING .*docs/settings.md"),
        ("SEED=4", "SEED"),
    ],
)
def test_a_line_that_is_no_setting_is_named(line: str, message: str):
    with pytest.raises(UserError, match=message):
        read(["SEED=1", line], "f")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("STEPS", "many", "STEPS"),
        ("LEARNING_RATE", "fast", "LEARNING_RATE"),
        ("JUDGE", "yes", "JUDGE"),
        ("JUDGE_FALLBACK", "mercy", "correctness, mean_quality, group"),
        ("ADVANTAGE_ESTIMATOR", "gae", "dr_grpo, group_norm, rloo, reinforce_baseline, reinforce"),
        ("DYNAMIC_FILTERING_RANGE", "0.5", "DYNAMIC_FILTERING_RANGE"),
        ("LEARNING_RATE", "", "LEARNING_RATE"),
        ("TOP_P", "", "TOP_P"),
    ],
)
def test_a_text_that_is_no_value_is_refused(name: str, text: str, message: str):
    with pytest.raises(UserError, match=message):
        SETTINGS[name].value(text)


def test_a_flags_words_are_recorded_so_that_a_shell_reads_them_again():
    options = Options(flags=["--template_variables", '{"a": "b c"}', "--eps_clip_low_high", "0.2", "0.28"])
    assert choose.changes(options, {}, {}, recipe()) == {
        "--template_variables": ["""'{"a": "b c"}'""", ""],
        "--eps_clip_low_high": ["0.2 0.28", ""],
    }
