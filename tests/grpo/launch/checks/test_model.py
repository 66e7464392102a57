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
FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))


def edit(file: str, **values: object) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        content = json.loads((model / file).read_text()) if (model / file).exists() else {}
        (model / file).write_text(json.dumps(content | values))

    return change


def write(file: str, text: str) -> Callable[[Path], object]:
    return lambda model: (model / file).write_text(text)


def remove(file: str) -> Callable[[Path], object]:
    return lambda model: (model / file).unlink()


def assign(name: str, shard: str | None) -> Callable[[Path], None]:
    """Let the index assign a tensor to a shard, or to none."""

    def change(model: Path) -> None:
        index = json.loads((model / INDEX).read_text())["weight_map"] | {name: shard}
        (model / INDEX).write_text(json.dumps({"weight_map": {key: value for key, value in index.items() if value}}))

    return change


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (edit("config.json", **CODE), "auto_map"),
        (edit("tokenizer_config.json", **CODE), "auto_map"),
        (edit("config.json", _attn_implementation_internal="somebody/kernels"), "_attn_implementation_internal"),
        (edit("config.json", num_hidden_layers=3), "model.layers.2."),
        (edit("config.json", rope_parameters={"rope_type": "yarn", "rope_theta": 10_000.0}), "rope_theta"),
        (edit("config.json", rope_parameters=[1]), "rope_theta"),
        (edit("config.json", num_hidden_layers=1), "model.layers.1."),
        (edit("config.json", num_key_value_heads=4), "(64,)"),
        (edit("config.json", model_type="llama"), "llama"),
        (edit("config.json", quantization_config={"quant_method": "awq"}), "awq"),
        (remove(SECOND), f"{SECOND} is missing"),
        (lambda model: os.truncate(model / FIRST, (model / FIRST).stat().st_size - 1), FIRST),
        (write(FIRST, "version https://git-lfs.github.com/spec/v1"), "Git LFS"),
        (assign("model.layers.0.mlp.router.scale", FIRST), "model.layers.0.mlp.router.scale"),
        (assign("lm_head.weight", None), "lm_head.weight"),
        (remove("config.json"), "config.json"),
        (write("config.json", "{"), "config.json"),
        (remove(INDEX), INDEX),
        (remove("tokenizer.json"), "tokenizer.json"),
        (remove("chat_template.jinja"), "chat_template.jinja"),
        (remove("generation_config.json"), "generation_config.json"),
    ],
)
def test_a_damaged_checkpoint_is_found(setting, tmp_path: Path, damage: Callable[[Path], object], names: str) -> None:
    damage(tmp_path / "model")
    problems = setting.find_problems()
    assert any(names in problem for problem in problems)
    assert all("model" in problem.partition("->")[0].lower() and problem.partition("->")[2] for problem in problems)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"pretrain": "openai/gpt-oss-20b"}, "hf download openai/gpt-oss-20b"),
        ({"pretrain": "gpt-oss-20b"}, "openai/gpt-oss-20b"),
        ({"pretrain": "org/absent"}, "MODEL org/absent"),
        ({"engine_model": "/absent"}, "--engine_model /absent"),
        ({"generate_max_len": 500}, "--prompt_max_len + --generate_max_len"),
        ({"vllm_tensor_parallel_size": 3}, "--vllm_tensor_parallel_size 3"),
        ({"vllm_tensor_parallel_size": 4}, "--vllm_tensor_parallel_size 4"),
        ({"reasoning_effort": "low"}, "--reasoning_effort"),
        ({"template_variables": '{"model_identity": "You add."}'}, "--template_variables"),
        ({"template_date": "2030-01-02"}, "--template_date"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(setting, changes: dict[str, object], names: str) -> None:
    assert any(names in problem for problem in setting.find_problems(**changes))


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_file_of_any_size_is_not_read_into_memory(setting, tmp_path: Path, file: str) -> None:
    (tmp_path / "model" / file).touch()
    os.truncate(tmp_path / "model" / file, 1 << 40)
    with pytest.raises(OSError, match="larger than 2 GiB") as refused:
        setting.find_problems(reasoning_effort="low")
    assert refused.value.filename == str(tmp_path / "model" / file)


def test_mxfp4_is_accepted_for_the_actor_but_not_for_cpu_engines(setting, tmp_path: Path) -> None:
    packed = write_checkpoint(tmp_path / "packed", mxfp4=True)
    [problem] = setting.find_problems(pretrain=packed)
    assert "--engine_model" in problem and "scripts.export_model" in problem
    assert setting.find_problems(pretrain=packed, engine_model=tmp_path / "model") == []


def test_one_copy_is_of_a_model_in_mxfp4(setting, tmp_path: Path, monkeypatch) -> None:
    shared = {"actor_shard": "engine", "offload": None, "colocate_all_models": True}
    shared |= {"vllm_num_engines": 4, "vllm_tensor_parallel_size": 1}
    [problem] = setting.find_problems(**shared)
    assert "set --actor_shard none" in problem
    packed = write_checkpoint(tmp_path / "packed", mxfp4=True)
    assert setting.find_problems(pretrain=packed, engine_model=tmp_path / "model", **shared) == []
    monkeypatch.setattr(checks, "is_cpu_stack", lambda: False)
    [problem] = setting.find_problems(pretrain=packed, engine_model=tmp_path / "model", **shared)
    assert "unset --engine_model" in problem
    assert setting.find_problems(pretrain=packed, **shared) == []


def test_engines_of_another_model_are_refused(setting, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", vocab_size=256)
    [problem] = setting.find_problems(engine_model=other)
    assert "vocab_size" in problem and "--engine_model" in problem
