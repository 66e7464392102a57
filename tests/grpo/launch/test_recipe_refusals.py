"""What `train_grpo.sh` refuses, and what it says."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.stack.checkout import CHECKOUT, TINY_MODEL

from .recipe import call, launch
from .test_recipe import NO_KEY


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tinny"], "unknown option --tinny"),
        (["--eps_clip_low_high", "0.2", "0.28"], "OpenRLHF flags go after --"),
        (["--lora_rank", "3"], "--lora_rank is a setting, not an option: LORA_RANK=VALUE ./train_grpo.sh"),
        (["--learning-rate=3"], "LEARNING_RATE=VALUE ./train_grpo.sh"),
        (["LEARNING_RATE=3"], "write it before the command: LEARNING_RATE=3 ./train_grpo.sh"),
        (["JUGDE=0"], "JUGDE is not a setting: did you mean JUDGE?"),
        (["--dry-run", "--steps=many"], "STEPS is 'many': give a whole number"),
        (["--steps"], "--steps needs a value"),
        (["--gpus", "3"], "--gpus is '3': give 8, 4, 2 or 1, or set NUM_ENGINES, ENGINE_TP, ACTOR_GPUS and COLOCATE"),
        (["--check", "--plan"], "cannot be combined"),
        (["--dry-run", "--resume", "no/such/run"], "no/such/run is not a run directory"),
        (["--dry-run", "--resume", "latest"], "--resume DIR"),
        (["--dry-run", "--resume", "here", "--run-dir", "there"], "remove --run-dir"),
        (["--dry-run", "--", "--lora_rnk", "3"], "did you mean --lora_rank?"),
        (["--dry-run", "--", "--verbose"], "has no flag --verbose: remove it; "),
        (["--dry-run", "--steps", "many"], "STEPS is 'many': give a whole number"),
        (["--check", "--run-dir", "a" * 300], "cannot be used (File name too long)"),
    ],
)
def test_a_bad_call_is_refused(options: list[str], message: str) -> None:
    done = launch(*options)
    assert done.returncode == 2 and message in done.stderr


def test_the_script_refuses_a_bad_call_and_a_misspelt_variable_before_anything_else(checkout: Path) -> None:
    done = call(checkout, "--stpes", "3")
    assert done.returncode == 2 and "unknown option --stpes: did you mean --steps?" in done.stderr
    done = call(checkout, "--tiny", "--dry-run", LEARNIG_RATE="1")
    assert done.returncode == 2
    assert "LEARNIG_RATE is not a setting" in done.stderr and "did you mean LEARNING_RATE?" in done.stderr


def test_the_plan_shows_what_was_set_and_refuses_what_the_check_refuses() -> None:
    done = launch("--plan", "--", "--use_kl_loss", LEARNING_RATE="2e-6", MICRO_TRAIN_BATCH_SIZE="7")
    assert done.stdout.splitlines()[:3] == [
        "set by you  MICRO_TRAIN_BATCH_SIZE=7 (default: empty)",
        "            LEARNING_RATE=2e-6 (default: 1e-5)",
        "            --use_kl_loss ",
    ]
    assert done.returncode == 2 and "is not a multiple of MICRO_TRAIN_BATCH_SIZE x ranks" in done.stderr
    assert launch("--plan").returncode == 0, "the files of the model are not here, and not missed"


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        ([], {"TRAIN_DATA": "{folder}/rows.jsonl"}, "rows.jsonl, line 1 is not JSON"),
        ([], {"REWARD": "{folder}/reward.py"}, "reward.py has a syntax error"),
        ([], {"ENVIRONMENT": "{folder}/none.py"}, "none.py does not exist"),
        (["--steps", "-3"], {}, "STEPS is -3"),
        (["--gpus", "2"], {"EXPERTS": "bf16"}, "set EXPERTS=packed"),
        ([], {"TEMPLATE_VARIABLES": '{"a":'}, "is not JSON"),
    ],
)
def test_a_plan_without_a_model_reads_the_files_that_are_here(tmp_path, options, variables, message):
    for name, text in (("rows.jsonl", '{"a"'), ("reward.py", "def (")):
        (tmp_path / name).write_text(text)
    given = {name: value.replace("{folder}", str(tmp_path)) for name, value in variables.items()}
    done = launch("--plan", *options, **given)
    assert done.returncode == 2 and message in done.stderr and "refused, 1 problem" in done.stderr


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"JUDGE": "2"}, "JUDGE is '2': set it to 1 (on) or 0 (off)"),
        ({"QUALITY_WEIGHT": "0"}, "set CORRECTNESS_WEIGHT=1, since they must add up to 1"),
        ({"QUALITY_WEIGHT": "1.5"}, "must add up to 1"),
        ({"JUDGE_DEADLINE": "soon"}, "JUDGE_DEADLINE is 'soon'"),
        ({"JUDGE_BASE_URL": "http://gateway.example"}, "JUDGE_BASE_URL is invalid"),
        ({"GOOGLE_GEMINI_BASE_URL": "https://gateway.example"}, "set JUDGE_BASE_URL to the address you mean"),
    ],
)
def test_a_bad_setting_of_the_judge_is_refused_at_once(variables: dict[str, str], message: str) -> None:
    for option in ("--dry-run", "--plan"):
        done = launch(option, **variables)
        assert done.returncode == 2 and message in done.stderr


def test_a_plan_of_what_does_not_fit_ends_with_the_code_of_a_refusal() -> None:
    done = launch("--plan", "--gpus", "4", MODEL="openai/gpt-oss-120b", EXPERTS="bf16", OFFLOAD="0")
    assert done.returncode == 2 and "frozen base, bf16" in done.stdout
    assert "the actor needs" in done.stderr and "set EXPERTS=packed" in done.stderr
    assert launch("--plan", "--gpus", "4", MODEL="openai/gpt-oss-120b").returncode == 0


@pytest.mark.parametrize(
    ("variables", "what"),
    [
        ({"MODEL": "gpt-oss-120b"}, "MODEL gpt-oss-120b is not a folder\n    -> the hub's id is openai/gpt-oss-120b"),
        ({"GENERATE_MAX_LEN": "199000", "GPU_GB": "192"}, "the model's context is 131,072"),
        ({"ENGINE_TP": "3"}, "ENGINE_TP 3 does not divide the 64 attention heads"),
        ({"THINKING_BUDGET": "2048", "ANSWER_BUDGET": "1024"}, "= 3073 tokens, but GENERATE_MAX_LEN is 3072"),
        ({"JUDGE_RPM": "1"}, "64 rollouts, but the judge can send only 12 requests within JUDGE_DEADLINE"),
    ],
)
def test_a_plan_of_what_no_gpu_could_run_is_refused_before_the_model_is_here(variables, what) -> None:
    done = launch("--plan", **{"MODEL": "openai/gpt-oss-120b", **variables})
    assert done.returncode == 2 and what in done.stderr


def test_a_check_lists_the_problems_the_missing_gpus_first_and_starts_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = launch("--check", "--run-dir", str(run), PATH=f"{sys.prefix}/bin:/usr/bin:/bin", **NO_KEY)
    assert done.returncode == 2 and not run.exists()
    assert "1. MODEL openai/gpt-oss-120b needs 8 GPUs" in done.stderr
    for remedy in ("hf download openai/gpt-oss-120b", "python -m data.prepare"):
        assert remedy in done.stderr
    assert "the judge has no key" in done.stderr and "export GEMINI_API_KEY, or set JUDGE=0" in done.stderr


def test_missing_tiny_model_is_built_by_tiny() -> None:
    done = launch("--tiny", "--plan", MODEL=str(TINY_MODEL / "absent"))
    assert "absent is not built yet: ./train_grpo.sh --tiny builds it" in done.stdout
    assert "hf download" not in done.stdout


@pytest.mark.parametrize("what", ["stdout", "another pipe"])
def test_a_run_whose_reader_stops_before_it_starts_ends_quietly(what: str) -> None:
    outside, inside = os.pipe()
    os.close(outside)
    act = "print(1, flush=True)" if what == "stdout" else f"os.write({inside}, b'1')"
    program = f"""
import os, sys
from grpo.launch import __main__ as launch
launch._main = lambda options: {act}
sys.argv = ["launch", "run"]
sys.exit(launch.main())
"""
    output = inside if what == "stdout" else subprocess.DEVNULL
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, pass_fds=[inside], cwd=CHECKOUT)
    os.close(inside)
    if what == "stdout":
        assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    else:
        assert done.returncode == 1 and "BrokenPipeError" in done.stderr, "an error of the run itself is shown"


def test_a_plan_for_a_reader_that_stops_early_ends_quietly(checkout: Path) -> None:
    command = f"{checkout}/train_grpo.sh --plan | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
