"""`train_grpo.sh`: options, defaults, and that every setting can be set from outside."""

import functools
import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from grpo.launch import recipe
from grpo.run import own_runs
from grpo.settings.recipe import default
from grpo.settings.setting import Setting
from grpo.settings.table import EXPORTED, SETTINGS
from grpo.train.objectives import LOSSES

from .recipe import ROOT, call, launch

# The values of the run log, except for its learning rate and batches: docs/tuning.md says why they differ.
RUN_LOG = """
--advantage_estimator dr_grpo --init_kl_coef 0.0 --n_samples_per_prompt 8 --rollout_batch_size 8 --train_batch_size 64
--actor_shard zero3 --prompt_max_len 1024
--generate_max_len 3072 --actor_learning_rate 1e-05 --lr_warmup_ratio 0.03 --lora_rank 64 --lora_alpha 128
--target_modules q_proj k_proj v_proj o_proj --zero_stage 3 --experts packed --adam_offload --gradient_checkpointing
--gradient_checkpointing_use_reentrant --save_steps 5 --max_ckpt_num 2 --num_episodes 50 --eval_steps 10
--eval_at_start --temperature 1.0 --attn_implementation sinks --vllm_num_engines 2 --vllm_tensor_parallel_size 2
--actor_num_gpus_per_node 4
"""
NO_KEY = {"GEMINI_API_KEY": "", "GOOGLE_API_KEY": ""}
SHAPE = ("--vllm_num_engines", "--vllm_tensor_parallel_size", "--actor_num_gpus_per_node")


def parse_flags(words: list[str]) -> dict[str, str]:
    passed: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            passed[word] = []
        else:
            passed[list(passed)[-1]].append(word)
    return {name: " ".join(values) for name, values in passed.items()}


@functools.cache
def resolve_command(options: tuple[str, ...], variables: frozenset[tuple[str, str]], stack: str | None) -> str:
    done = launch("--dry-run", *options, **dict(variables))
    assert done.returncode == 0, done.stderr
    return done.stdout


def resolve_flags(*options: str, command: str = "", **variables: str) -> dict[str, str]:
    """Return the flags of the resolved command, and the variables before it, with their values.

    Args:
        command: that was resolved before.
    """
    command = command or resolve_command(options, frozenset(variables.items()), os.environ.get("DS_ACCELERATOR"))
    words = shlex.split(command.replace("\\\n", " "))
    start = words.index("python")
    assert words[start : start + 3] == ["python", "-m", "openrlhf.cli.train_ppo_ray"]
    return {name: value for name, _, value in (w.partition("=") for w in words[:start])} | parse_flags(
        words[start + 3 :]
    )


def test_the_defaults_are_those_of_the_run_log() -> None:
    passed = resolve_flags()
    assert parse_flags(RUN_LOG.split()).items() <= passed.items()
    assert not {"--max_steps", "--use_wandb", "--enforce_eager"} & passed.keys()
    assert not {"--thinking_budget", "--answer_budget", "--enable_prefix_caching"} & passed.keys()


@pytest.mark.parametrize("variables", [{"THINKING_BUDGET": "9", "ANSWER_BUDGET": "9"}, {"ENVIRONMENT": "retrieval"}])
def test_rollouts_of_several_calls_have_a_prefix_cache(variables: dict[str, str]) -> None:
    assert "--enable_prefix_caching" in resolve_flags(**variables)


@pytest.mark.parametrize(("given", "count"), [("0", "1"), ("0.0", "1"), ("0.5", "8")])
def test_of_greedy_samples_which_are_equal_there_is_one(given: str, count: str) -> None:
    assert resolve_flags(EVAL_TEMPERATURE=given)["--eval_n_samples_per_prompt"] == count


def make_other_value(setting: Setting, number: int) -> str:
    """Return a value that the setting does not have by default, and that no other setting gets."""
    choices = tuple(LOSSES) if setting.name == "POLICY_LOSS" else setting.choices
    if choices or setting.kind is bool:
        return next(one for one in choices or "10" if one != default(setting.name))
    one = {int: f"{number}", float: f"{number}.5", str: f"/{setting.name}"}[setting.kind]
    return " ".join([one] * (setting.count or 2))


