"""`train_grpo.sh`: options, defaults, and that every variable in it can be set from outside."""

import functools
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from grpo.settings.table import SETTINGS

from .recipe import ROOT, call
from .recipe_values import OVERRIDES, RUN_LOG


@functools.cache  # half a second for each call
def command_of(checkout: Path, options: tuple[str, ...], variables: frozenset[tuple[str, str]]) -> str:
    done = call(checkout, "--dry-run", *options, **dict(variables))
    assert done.returncode == 0, done.stderr
    return done.stdout


def flags(checkout: Path, *options: str, is_new: bool = False, **variables: str) -> dict[str, str]:
    """Return the flags of the resolved command, and the variables before it, with their values.

    Args:
        is_new: files have changed, so the same call may give another command.
    """
    if is_new:
        command_of.cache_clear()
    words = shlex.split(command_of(checkout, options, frozenset(variables.items())).replace("\\\n", " "))
    start = words.index("python")
    assert words[start : start + 3] == ["python", "-m", "openrlhf.cli.train_ppo_ray"]
    passed: dict[str, list[str]] = {name: [value] for name, _, value in (w.partition("=") for w in words[:start])}
    for word in words[start + 3 :]:
        if word.startswith("--"):
            passed[word] = []
        else:
            passed[list(passed)[-1]].append(word)
    return {name: " ".join(values) for name, values in passed.items()}


def test_the_defaults_are_those_of_the_run_log(checkout: Path) -> None:
    passed = flags(checkout)
    assert {name: passed.get(name) for name in RUN_LOG} == RUN_LOG
    assert "--max_steps" not in passed and "--use_wandb" not in passed
    assert not {"--thinking_budget", "--answer_budget", "--enable_prefix_caching"} & passed.keys()


@pytest.mark.parametrize("variables", [{"THINKING_BUDGET": "9", "ANSWER_BUDGET": "9"}, {"ENVIRONMENT": "retrieval"}])
def test_rollouts_of_several_calls_have_a_prefix_cache(checkout: Path, variables: dict[str, str]) -> None:
    assert "--enable_prefix_caching" in flags(checkout, **variables)


@pytest.mark.parametrize(("given", "count"), [("0", "1"), ("0.0", "1"), ("0.5", "8")])
def test_of_greedy_samples_which_are_equal_there_is_one(checkout: Path, given: str, count: str) -> None:
    assert flags(checkout, EVAL_TEMPERATURE=given)["--eval_n_samples_per_prompt"] == count


def test_every_setting_is_tried() -> None:
    assert SETTINGS.keys() == OVERRIDES.keys()


@pytest.mark.parametrize("options", [[], ["--tiny"]])
def test_every_variable_can_be_set_from_outside(checkout: Path, options: list[str]) -> None:
    passed = flags(checkout, *options, **{name: value for name, (value, _, _) in OVERRIDES.items()})
    for name, (_, flag, expected) in OVERRIDES.items():
        if name == "NAME":
            assert Path(passed[flag]).name.startswith("mine-")
        else:
            assert passed.get(flag) == expected, name


