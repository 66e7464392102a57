"""From the flags of `train_grpo.sh` to the trainer's command line and the workers' variables."""

import argparse
import contextlib
import functools
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from grpo.flags import ours
from grpo.flags.parser import make_parser

from .recipe import ROOT, call, launch

# The values of the run log, except for its learning rate and batches: docs/tuning.md says why they differ.
RUN_LOG = """
--advantage_estimator dr_grpo --init_kl_coef 0.0 --n_samples_per_prompt 8 --rollout_batch_size 8 --train_batch_size 64
--prompt_max_len 1024
--generate_max_len 3072 --actor_learning_rate 1e-05 --lr_warmup_ratio 0.03 --lora_rank 64 --lora_alpha 128
--target_modules q_proj k_proj v_proj o_proj --zero_stage 3 --adam_offload --gradient_checkpointing
--gradient_checkpointing_use_reentrant --save_steps 5 --max_ckpt_num 2 --num_episodes 50 --eval_steps 10
--temperature 1.0 --attn_implementation sinks --vllm_num_engines 2 --vllm_tensor_parallel_size 2
--actor_num_gpus_per_node 4
"""
OWN = {"environment": "retrieval", "judge_base_url": "https://a.example", "library": "/a"}
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
    done = launch("--dry-run", *options, environ=dict(variables))
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
    assert not {"--steps", "--use_wandb", "--enforce_eager"} & passed.keys()
    assert not {"--thinking_budget", "--answer_budget"} & passed.keys()


def choose_value(action: argparse.Action) -> str:
    """Return a value that the flag takes, and does not have by default."""
    if action.dest in OWN or action.choices:
        return OWN.get(action.dest) or next(one for one in action.choices if one != action.default)
    for value in ("/a", "7", "0.7"):
        with contextlib.suppress(argparse.ArgumentTypeError, ValueError):
            (action.type or str)(value)
            return value
    raise AssertionError(action.dest)


@pytest.mark.parametrize("options", [[], ["--tiny"]])
def test_every_flag_of_ours_reaches_the_trainer_or_the_workers(options: list[str]) -> None:
    words, wanted = list(options), {}
    for action in make_parser()._actions:
        flag = action.option_strings[0]
        name, is_exported = flag[2:], flag[2:] in ours.EXPORTED
        if isinstance(action, ours.SWITCH) and name in (*ours.OURS, *ours.EXPORTED):
            words.append(f"--no-{name}" if action.default else flag)
            value, flag = str(int(not action.default)) if is_exported else "", words[-1]
        elif name in (*ours.OURS, *ours.EXPORTED):
            value = choose_value(action)
            words += [flag, *[value] * (action.nargs or 1)]
            value = value if is_exported else " ".join([str((action.type or str)(value))] * (action.nargs or 1))
        else:
            continue
        wanted[f"GRPO_{name.upper()}" if is_exported else flag] = value
    assert len(wanted) > 50 and wanted.items() <= resolve_flags(*words).items()


@pytest.mark.parametrize("tiny", [[], ["--tiny"]])
@pytest.mark.parametrize(
    ("gpus", "shape", "shard"),
    [("8", "224", "zero3"), ("4", "122", "zero3"), ("2", "111", "none"), ("1", "111", "engine")],
)
def test_a_box_is_other_values_of_four_variables(tiny, gpus, shape, shard) -> None:
    full, passed = resolve_flags(), resolve_flags("--gpus", gpus)
    if tiny and gpus != "8":  # --tiny alone has a smaller shape
        passed = resolve_flags(*tiny, "--gpus", gpus)
    assert [passed[name] for name in SHAPE] == [*shape] and passed.get("--actor_shard", "zero3") == shard
    if not tiny:
        sizes = {"--micro_train_batch_size", "--micro_rollout_batch_size", "--ref_num_gpus_per_node"}
        folders = {"--run_dir", "--save_path", "--ckpt_path", "--metrics_dir", "--wandb_run_name", "--use_tensorboard"}
        share = {"--vllm_gpu_memory_utilization"} if gpus == "1" else set()
        assert {name for name in full if full[name] != passed[name]} <= {*SHAPE, *sizes, *folders, *share}
        assert ("--colocate_all_models" in passed) == (gpus == "1")
        assert passed["--ref_num_gpus_per_node"] == shape[-1], "OpenRLHF compares them if GPUs are shared"
    assert resolve_flags("--gpus", gpus, "--actor_num_gpus_per_node", "1")["--actor_num_gpus_per_node"] == "1"