@pytest.mark.parametrize("options", [[], ["--tiny"]])
def test_every_setting_can_be_set_from_outside(options: list[str]) -> None:
    given = {name: make_other_value(setting, number) for number, (name, setting) in enumerate(SETTINGS.items(), 2)}
    given |= {"ENVIRONMENT": "retrieval", "JUDGE_BASE_URL": "https://a.example", "NAME": "mine"}
    passed = resolve_flags(*options, **given)
    for name, setting in SETTINGS.items():
        if setting.kind is bool and setting.flag:
            wanted = " ".join(setting.more) if given[name] == "1" else None
            assert passed.get(f"--{setting.flag}") == wanted, name
        elif setting.flag:
            assert passed[f"--{setting.flag}"] == given[name], name
        elif name in EXPORTED:
            assert passed[f"GRPO_{name}"] == given[name], name
    assert passed["GRPO_REWARD_FILES"] == given["REWARD"] and Path(passed["--run_dir"]).name.startswith("mine-")


@pytest.mark.parametrize("tiny", [[], ["--tiny"]])
@pytest.mark.parametrize(
    ("gpus", "shape", "shard"),
    [("8", "224", "zero3"), ("4", "122", "zero3"), ("2", "111", "none"), ("1", "111", "engine")],
)
def test_a_box_is_other_values_of_four_variables(tiny, gpus, shape, shard) -> None:
    full, passed = resolve_flags(), resolve_flags("--gpus", gpus)
    if tiny and gpus != "8":  # --tiny alone has a smaller shape
        passed = resolve_flags(*tiny, "--gpus", gpus)
    assert [passed[name] for name in (*SHAPE, "--actor_shard")] == [*shape, shard]
    if not tiny:
        sizes = {"--micro_train_batch_size", "--micro_rollout_batch_size", "--ref_num_gpus_per_node", "--actor_shard"}
        folders = {"--run_dir", "--save_path", "--ckpt_path", "--metrics_dir", "--wandb_run_name", "--use_tensorboard"}
        share = {"--vllm_gpu_memory_utilization"} if gpus == "1" else set()
        assert {name for name in full if full[name] != passed[name]} <= {*SHAPE, *sizes, *folders, *share}
        assert ("--colocate_all_models" in passed) == (gpus == "1")
        assert passed["--ref_num_gpus_per_node"] == shape[-1], "OpenRLHF compares them if GPUs are shared"
    assert resolve_flags("--gpus", gpus, ENGINE_TP="8")["--vllm_tensor_parallel_size"] == "8"


@pytest.mark.parametrize(("options", "shape"), [(["--tiny", "--gpus", "4"], "224"), ([], "428")])
def test_engines_and_actor_that_share_gpus_have_all_of_the_box(options, shape) -> None:
    passed = resolve_flags(*options, COLOCATE="1")
    assert [passed[name] for name in SHAPE] == [*shape]


def test_tiny_is_the_same_run_with_other_values() -> None:
    tiny, full = resolve_flags("--tiny"), resolve_flags()
    assert tiny.keys() - full.keys() <= {"--max_steps", "--stage3_param_persistence_threshold", "--enforce_eager"}
    assert full.keys() - tiny.keys() <= {"--template_date"}, "its template reads none, once the model is here"
    assert tiny["--pretrain"] != tiny["--engine_model"], "engines on CPU load a dequantized copy"
    assert [tiny[name] for name in SHAPE] == [*"112"]
    large = resolve_flags("--tiny", "--steps", "2", NUM_ENGINES="2", ENGINE_TP="2", ACTOR_GPUS="4")
    assert [large[name] for name in SHAPE] == [*"224"] and large["--max_steps"] == "2"
    for keys in (NO_KEY, {"GEMINI_API_KEY": "not-a-key"}):  # also with the stand-in: its command may be repeated
        limits = resolve_flags("--tiny", **keys)
        assert limits["GRPO_JUDGE_RPM"] == full["GRPO_JUDGE_RPM"]