@pytest.mark.parametrize("tiny", [[], ["--tiny"]])
@pytest.mark.parametrize(
    ("gpus", "engines", "tensor_parallel", "ranks", "shard"),
    [
        ("8", "2", "2", "4", "zero3"),
        ("4", "1", "2", "2", "zero3"),
        ("2", "1", "1", "1", "none"),
        ("1", "1", "1", "1", "none"),
    ],
)
def test_a_box_is_other_values_of_four_variables(checkout, tiny, gpus, engines, tensor_parallel, ranks, shard) -> None:
    full, passed = flags(checkout), flags(checkout, "--gpus", gpus)
    if tiny and gpus != "8":  # --tiny alone has a smaller shape
        passed = flags(checkout, *tiny, "--gpus", gpus)
    shape = ("--vllm_num_engines", "--vllm_tensor_parallel_size", "--actor_num_gpus_per_node", "--actor_shard")
    assert [passed[name] for name in shape] == [engines, tensor_parallel, ranks, shard]
    sizes = {"--micro_train_batch_size", "--micro_rollout_batch_size"}
    folders = {"--run_dir", "--save_path", "--ckpt_path", "--metrics_dir", "--wandb_run_name", "--use_tensorboard"}
    if not tiny:
        share = {"--vllm_gpu_memory_utilization"} if gpus == "1" else set()
        assert {name for name in full if full[name] != passed[name]} <= {
            *shape,
            "--ref_num_gpus_per_node",
            *sizes,
            *folders,
            *share,
        }
        assert ("--colocate_all_models" in passed) == (gpus == "1")
        assert passed["--ref_num_gpus_per_node"] == ranks, "OpenRLHF compares them if GPUs are shared"
    assert flags(checkout, "--gpus", gpus, ENGINE_TP="8")["--vllm_tensor_parallel_size"] == "8"


@pytest.mark.parametrize(
    ("options", "shape"),
    [(["--tiny", "--gpus", "4"], ["2", "2", "4"]), ([], ["4", "2", "8"])],
)
def test_engines_and_actor_that_share_gpus_have_all_of_the_box(checkout, options, shape) -> None:
    passed = flags(checkout, *options, COLOCATE="1")
    names = ("--vllm_num_engines", "--vllm_tensor_parallel_size", "--actor_num_gpus_per_node")
    assert [passed[name] for name in names] == shape


def test_tiny_is_the_same_run_with_other_values(checkout: Path) -> None:
    tiny, full = flags(checkout, "--tiny"), flags(checkout)
    assert tiny.keys() - full.keys() <= {"--max_steps", "--stage3_param_persistence_threshold"}
    assert full.keys() - tiny.keys() <= {"--template_date"}, "its template reads none, once the model is here"
    assert tiny["--pretrain"] != tiny["--engine_model"], "engines on CPU load a dequantised copy"
    assert int(tiny["--vllm_num_engines"]) == 2 and int(tiny["--actor_num_gpus_per_node"]) == 2


def test_the_small_run_has_the_limits_of_the_full_one(checkout: Path) -> None:
    """This includes runs with the stand-in: their command may be repeated with a key."""
    full = flags(checkout)
    for keys in ({"GEMINI_API_KEY": "", "GOOGLE_API_KEY": ""}, {"GEMINI_API_KEY": "not-a-key"}):
        tiny = flags(checkout, "--tiny", **keys)
        assert all(tiny[name] == full[name] for name in ("GRPO_JUDGE_RPM", "GRPO_JUDGE_TPM"))


def test_the_shape_of_the_large_run_in_small(checkout: Path) -> None:
    passed = flags(checkout, "--tiny", "--steps", "2", NUM_ENGINES="2", ENGINE_TP="2", ACTOR_GPUS="4")
    assert passed["--vllm_tensor_parallel_size"] == "2" and passed["--actor_num_gpus_per_node"] == "4"
    assert passed["--max_steps"] == "2"


def test_judge_is_on_by_default_and_can_be_disabled_in_three_ways(checkout: Path) -> None:
    passed = flags(checkout)
    assert (passed["GRPO_JUDGE"], passed["GRPO_CORRECTNESS_WEIGHT"], passed["GRPO_QUALITY_WEIGHT"]) == (
        "1",
        "0.6",
        "0.4",
    )
    assert len(passed["GRPO_JUDGE_MODELS"].split()) == 3 and passed["GRPO_JUDGE_TRIES"] == "3"
    assert passed["GRPO_JUDGE_FALLBACK"] == "correctness" and passed["GRPO_JUDGE_UNFINISHED"] == "1"
    assert flags(checkout, JUDGE_MODELS="")["GRPO_JUDGE_MODELS"] == ""
    for variables, why in (
        ({"JUDGE": "0"}, "JUDGE is 0"),
        ({"JUDGE_MODELS": ""}, "JUDGE_MODELS is empty"),
        ({"CORRECTNESS_WEIGHT": "1", "QUALITY_WEIGHT": "0"}, "QUALITY_WEIGHT is 0"),
    ):
        assert f"reward      correctness alone, because {why}" in call(checkout, "--plan", **variables).stdout


