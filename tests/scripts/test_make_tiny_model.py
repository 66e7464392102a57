"""The files of a tiny model. How well it answers is not tested here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, Mxfp4Config

from grpo.model import model_files
from grpo.model.architecture import check
from scripts import make_tiny_model
from scripts.checkpoint_writer import dequantize_checkpoint

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built_models(tmp_path_factory):
    """The two directories, made by the command line in a separate process."""
    folder = tmp_path_factory.mktemp("tiny")
    words = ["--out", str(folder / "mxfp4"), "--dequantized-out", str(folder / "bf16")]
    command = [sys.executable, "-m", "scripts.make_tiny_model", *words]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "not your data" in result.stdout
    return folder / "mxfp4", folder / "bf16"


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def read_tensors(directory):
    weight_map = read_json(directory / "model.safetensors.index.json")["weight_map"]
    values = {}
    for file in set(weight_map.values()):
        with safe_open(directory / file, framework="pt") as shard:
            assert set(shard.keys()) == {name for name, where in weight_map.items() if where == file}
            values.update({name: shard.get_tensor(name) for name in shard.keys()})  # noqa: SIM118
    return values


def test_files_have_the_format_of_the_real_checkpoint(built_models):
    """`check` compares names, shapes and types with those of a released checkpoint."""
    model = model_files.read(built_models[0])
    assert check(model) == [] and model.config["architectures"] == ["GptOssForCausalLM"]
    assert model.config["quantization_config"]["quant_method"] == "mxfp4"
    assert model.config["rope_scaling"]["rope_type"] == "yarn" and model.config["rope_scaling"]["truncate"] is False
    assert set(model.config["layer_types"]) == {"sliding_attention", "full_attention"}
    weight_map = read_json(built_models[0] / "model.safetensors.index.json")["weight_map"]
    layers = [{f for n, f in weight_map.items() if n.startswith(f"model.layers.{layer}.")} for layer in (0, 1)]
    assert any(len(shards) > 1 for shards in layers), "a layer spans two shards"


def test_bf16_copy_holds_what_transformers_makes_of_the_mxfp4_files(built_models):
    packed = AutoModelForCausalLM.from_pretrained(
        built_models[0], dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True)
    )
    plain, report = AutoModelForCausalLM.from_pretrained(
        built_models[1], dtype=torch.bfloat16, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert "quantization_config" not in read_json(built_models[1] / "config.json")
    expected, copied = packed.state_dict(), plain.state_dict()
    assert expected.keys() == copied.keys() == read_tensors(built_models[1]).keys()
    for name, value in expected.items():
        assert torch.equal(value, copied[name]), name


def test_dequantize_checkpoint_refuses_and_leaves_nothing_behind(built_models, tmp_path):
    broken = shutil.copytree(built_models[0], tmp_path / "broken")
    shard = sorted(broken.glob("*.safetensors"))[-1]
    os.truncate(shard, shard.stat().st_size - 100)
    for source, said in (
        (built_models[1], "quant_method mxfp4"),
        (tmp_path, r"config\.json"),
        (broken, "header"),
    ):
        with pytest.raises(ValueError, match=said):
            dequantize_checkpoint(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_second_call_builds_and_changes_nothing(built_models, monkeypatch):
    before = {file: file.stat().st_mtime_ns for folder in built_models for file in folder.iterdir()}
    for name in ("write_model", "write_dequantized"):
        monkeypatch.setattr(make_tiny_model, name, None)  # not to be called
    words = ["--out", str(built_models[0]), "--dequantized-out", str(built_models[1])]
    assert make_tiny_model.main(words) == 0
    assert {file: file.stat().st_mtime_ns for folder in built_models for file in folder.iterdir()} == before


def test_a_build_that_ends_leaves_no_directory_and_the_next_one_finishes(tmp_path):
    out = tmp_path / "out"

    def fill(directory):
        (directory / "weights").write_text("whole")

    def fail(directory):
        fill(directory)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_tiny_model.build(out, "fingerprint", fail)
    assert not out.exists() and (tmp_path / "out.building").is_dir()
    make_tiny_model.build(out, "fingerprint", fill)
    assert sorted(file.name for file in out.iterdir()) == ["build.json", "weights"]
    assert not (tmp_path / "out.building").exists()


def test_a_foreign_directory_is_left_alone(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert make_tiny_model.main(["--out", str(tmp_path)]) == 2 and str(tmp_path) in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_stop_and_padding_ids_agree_between_the_files(built_models):
    tiny_tokenizer = AutoTokenizer.from_pretrained(built_models[0])
    for directory in built_models:
        config = read_json(directory / "config.json")
        generation = read_json(directory / "generation_config.json")
        assert config["eos_token_id"] == tiny_tokenizer.eos_token_id
        assert config["pad_token_id"] == generation["pad_token_id"] == tiny_tokenizer.pad_token_id
        stops = tiny_tokenizer.convert_ids_to_tokens(generation["eos_token_id"])
        assert stops == ["<|return|>", "<|endoftext|>", "<|call|>"]
        assert config["vocab_size"] > len(tiny_tokenizer)