def test_judge_is_on_by_default_and_can_be_disabled_in_three_ways() -> None:
    passed = resolve_flags()
    assert [passed[f"GRPO_{name}"] for name in ("JUDGE", "CORRECTNESS_WEIGHT", "QUALITY_WEIGHT")] == ["1", "0.6", "0.4"]
    assert len(passed["GRPO_JUDGE_MODELS"].split()) == 3 and passed["GRPO_JUDGE_TRIES"] == "3"
    assert passed["GRPO_JUDGE_FALLBACK"] == "correctness" and passed["GRPO_JUDGE_UNFINISHED"] == "1"
    assert resolve_flags(JUDGE_MODELS="")["GRPO_JUDGE_MODELS"] == ""
    for variables, why in (
        ({"JUDGE": "0"}, "JUDGE is 0"),
        ({"JUDGE_MODELS": ""}, "JUDGE_MODELS is empty"),
        ({"CORRECTNESS_WEIGHT": "1", "QUALITY_WEIGHT": "0"}, "QUALITY_WEIGHT is 0"),
    ):
        assert f"reward      correctness alone, because {why}" in launch("--plan", **variables).stdout


def test_a_plan_names_the_stand_in() -> None:
    assert "NO KEY: a local server" in launch("--tiny", "--plan", **NO_KEY).stdout
    assert "NO KEY" not in launch("--plan", **NO_KEY).stdout
    keyed = launch("--tiny", "--plan", **NO_KEY | {"GEMINI_API_KEY": "k" * 20}).stdout
    assert "NO KEY" not in keyed and "Ray gets" not in keyed
    assert f"devices     3 stand-ins for GPUs on {len(os.sched_getaffinity(0))} core" in keyed


def test_the_users_flags_win() -> None:
    passed = resolve_flags("--", "--lora_rank", "5", "--eps_clip_low_high", "0.2", "0.28", LORA_RANK="7")
    assert passed["--lora_rank"] == "5" and passed["--eps_clip_low_high"] == "0.2 0.28"