@pytest.mark.parametrize(
    ("words", "derived"),
    [
        ("", {"--enable_prefix_caching": ""}),
        ("--eval_temperature 0.0", {"--eval_n_samples_per_prompt": "1"}),  # greedy samples are equal
        ("--eval_temperature 0.5", {"--eval_n_samples_per_prompt": "8"}),
        ("--pipeline", {"--old_log_probs": "engine"}),
        ("--experts bf16", {"--offload": ""}),
        ("--prompt_data /a/train.jsonl", {"--eval_dataset": "/a/eval.jsonl"}),
        ("--tiny --prompt_data /a/train.jsonl", {"--eval_dataset": "/a/eval.jsonl"}),
        ("--prompt_data /a/train.jsonl --eval_dataset /v.jsonl", {"--eval_dataset": "/v.jsonl"}),
        ("--colocate_all_models", dict(zip(SHAPE, "428", strict=True))),  # engines and actor have the whole box
        ("--tiny --gpus 4 --colocate_all_models", dict(zip(SHAPE, "224", strict=True))),
        ("--judge_models=", {"GRPO_JUDGE_MODELS": "", "GRPO_JUDGE": "1"}),
        ("--no-judge", {"GRPO_JUDGE": "0"}),
    ],
)
def test_what_follows_from_other_flags(words: str, derived: dict[str, str]) -> None:
    assert derived.items() <= resolve_flags(*words.split()).items()


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


def test_files_of_ones_own_rewards_reach_the_engines_as_absolute_paths(tmp_path: Path) -> None:
    (own := tmp_path / "my reward.py").touch()
    for given, files in (("/a.py /b/../c.py", "/a.py:/c.py"), ("/a.py,/c.py", "/a.py:/c.py"), (str(own), str(own))):
        passed = resolve_flags("--remote_rm_url", given)
        assert passed["GRPO_REWARD_FILES"] == files and Path(passed["--remote_rm_url"]).name == "user_reward.py"
    for file in (f"{ROOT}/reward/reward_func.py", f"{ROOT}/reward/../reward/reward_func.py"):
        passed = resolve_flags(REWARD=file)
        assert "GRPO_REWARD_FILES" not in passed and Path(passed["--remote_rm_url"]).name == "reward_func.py"


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
    (tmp_path / "python").write_text('#!/bin/sh\n[ "$1" = -c ] || [ "$3" = grpo.flags ] || echo "launched $*"\n')
    for file in (script, scripts / "setup.sh", scripts / "launch.sh", tmp_path / "python"):
        file.chmod(0o755)
    done = subprocess.run([script, "--steps", "3"], capture_output=True, text=True, check=False)
    assert done.stderr == "" and done.stdout.startswith(f"launched -m grpo.launch --script {script} --pretrain ")
    assert done.stdout.endswith("--max_ckpt_num 2 -- --steps 3\n"), "the whole recipe"
    assert script.read_text().startswith("# edited")


def test_a_copy_in_another_folder_starts_if_it_names_the_checkout(checkout: Path, tmp_path: Path) -> None:
    lines = (ROOT / "train_grpo.sh").read_text().splitlines()
    [place] = [number for number, line in enumerate(lines) if line.startswith("checkout=")]
    lines[place] = f"checkout={checkout}"
    (copy := tmp_path / "my_task.sh").write_text("\n".join(lines).replace("--lora_rank 64", "--lora_rank 32"))
    done = subprocess.run(["bash", str(copy), "--dry-run"], cwd="/", capture_output=True, text=True)
    assert done.returncode == 0 and "--lora_rank 32" in done.stdout
