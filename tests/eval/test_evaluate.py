"""Arguments rejected before vLLM is imported, and the settings that samples depend on."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from eval import checks, evaluate
from eval.engine import meeting_place
from eval.problems import read_problems
from grpo.checkpoint import adapter_files, digests
from grpo.launch.supervise import processes
from grpo.model import model_files
from grpo.stack.problem import UserError
from tests.scripts.conftest import save_adapter

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def trained_adapter(checkpoint, tmp_path_factory) -> Path:
    return save_adapter(checkpoint, tmp_path_factory.mktemp("adapter"))


@pytest.fixture
def data(tmp_path) -> Path:
    rows = [{"id": f"p{n}", "prompt": f"What is {n} plus 1?", "label": str(n + 1)} for n in range(3)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "data.jsonl"


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def good_command(model, data, out) -> list[object]:
    """A command line that is right."""
    return ["--model", model, "--data", data, "--n", 2, "--max-tokens", 3072, "--out", out]


def parse_command(*words: object):
    return evaluate.parser().parse_args(list(map(str, words)))


def read_refusal(capsys, *words: object) -> str:
    """Return the message for a rejected command line. It must not import vLLM."""
    vllm = "vllm" in sys.modules
    assert evaluate.main(list(map(str, words))) == 2
    assert vllm or "vllm" not in sys.modules
    return capsys.readouterr().err


def test_invalid_arguments_are_rejected_before_heavy_imports(
    good_command, model, out, tmp_path, capsys, checkpoint, monkeypatch
):
    none = tmp_path / "none"
    assert "cannot be read" in read_refusal(capsys, *good_command, "--data", none)
    assert str(none) in read_refusal(capsys, *good_command, "--model", none)
    assert "hf download org/none" in read_refusal(capsys, *good_command, "--model", "org/none")
    assert str(none) in read_refusal(capsys, *good_command, "--adapter", none)
    assert "--n is 0" in read_refusal(capsys, *good_command, "--n", 0)
    assert "--limit is -1" in read_refusal(capsys, *good_command, "--limit", -1)
    assert "pass@4 needs 4 samples" in read_refusal(capsys, *good_command, "--k", 1, 4)
    assert "--temperature 0 draws the same" in read_refusal(capsys, *good_command, "--temperature", 0)
    assert "--temperature is -1" in read_refusal(capsys, *good_command, "--temperature", -1)
    assert "--temperature is nan" in read_refusal(capsys, *good_command, "--temperature", "nan")
    assert "--top-p is 0" in read_refusal(capsys, *good_command, "--top-p", 0)
    assert "--tensor-parallel 3 does not divide" in read_refusal(capsys, *good_command, "--tensor-parallel", 3)
    assert "lower --max-tokens" in read_refusal(capsys, *good_command, "--max-tokens", 10**6)
    assert "--max-model-len is 50" in read_refusal(capsys, *good_command, "--max-tokens", 50, "--max-model-len", 50)
    assert "cannot load MXFP4" in read_refusal(capsys, *good_command, "--model", checkpoint)
    copy = shutil.copytree(model, tmp_path / "copy", ignore=lambda *_: ["generation_config.json"])
    assert "generation_config.json" in read_refusal(capsys, *good_command, "--model", copy), "it says no stop tokens"
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE")
    assert "source scripts/env.sh" in read_refusal(capsys, *good_command)
    assert not out.exists()


@pytest.mark.parametrize(
    ("budgets", "what"),
    [
        (["--thinking-budget", 9], "--thinking-budget and --answer-budget"),
        (["--answer-budget", 9], "--thinking-budget and --answer-budget"),
        (["--thinking-delimiter", "think"], "--thinking-delimiter"),
        (["--thinking-budget", -1, "--answer-budget", 9], "thinking budget is -1"),
        (["--thinking-budget", 9, "--answer-budget", 1], "answer budget is 1"),
        # <|end|><|start|>assistant<|channel|>final<|message|> are 6 tokens
        (["--thinking-budget", 20, "--answer-budget", 8, "--max-tokens", 33], "--max-tokens 34"),
        (["--thinking-budget", 20, "--answer-budget", 8, "--thinking-delimiter", "think"], "delimiter 'think'"),
        (["--thinking-budget", 20, "--answer-budget", 8, "--thinking-delimiter", ""], "harmony"),
    ],
)
def test_invalid_budgets_are_rejected(good_command, out, capsys, budgets, what):
    assert what in read_refusal(capsys, *good_command, *budgets)
    assert not out.exists()


def test_an_adapter_that_is_damaged_or_of_another_model_or_rank_is_refused(
    good_command, trained_adapter, tmp_path, capsys
):
    other = shutil.copytree(trained_adapter, tmp_path / "other")
    words = [*good_command, "--adapter", other]
    assert "SHA256SUMS" in read_refusal(capsys, *words, "--max-model-len", 1)  # missing
    digests.write(other)
    weights = (other / adapter_files.WEIGHTS).read_bytes()
    (other / adapter_files.WEIGHTS).write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert adapter_files.WEIGHTS in read_refusal(capsys, *words)
    (other / digests.NAME).unlink()
    tensors = load_file(other / adapter_files.WEIGHTS)
    deeper = {name.replace("layers.1.", "layers.7."): tensor for name, tensor in tensors.items()}
    save_file(deeper, other / adapter_files.WEIGHTS)
    assert "adapter_model.safetensors has" in read_refusal(capsys, *words)
    config = json.loads((other / adapter_files.CONFIG).read_text())
    save_file(tensors, other / adapter_files.WEIGHTS)
    (other / adapter_files.CONFIG).write_text(json.dumps(config | {"r": 8}))
    assert "rank" in read_refusal(capsys, *words)
    (other / adapter_files.CONFIG).write_text(json.dumps(config))
    save_file({name: tensor * float("nan") for name, tensor in tensors.items()}, other / adapter_files.WEIGHTS)
    assert "NaN" in read_refusal(capsys, *words)


@pytest.mark.parametrize("answer", ["the city of roses", "2024-01-31"])
def test_an_answer_that_the_grader_cannot_read_is_refused_without_a_reward(good_command, data, capsys, answer):
    data.write_text(data.read_text() + json.dumps({"id": "p3", "prompt": "Where?", "label": answer}) + "\n")
    refusal = read_refusal(capsys, *good_command)
    assert "line 4" in refusal and answer in refusal and "--reward" in refusal
    assert [problem.label for problem in read_problems(data, "reward")][3] == answer


def test_context_fits_the_longest_prompt_and_its_response(model):
    files = checks.check_model(model, 1)
    prompts = {"short": [1] * 10, "long": [1] * 30}
    assert checks.check_length(prompts, 100, None, files) == 130
    assert checks.check_length(prompts, 100, 200, files) == 200
    with pytest.raises(UserError, match=r"long .*--max-model-len"):
        checks.check_length(prompts, 100, 129, files)


def test_settings_that_affect_samples_are_distinguished(good_command, model, trained_adapter, data, tmp_path):
    def compute_identity(*more: object, folder: Path = model) -> dict:
        given = parse_command(*good_command, "--model", folder, "--date", "2030-01-01", *more)
        chosen = adapter_files.read(given.adapter) if given.adapter else None
        return evaluate.identity(given, model_files.read(folder), chosen)

    plain = compute_identity()
    assert not any("budget" in name or "delimiter" in name for name in plain), "folders of before could not continue"
    for same in (["--n", 5], ["--limit", 1], ["--k", 1], ["--batch", 3], ["--gpu-memory-utilization", 0.5]):
        assert compute_identity(*same) == plain, same
    budgets = ["--thinking-budget", 20, "--answer-budget", 8, "--thinking-delimiter", "harmony"]
    changes = (
        ["--seed", 1], ["--temperature", 0.5], ["--top-p", 0.5], ["--max-tokens", 7], ["--adapter", trained_adapter],
        ["--reasoning-effort", "high"], ["--tensor-parallel", 2], ["--date", "2030-01-02"], ["--no-eager"],
        budgets, [*budgets, "--thinking-budget", 9], [*budgets, "--answer-budget", 9],
        [*budgets, "--thinking-delimiter", "think"],
    )  # fmt: skip
    identities = [json.dumps(compute_identity(*change)) for change in changes]
    assert len({json.dumps(plain), *identities}) == len(changes) + 1
    data.write_text(data.read_text() + "\n")
    assert compute_identity()["data_sha256"] != plain["data_sha256"]


def test_the_next_evaluation_deletes_what_a_killed_one_left(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(processes, "LONGEST_PARENT", len(str(tmp_path)))  # else it would be /tmp
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if not (child := os.fork()):
        meeting_place().mkdir()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 1
    assert [meeting_place().parent] == list(tmp_path.iterdir())