def test_the_script_can_be_called_from_anywhere_and_writes_nothing(checkout: Path, tmp_path: Path) -> None:
    """A folder of the same name as our package is not taken for it; relative paths are the user's."""
    before = {path.name for path in checkout.iterdir()}, (ROOT / "runs").exists()
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo" / "__init__.py").write_text("raise RuntimeError")
    command = [str(checkout / "train_grpo.sh"), "--dry-run", "--run-dir", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    passed = resolve_flags(command=done.stdout)
    assert passed["--run_dir"] == passed["--metrics_dir"] == str(tmp_path / "out")
    assert passed["--ckpt_path"] == str(tmp_path / "out" / "checkpoints")
    assert call(checkout, "--tiny", "--plan").returncode == 0 and launch("--tiny", "--plan").returncode == 0
    assert ({path.name for path in checkout.iterdir()}, (ROOT / "runs").exists()) == before


def test_help_names_every_option(checkout: Path) -> None:
    done = call(checkout, "--help")
    assert done.returncode == 0 and "set -euo" not in done.stdout
    for option in ("tiny", "gpus", "check", "plan", "dry-run", "run-dir", "resume", "steps", "config"):
        assert f"--{option}" in done.stdout


def test_help_for_a_reader_that_stops_early_ends_quietly(checkout: Path) -> None:
    command = f"{checkout}/train_grpo.sh --help | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_no_secret_is_in_the_command() -> None:
    secrets = {"WANDB_API_KEY": "wandb-0123456789", "HF_TOKEN": "hf_0123456789", "GEMINI_API_KEY": "AIza-0123456789"}
    done = launch("--dry-run", USE_WANDB="1", **secrets)
    assert "--use_wandb 1" in done.stdout and "0123456789" not in done.stdout + done.stderr


def test_a_file_of_settings_wins_over_the_script_and_a_box(tmp_path: Path) -> None:
    (file := tmp_path / "my.env").write_text(
        "# mine\nLORA_RANK=5\nNUM_ENGINES=3  # of four\nTARGET_MODULES='q_proj v_proj'\n"
    )
    passed = resolve_flags("--gpus", "4", "--config", str(file), NUM_ENGINES="7")
    wanted = {"--lora_rank": "5", "--vllm_num_engines": "7", "--target_modules": "q_proj v_proj"}
    assert wanted.items() <= passed.items()
    file.write_text("LORA_RNK=5\n")
    wrong = launch("--dry-run", "--config", str(file))
    assert wrong.returncode == 2 and "line 1: LORA_RNK is not a setting: did you mean LORA_RANK?" in wrong.stderr


def test_a_run_keeps_its_files_wherever_it_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in ("r.py", "s.py", "my data.jsonl"):
        (tmp_path / file).touch()
    (tmp_path / "python").mkdir()
    monkeypatch.chdir(tmp_path)
    given = {"REWARD": "r.py s.py", "TRAIN_DATA": "my data.jsonl", "ENVIRONMENT": "python", "MODEL": "openai/gpt-oss"}
    assert recipe._make_absolute({**given, "SEED": "1"}) == {
        "REWARD": f"{tmp_path}/r.py {tmp_path}/s.py", "TRAIN_DATA": f"{tmp_path}/my data.jsonl",
        "ENVIRONMENT": "python", "MODEL": "openai/gpt-oss", "SEED": "1",
    }  # fmt: skip


def test_a_resumed_run_keeps_its_settings(tmp_path: Path, monkeypatch) -> None:
    """Those of --config and of variables; a new value wins. Without REWARD, it would go on with another reward."""
    monkeypatch.setattr(own_runs, "CHECKOUT", tmp_path)
    kept = {"config": {"LORA_RANK": "5", "REWARD": "/b.py"}, "changes": {"REWARD": ["/a.py", ""], "--top_k": ["5", ""]}}
    first = {name: resolve_flags()[f"--{name}"] for name in ("pretrain", "prompt_data", "target_modules")}
    first |= {"target_modules": first["target_modules"].split(), "lora_rank": 5, "lora_alpha": 128}
    (tmp_path / "config.json").write_text(json.dumps({**kept, "flags": first}))
    own_runs.record(tmp_path, {"REWARD": "/a.py"})
    passed = resolve_flags("--resume", str(tmp_path), SEED="7")
    assert (passed["GRPO_REWARD_FILES"], passed["--seed"], passed["--lora_rank"]) == ("/a.py", "7", "5")
    assert "LORA_RANK was 5, now 4" in launch("--dry-run", "--resume", str(tmp_path), LORA_RANK="4").stderr


def test_a_resumed_run_keeps_its_steps_and_says_so_unless_they_are_given_again(tmp_path: Path) -> None:
    """The schedule of the learning rate spans them."""
    flags = {name: resolve_flags()[f"--{name}"] for name in ("pretrain", "prompt_data", "target_modules")}
    flags |= {"target_modules": flags["target_modules"].split(), "lora_rank": 64, "lora_alpha": 128, "max_steps": 5}
    recorded = {"changes": {"STEPS": ["5", ""]}, "flags": flags}  # of --steps 5, or of STEPS=5
    (tmp_path / "config.json").write_text(json.dumps(recorded))
    resumed = str(tmp_path)
    assert resolve_flags("--resume", resumed)["--max_steps"] == "5"
    assert resolve_flags("--resume", resumed, "--steps", "9")["--max_steps"] == "9"
    assert "STEPS=5 (kept" in launch("--plan", "--resume", resumed).stdout
    assert "STEPS=9 (default: 5)" in launch("--plan", "--resume", resumed, "--steps", "9").stdout


def test_the_steps_of_the_option_are_recorded_for_a_resume(monkeypatch) -> None:
    seen = {}
    monkeypatch.setattr("grpo.launch.__main__.main", lambda words: seen.update(words=words) or 0)
    assert launch("--steps", "7", "--dry-run").returncode == 0
    [changes] = [json.loads(word.partition("=")[2]) for word in seen["words"] if word.startswith("--changes=")]
    assert changes["STEPS"] == ["7", ""]


@pytest.mark.parametrize("part", [{"config": {"NO_SETTING": "5"}}, {"changes": {"NO_SETTING": ["5", ""]}}])
def test_a_run_with_a_setting_that_is_gone_is_not_resumed(tmp_path: Path, part: dict) -> None:
    """It would go on without what the setting did."""
    (tmp_path / "config.json").write_text(json.dumps({"flags": {}, **part}))
    done = launch("--dry-run", "--resume", str(tmp_path))
    assert done.returncode == 2 and "NO_SETTING" in done.stderr


@pytest.mark.parametrize("options", [[], ["--tiny"]])
def test_held_out_problems_are_those_beside_the_training_problems(tmp_path: Path, options) -> None:
    train = str(tmp_path / "train.jsonl")
    assert resolve_flags(*options, TRAIN_DATA=train)["--eval_dataset"] == str(tmp_path / "eval.jsonl")
    assert resolve_flags(*options, TRAIN_DATA=train, EVAL_DATA="/v.jsonl")["--eval_dataset"] == "/v.jsonl"


def test_files_of_ones_own_rewards_reach_the_engines_as_absolute_paths(tmp_path: Path) -> None:
    (own := tmp_path / "my reward.py").touch()
    for given, files in (("/a.py /b/../c.py", "/a.py:/c.py"), (str(own), str(own))):
        passed = resolve_flags(REWARD=given)
        assert passed["GRPO_REWARD_FILES"] == files and Path(passed["--remote_rm_url"]).name == "user_reward.py"
    for ours in (f"{ROOT}/reward/reward_func.py", f"{ROOT}/reward/../reward/reward_func.py"):
        passed = resolve_flags(REWARD=ours)
        assert "GRPO_REWARD_FILES" not in passed and Path(passed["--remote_rm_url"]).name == "reward_func.py"


def test_two_rewards_of_one_name_are_refused_by_a_plan_too() -> None:
    done = launch("--plan", REWARD="/a/x.py /b/x.py")
    assert done.returncode == 2 and "REWARD names /a/x.py and /b/x.py" in done.stderr
    done = launch("--plan", REWARD="/a/x.py /b/y.py", REWARD_WEIGHTS="1 0.5")
    assert "reward      1 x /a/x.py + 0.5 x /b/y.py" in done.stdout


def test_the_script_may_be_edited_while_a_run_starts(tmp_path: Path) -> None:
    """Setup takes minutes. Bash reads a script piece by piece, and would go on somewhere in the edited file."""
    script, scripts = tmp_path / "train_grpo.sh", tmp_path / "scripts"
    scripts.mkdir()
    script.write_text((ROOT / "train_grpo.sh").read_text())
    (scripts / "setup.sh").write_text(f"#!/bin/sh\nprintf '# edited\\n%s' \"$(cat {script})\" >{script}\n")
    (scripts / "launch.sh").write_text((ROOT / "scripts" / "launch.sh").read_text())
    (scripts / "env.sh").write_text(f"PATH={tmp_path}:$PATH\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(tmp_path / "python")
    (tmp_path / "python").write_text(
        '#!/bin/sh\n[ "$1" = -c ] || [ "$3" = grpo.settings.options ] || { echo "launched $*"; cat "$4"; }\n'
    )
    for file in (script, scripts / "setup.sh", scripts / "launch.sh", tmp_path / "python"):
        file.chmod(0o755)
    done = subprocess.run([script, "--steps", "3"], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == "" and done.stdout.startswith("launched -P -m grpo.launch.recipe /dev/fd/3 --steps 3")
    assert done.stdout.rstrip().endswith("its key is WANDB_API_KEY"), "the whole recipe"
    assert script.read_text().startswith("# edited")
