"""Faults of the checkpoints of actor and engines are reported with the remedy."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.launch.checks import model as checks
from grpo.model.model_files import INDEX
from tests.grpo.launch.conftest import write_checkpoint

CODE = {"auto_map": {"AutoConfig": "code.Config"}}


def remove_shard(model: Path) -> None:
    (model / "model-00002-of-00002.safetensors").unlink()


def cut_shard(model: Path) -> None:
    shard = model / "model-00001-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)


def point_to_shard(model: Path) -> None:
    (model / "model-00001-of-00002.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0")


def edit_json(file: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def promise_tensor(model: Path) -> None:
    shard = "model-00001-of-00002.safetensors"
    edit_json(model / INDEX, lambda index: index["weight_map"].update({"model.layers.0.mlp.router.scale": shard}))


def forget_tensor(model: Path) -> None:
    edit_json(model / INDEX, lambda index: index["weight_map"].pop("lm_head.weight"))


def stop_only_at_the_end(model: Path) -> None:
    tokens = [{"id": 7, "content": "<|return|>"}, {"id": 9, "content": "<|call|>"}]
    (model / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))


def set_config(**values: object) -> Callable[[Path], None]:
    return lambda model: edit_json(model / "config.json", lambda config: config.update(values))


def name_code(file: str, content: dict) -> Callable[[Path], None]:
    def damage(model: Path) -> None:
        (model / file).exists() or (model / file).write_text("{}")
        edit_json(model / file, lambda config: config.update(content))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (name_code("config.json", CODE), "config.json names code that would run (auto_map)"),
        (name_code("tokenizer_config.json", CODE), "tokenizer_config.json names code that would run (auto_map)"),
        (name_code("preprocessor_config.json", {"parts": [CODE]}), "names code that would run (auto_map)"),
        (set_config(_attn_implementation_internal="somebody/kernels"), "(_attn_implementation_internal)"),
        (set_config(architectures=["KimiK25ForConditionalGeneration"]), "config.json is of a ['KimiK25"),
        (remove_shard, "model-00002-of-00002.safetensors is missing"),
        (cut_shard, "a broken download"),
        (point_to_shard, "not a safetensors file"),
        (promise_tensor, "for example model.layers.0.mlp.router.scale"),
        (forget_tensor, "for example lm_head.weight"),
        (set_config(num_hidden_layers=3), "for example model.layers.2.input_layernorm.weight"),
        (set_config(num_hidden_layers=1), "that config.json does not ask for: model.layers.1."),
        (set_config(num_key_value_heads=4), "is (32,), config.json asks for (64,)"),
        (set_config(model_type="llama"), "config.json is of a llama model"),
        (set_config(quantization_config={"quant_method": "awq"}), "the weights are stored as awq"),
        (lambda model: (model / "config.json").unlink(), "config.json is missing"),
        (lambda model: (model / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda model: (model / INDEX).unlink(), f"{INDEX} is missing"),
        (lambda model: (model / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda model: (model / "chat_template.jinja").unlink(), "no chat template"),
        (lambda model: (model / "generation_config.json").unlink(), "its engine would not stop at <|call|>"),
        (stop_only_at_the_end, "has an eos_token_id without <|call|>, where its engine would not stop"),
    ],
)
def test_a_damaged_checkpoint_is_found(setting, tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(tmp_path / "model")
    problems = setting.find_problems()
    assert any(message in problem for problem in problems)
    assert all(problem.split("->")[1].strip() for problem in problems), "each has a remedy"
    assert len(problems) == 1 or damage not in (remove_shard, cut_shard, point_to_shard, promise_tensor, forget_tensor)


@pytest.mark.parametrize(
    ("flags", "what", "variable"),
    [
        ({"reasoning_effort": "low"}, "reasoning_effort", "REASONING_EFFORT"),
        ({"template_variables": '{"model_identity": "You add."}'}, "model_identity", "TEMPLATE_VARIABLES"),
        ({"template_date": "2030-01-02"}, "the date", "TEMPLATE_DATE"),
    ],
)
def test_what_the_chat_template_would_ignore_is_refused(
    setting, flags: dict[str, str], what: str, variable: str
) -> None:
    [problem] = setting.find_problems(**flags)
    assert f"does not read {what}" in problem and problem.endswith(f"remove it from {variable}")


def test_mxfp4_is_accepted_for_the_actor_but_not_for_cpu_engines(setting, tmp_path: Path) -> None:
    packed = write_checkpoint(tmp_path / "packed", mxfp4=True)
    [problem] = setting.find_problems(pretrain=packed)
    assert "vLLM on CPU cannot load an MXFP4 checkpoint" in problem
    assert "scripts.dequantize_checkpoint" in problem
    assert setting.find_problems(pretrain=packed, engine_model=tmp_path / "model") == []


def test_one_copy_is_of_a_model_in_mxfp4(setting, tmp_path: Path, monkeypatch) -> None:
    shared = {
        "actor_shard": "engine", "offload": None,
        "colocate_all_models": True, "vllm_num_engines": 4, "vllm_tensor_parallel_size": 1,
    }  # fmt: skip
    [problem] = setting.find_problems(**shared)
    assert "for a model in MXFP4" in problem and "set ACTOR_SHARD=none" in problem
    packed = write_checkpoint(tmp_path / "packed", mxfp4=True)
    assert setting.find_problems(pretrain=packed, engine_model=tmp_path / "model", **shared) == []
    monkeypatch.setattr(checks, "is_cpu_stack", lambda: False)
    [problem] = setting.find_problems(pretrain=packed, engine_model=tmp_path / "model", **shared)
    assert "ENGINE_MODEL is another" in problem
    assert setting.find_problems(pretrain=packed, **shared) == []


def test_engines_of_another_model_are_refused(setting, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", vocab_size=256)
    assert "vocab_size is 256 in ENGINE_MODEL and 128 in MODEL" in setting.find_problems(engine_model=other)[0]