def test_a_plan_names_the_stand_in(checkout: Path) -> None:
    keys = {"GEMINI_API_KEY": "", "GOOGLE_API_KEY": ""}
    assert "NO KEY: a local server" in call(checkout, "--tiny", "--plan", **keys).stdout
    assert "NO KEY" not in call(checkout, "--plan", **keys).stdout
    keyed = call(checkout, "--tiny", "--plan", **keys | {"GEMINI_API_KEY": "k" * 20}).stdout
    assert "NO KEY" not in keyed and "GPUs " not in keyed.partition("judge ")[0]
    assert f"devices     4 stand-ins for GPUs on {len(os.sched_getaffinity(0))} core" in keyed


def test_the_users_flags_win(checkout: Path) -> None:
    passed = flags(checkout, "--", "--lora_rank", "5", "--eps_clip_low_high", "0.2", "0.28", LORA_RANK="7")
    assert passed["--lora_rank"] == "5"
    assert passed["--eps_clip_low_high"] == "0.2 0.28"


def test_the_run_directory(checkout: Path, tmp_path: Path) -> None:
    passed = flags(checkout, "--run-dir", str(tmp_path / "here"))
    assert passed["--run_dir"] == passed["--metrics_dir"] == str(tmp_path / "here")
    assert passed["--ckpt_path"] == str(tmp_path / "here" / "checkpoints")


def test_dry_run_and_plan_write_nothing(checkout: Path) -> None:
    before = {path.name for path in checkout.iterdir()}, (ROOT / "runs").exists()
    for option in ("--dry-run", "--plan"):
        assert call(checkout, "--tiny", option).returncode == 0
    assert ({path.name for path in checkout.iterdir()}, (ROOT / "runs").exists()) == before


def test_help_names_every_option(checkout: Path) -> None:
    done = call(checkout, "--help")
    assert done.returncode == 0
    for option in (
        "--tiny",
        "--gpus",
        "--check",
        "--plan",
        "--dry-run",
        "--run-dir",
        "--resume",
        "--from-step",
        "--steps",
    ):
        assert option in done.stdout
    assert "set -euo" not in done.stdout


def test_no_secret_is_in_the_command(checkout: Path) -> None:
    secrets = {"WANDB_API_KEY": "wandb-0123456789", "HF_TOKEN": "hf_0123456789", "GEMINI_API_KEY": "AIza-0123456789"}
    done = call(checkout, "--dry-run", USE_WANDB="1", **secrets)
    assert "--use_wandb 1" in done.stdout
    assert "0123456789" not in done.stdout + done.stderr


def test_a_file_of_settings_wins_over_the_script_and_a_box(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "my.env").write_text("# mine\nLORA_RANK=5\nNUM_ENGINES=3  # of four\nTARGET_MODULES='q_proj v_proj'\n")
    passed = flags(checkout, "--gpus", "4", "--config", str(tmp_path / "my.env"), NUM_ENGINES="7")
    assert (passed["--lora_rank"], passed["--vllm_num_engines"], passed["--target_modules"]) == (
        "5",
        "7",
        "q_proj v_proj",
    )
    (tmp_path / "my.env").write_text("LORA_RNK=5\n")
    wrong = call(checkout, "--dry-run", "--config", str(tmp_path / "my.env"))
    assert (
        wrong.returncode == 2 and "my.env, line 1: LORA_RNK is not a setting: did you mean LORA_RANK?" in wrong.stderr
    )


