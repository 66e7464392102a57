"""What `train_grpo.sh` refuses, and what it says."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .recipe import call, launch
from .test_trainer_flags import NO_KEY


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tinny", "did you mean --tiny?"),
        ("--steps=many", "--steps: 'many' is not"),
        ("--steps", "--steps: expected one argument"),
        ("--gpus 3", "--gpus: invalid choice: 3"),
        ("--resume no/such/run", "no/such/run is not a run directory"),
        ("--resume latest", "--resume DIR"),
        ("--resume here --run-dir there", "remove --run-dir"),
        ("-- --lora_ran 3", "did you mean --lora_rank?"),  # argparse would take it for an abbreviation
        ("--pretrain=", "--pretrain is empty"),
        ("--quality_weight 0", "set --correctness_weight 1"),
        ("--quality_weight 1.5", "must add up to 1"),
        ("--correctness_weight=", "--correctness_weight"),
        ("--judge_deadline soon", "--judge_deadline: 'soon'"),
        ("--judge_base_url http://gateway.example", "--judge_base_url is invalid"),
        ("--remote_rm_url /a/x.py,/b/x.py", "names /a/x.py and /b/x.py"),
    ],
)
def test_a_bad_call_is_refused_in_every_mode(words: str, message: str) -> None:
    for mode in ("--dry-run", "--plan"):
        done = launch(mode, *words.split())
        assert done.returncode == 2 and message in done.stderr


def test_an_address_of_the_judge_that_only_a_variable_names_is_refused() -> None:
    done = launch("--dry-run", environ={"GOOGLE_GEMINI_BASE_URL": "https://gateway.example"})
    assert done.returncode == 2 and "set --judge_base_url" in done.stderr


def test_the_script_refuses_a_bad_call_before_anything_else(checkout: Path) -> None:
    done = call(checkout, "--stpes", "3")
    assert done.returncode == 2 and "did you mean --steps?" in done.stderr and not done.stdout


def test_the_plan_shows_what_was_set_and_refuses_what_the_check_refuses() -> None:
    done = launch("--plan", "--actor_learning_rate", "2e-6", "--micro_train_batch_size", "7", "--use_kl_loss")
    shown = [line.split()[-3:] for line in done.stdout.splitlines() if "command line" in line]
    assert len(shown) == 3 and done.stdout.startswith("differs     --micro_train_batch_size 7 (shipped: unset;")
    assert done.returncode == 2 and "is not a multiple of" in done.stderr
    assert launch("--plan").returncode == 0, "the files of the model are not here, and not missed"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--prompt_data {folder}/rows.jsonl", "rows.jsonl, line 1 is not JSON"),
        ("--remote_rm_url {folder}/reward.py", "reward.py has a syntax error"),
        ("--environment {folder}/none.py", "none.py does not exist"),
        ("--gpus 2 --experts bf16", "--experts packed"),
        ("--gpus 4 --experts bf16 --no-offload", "--experts packed"),
        ('--template_variables {"a":', "is not JSON"),
        ("--pretrain gpt-oss-120b", "the hub's id is openai/gpt-oss-120b"),
        ("--generate_max_len 199000 --gpu_gb 192", "the model's context is 131,072"),
        ("--vllm_tensor_parallel_size 3", "does not divide the 64 attention heads"),
        ("--thinking_budget 2048 --answer_budget 1024", "= 3073 tokens, but --generate_max_len is 3072"),
        ("--judge_rpm 1", "64 rollouts, but the judge can send only 12 requests within --judge_deadline"),
    ],
)
def test_a_plan_refuses_what_is_wrong_on_any_machine(tmp_path, words: str, message: str) -> None:
    for name, text in (("rows.jsonl", '{"a"'), ("reward.py", "def (")):
        (tmp_path / name).write_text(text)
    done = launch("--plan", *words.replace("{folder}", str(tmp_path)).split())
    assert done.returncode == 2 and message in done.stderr


def test_a_check_lists_the_problems_the_missing_gpus_first_and_starts_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = launch("--check", "--run-dir", str(run), environ={"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", **NO_KEY})
    assert done.returncode == 2 and not run.exists()
    assert "1. MODEL openai/gpt-oss-120b needs 8 GPUs" in done.stderr
    for remedy in ("hf download openai/gpt-oss-120b", "python -m data.prepare", "export GEMINI_API_KEY"):
        assert remedy in done.stderr
    done = launch("--check", "--run-dir", "a" * 300)
    assert done.returncode == 2 and "cannot be used (File name too long)" in done.stderr


@pytest.mark.parametrize("words", ["--plan", "--help"])
def test_a_reader_that_stops_early_ends_the_script_quietly(checkout: Path, words: str) -> None:
    command = f"{checkout}/train_grpo.sh {words} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 128 + signal.SIGPIPE) and done.stderr == ""
