"""The inspector's output for complete and damaged checkpoints, adapters and runs."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo.checkpoint.adapter_files import CONFIG, WEIGHTS
from grpo.model.model_files import INDEX
from scripts.dequantize_checkpoint import dequantize_checkpoint
from scripts.inspect_checkpoint import main
from tests.conftest import write_tokenizer_with_stops

ROOT = Path(__file__).resolve().parents[2]


def inspect(capsys, folder: Path, code: int) -> dict:
    """Call the command line in both forms, check the exit code, and return the JSON."""
    assert main([str(folder)]) == code
    said = capsys.readouterr()
    text = said.out + said.err
    assert main([str(folder), "--json"]) == code
    report = json.loads(capsys.readouterr().out)
    for problem in report.get("problems", []):
        assert problem["file"] in text and problem["what"] in text and problem["remedy"] in text
    return report


def test_base_models(checkpoint: Path, tmp_path: Path, capsys) -> None:
    dequantize_checkpoint(checkpoint, tmp_path / "bf16")
    packed, plain = inspect(capsys, checkpoint, 0), inspect(capsys, tmp_path / "bf16", 0)
    assert (packed["format"], plain["format"]) == ("MXFP4", "bf16")
    config = json.loads((checkpoint / "config.json").read_text())
    for shown, key in {"layers": "num_hidden_layers", "hidden": "hidden_size", "experts": "num_local_experts"}.items():
        assert packed[shown] == config[key]
    assert packed["vocabulary"] == 97
    shards = list(checkpoint.glob("*.safetensors"))
    assert packed["shards"] == len(shards)
    assert packed["file_bytes"] == sum(file.stat().st_size for file in shards)
    values = sum(t.numel() for file in (tmp_path / "bf16").glob("*.safetensors") for t in load_file(file).values())
    assert packed["parameters"] == plain["parameters"] == values
    assert packed["bf16_bytes"] == plain["bf16_bytes"] == 2 * values


def test_a_tokenizer_that_a_run_refuses_is_a_fault(base: Path, capsys) -> None:
    write_tokenizer_with_stops(base)
    (base / "chat_template.jinja").write_text("{% if")
    [problem] = inspect(capsys, base, 1)["problems"]
    assert "cannot render prompts" in problem["what"] and "correct the chat template" in problem["remedy"]


def test_a_damaged_base_model(base: Path, capsys) -> None:
    first, second = sorted(base.glob("*.safetensors"))[:2]
    os.truncate(first, first.stat().st_size - 1)
    second.unlink()
    problems = inspect(capsys, base, 1)["problems"]
    assert [problem["file"] for problem in problems] == [first.name, second.name]
    lost = {name for name, file in json.loads((base / INDEX).read_text())["weight_map"].items() if file == second.name}
    assert set(problems[1]["tensors"]) == lost


def test_an_adapter_of_peft(trained_adapter: Path, checkpoint: Path, capsys) -> None:
    report = inspect(capsys, trained_adapter, 0)
    assert (report["rank"], report["alpha"], report["scale"]) == (4, 8, 2)
    assert report["targets"] == ["k_proj", "o_proj", "q_proj", "v_proj"]
    tensors = load_file(trained_adapter / WEIGHTS)
    assert report["tensors"] == len(tensors) == 2 * 2 * 4
    assert report["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    assert report["dtypes"] == ["BF16"] and report["non_finite"] == 0


A0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B0 = A0.replace("lora_A", "lora_B")


def edit(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """Return what rewrites the weights of an adapter."""

    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return rewrite


def cut(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - 1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / WEIGHTS).unlink(), "is missing"),
        (cut, "its header says"),
        (edit(lambda tensors: tensors[A0][0].fill_(float("nan"))), f"NaN or infinity in 1 of 16 tensors: {A0}"),
        (edit(lambda tensors: tensors[B0][0].fill_(float("inf"))), f"NaN or infinity in 1 of 16 tensors: {B0}"),
        (edit(lambda tensors: tensors.pop(B0)), f"1 pairs with only one half: {B0}"),
        (
            edit(lambda tensors: (tensors.pop(A0), tensors.pop(B0))),
            f"1 missing projections that other layers have: {A0}",
        ),
        (edit(lambda tensors: tensors.update({A0: tensors[A0][:3].clone()})), "rank differs from the 4"),
        (edit(lambda tensors: tensors.update(odd=torch.zeros(1))), "do not belong to a LoRA pair: odd"),
        (edit(lambda tensors: tensors.clear()), "has no tensors"),
    ],
)
def test_a_damaged_adapter(adapter: Path, damage: Callable[[Path], object], message: str, capsys) -> None:
    damage(adapter)
    problems = inspect(capsys, adapter, 1)["problems"]
    assert any(message in problem["what"] for problem in problems), problems


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        ({"experts.gate_up_proj": 2, "experts.down_proj": 2}, "4, experts 2, alpha"),
        ({"o_proj": 2}, "4, alpha"),
        (None, "4, alpha"),
        (["o_proj"], "4, alpha"),
    ],
)
def test_the_rank_of_the_experts_is_shown(adapter: Path, pattern: object, shown: str, capsys) -> None:
    config = json.loads((adapter / CONFIG).read_text())
    (adapter / CONFIG).write_text(json.dumps(config | {"rank_pattern": pattern}))
    main([str(adapter)])
    assert shown in capsys.readouterr().out


def test_an_adapter_that_is_not_the_trainers(trained_adapter: Path, make_trainer, tmp_path: Path, capsys) -> None:
    step = tmp_path / "step_2"
    shutil.copytree(trained_adapter, step / "adapter")
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(trained_adapter / WEIGHTS).items()}
    make_trainer(step / "trainer", shapes)
    assert inspect(capsys, step, 0)["complete"]
    edit(lambda tensors: [tensors.pop(name) for name in list(tensors) if "layers.1." in name])(step / "adapter")
    problems = inspect(capsys, step, 1)["problems"]
    assert "layers.1.self_attn.k_proj.lora_A.weight is missing and not (4, " in problems[0]["what"]


def test_a_run(trained_adapter: Path, make_trainer, tmp_path: Path, capsys) -> None:
    run, shapes = tmp_path / "run", {name: tuple(t.shape) for name, t in load_file(trained_adapter / WEIGHTS).items()}
    for step in (2, 10):
        shutil.copytree(trained_adapter, run / "checkpoints" / f"step_{step}" / "adapter")
        trainer = make_trainer(run / "checkpoints" / f"step_{step}" / "trainer", shapes, optimizer_step=8 * step)
    report = inspect(capsys, run / "checkpoints", 0)
    assert report["steps"] == [2, 10]
    assert report["parts"][1]["trainer_bytes"] > 8000
    assert (report["parts"][1]["optimizer_step"], report["parts"][1]["ranks"]) == (80, 2)
    assert inspect(capsys, run / "checkpoints" / "step_10", 0)["parts"][0]["kind"] == "LoRA adapter"

    cut(run / "checkpoints" / "step_2" / "adapter")
    (run / "checkpoints" / "step_12").mkdir()
    report = inspect(capsys, run / "checkpoints", 1)
    assert [part["complete"] for part in report["parts"]] == [False, True, False]
    (trainer / "rank_1.safetensors").unlink()
    problems = inspect(capsys, run / "checkpoints" / "step_10", 1)["problems"]
    assert "rank_1.safetensors cannot be read" in problems[0]["what"]
    shutil.rmtree(trainer)
    inspected = inspect(capsys, run / "checkpoints" / "step_10", 1)
    assert "a run cannot resume from it" in inspected["problems"][0]["remedy"] and inspected["trainer_bytes"] is None


def test_a_runs_directory_is_told_from_its_checkpoints(tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "command.sh").touch()
    flags = {"run_dir": "/before/it/moved", "ckpt_path": "/before/it/moved/checkpoints"}
    (run / "config.json").write_text(json.dumps({"flags": flags}))
    assert "run directory: no checkpoint was saved yet" in inspect(capsys, run, 2)["error"]
    assert "no checkpoint was saved yet" in inspect(capsys, run / "checkpoints", 2)["error"]
    (run / "checkpoints" / ".step_2.partial").mkdir()
    assert "no checkpoint was saved yet" in inspect(capsys, run / "checkpoints", 2)["error"]
    for step in (8, 10):
        (run / "checkpoints" / f"step_{step}" / "adapter").mkdir(parents=True)
    error = inspect(capsys, run, 2)["error"]
    assert f"name {run / 'checkpoints' / 'step_10'}, its newest step, or {run / 'checkpoints'} for all" in error


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (None, "", "is not a base model, adapter or checkpoint"),
        ("config.json", "{", "not JSON"),
        ("config.json", '{"model_type": "llama"}', "llama"),
        (INDEX, "{}", "config.json is missing"),
        (WEIGHTS, "", "adapter_config.json is missing"),
        ("adapter_config.json", '{"peft_type": "IA3"}', "IA3"),
        ("adapter_config.json", '{"peft_type": "LORA", "r": 0, "lora_alpha": 1}', "r 0"),
    ],
)
def test_folders_that_are_not_checkpoints(tmp_path: Path, file: str | None, content: str, message: str, capsys) -> None:
    if file:
        (tmp_path / file).write_text(content)
    assert message in inspect(capsys, tmp_path, 2)["error"]


def test_a_folder_that_is_not_there(tmp_path: Path, capsys) -> None:
    assert "is not a folder" in inspect(capsys, tmp_path / "none", 2)["error"]


def test_base_models_are_inspected_without_torch(checkpoint: Path) -> None:
    code = f"import sys; from scripts.inspect_checkpoint import main; code = main([{str(checkpoint)!r}]); "
    code += "sys.exit(9 if 'torch' in sys.modules else code)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0