def test_a_resumed_run_keeps_the_file_of_settings(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    config = {"config": {"LORA_RANK": "5"}, "flags": {"lora_rank": 4}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert "LORA_RANK was 4, now 5" in call(checkout, "--dry-run", "--resume", str(tmp_path / "run")).stderr


def test_it_can_be_called_from_anywhere(checkout: Path, tmp_path: Path) -> None:
    # A folder of the same name as our package is not taken for it; relative paths are the user's.
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo" / "__init__.py").write_text("raise RuntimeError")
    done = subprocess.run(
        [str(checkout / "train_grpo.sh"), "--dry-run", "--run-dir", "out"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"--run_dir {tmp_path / 'out'}" in done.stdout


@pytest.mark.parametrize("options", [[], ["--tiny"]])
def test_held_out_problems_are_those_beside_the_training_problems(checkout: Path, tmp_path: Path, options) -> None:
    train = tmp_path / "train.jsonl"
    assert flags(checkout, *options, TRAIN_DATA=str(train))["--eval_dataset"] == str(tmp_path / "eval.jsonl")
    assert flags(checkout, *options, TRAIN_DATA=str(train), EVAL_DATA="/v.jsonl")["--eval_dataset"] == "/v.jsonl"


def test_files_of_ones_own_rewards_reach_the_engines_as_absolute_paths(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "my reward.py").touch()
    for given, files in (
        ("/a.py /b/../c.py", "/a.py:/c.py"),
        (str(tmp_path / "my reward.py"), str(tmp_path / "my reward.py")),
    ):
        passed = flags(checkout, REWARD=given)
        assert passed["GRPO_REWARD_FILES"] == files
        assert Path(passed["--remote_rm_url"]).name == "user_reward.py"
    for ours in (str(checkout / "reward" / "reward_func.py"), f"{checkout}/reward/../reward/reward_func.py"):
        passed = flags(checkout, REWARD=ours)
        assert "GRPO_REWARD_FILES" not in passed and Path(passed["--remote_rm_url"]).name == "reward_func.py"


def test_two_rewards_of_one_name_are_refused_by_a_plan_too(checkout: Path) -> None:
    done = call(checkout, "--plan", REWARD="/a/x.py /b/x.py")
    assert done.returncode == 2 and "REWARD names /a/x.py and /b/x.py" in done.stderr
    done = call(checkout, "--plan", REWARD="/a/x.py /b/y.py", REWARD_WEIGHTS="1 0.5")
    assert "reward      1 x /a/x.py + 0.5 x /b/y.py" in done.stdout


def test_the_script_may_be_edited_while_a_run_starts(tmp_path: Path) -> None:
    """Set-up takes minutes. Bash reads a script piece by piece, and would go on somewhere in the edited file."""
    script, scripts = tmp_path / "train_grpo.sh", tmp_path / "scripts"
    scripts.mkdir()
    script.write_text((ROOT / "train_grpo.sh").read_text())
    (scripts / "setup.sh").write_text(f"#!/bin/sh\nprintf '# edited\\n%s' \"$(cat {script})\" >{script}\n")
    (scripts / "launch.sh").write_text((ROOT / "scripts" / "launch.sh").read_text())
    (scripts / "env.sh").write_text(f"PATH={tmp_path}:$PATH\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(tmp_path / "python")
    (tmp_path / "python").write_text(
        '#!/bin/sh\n[ "$3" = grpo.settings.options ] || { echo "launched $*"; cat "$4"; }\n'
    )
    for file in (script, scripts / "setup.sh", scripts / "launch.sh", tmp_path / "python"):
        file.chmod(0o755)
    done = subprocess.run([script, "--steps", "3"], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == "" and done.stdout.startswith("launched -P -m grpo.launch.recipe /dev/fd/3 --steps 3")
    assert done.stdout.rstrip().endswith("its key is WANDB_API_KEY"), "the whole recipe"
    assert script.read_text().startswith("# edited")
