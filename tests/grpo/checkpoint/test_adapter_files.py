"""Adapters as other libraries write them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo.checkpoint import adapter_files
from grpo.checkpoint.adapter_files import CONFIG, WEIGHTS
from grpo.model.model_files import CheckpointError

MODULES = adapter_files.list_modules(2, ["q_proj", "v_proj"])
SHAPES = {"A": (4, 6), "B": (8, 4)}


def write(folder: Path, suffix: str = "", dtype: torch.dtype = torch.float32, **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    names = {adapter_files.tensor_name(module, half): half for module in MODULES for half in SHAPES}
    tensors = {name.replace(".weight", f"{suffix}.weight"): torch.ones(SHAPES[half]) for name, half in names.items()}
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / WEIGHTS)
    usual = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    (folder / CONFIG).write_text(json.dumps(usual | config))
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("suffix", ["", ".default"])
def test_names_are_pefts_with_and_without_the_adapters_name(tmp_path, suffix, dtype):
    adapter = adapter_files.read(write(tmp_path, suffix, dtype))
    assert adapter.projections == ["q_proj", "v_proj"]
    values = adapter_files.load(adapter)
    assert values.keys() == adapter.tensors.keys() == {
        adapter_files.tensor_name(module, half) for module in MODULES for half in "AB"
    }  # fmt: skip
    assert {value.dtype for value in values.values()} == {dtype}
    assert adapter_files.non_finite(adapter) == []


@pytest.mark.parametrize(
    "targets",
    [
        ["v_proj", "q_proj"],
        ["self_attn.q_proj", "self_attn.v_proj"],
        [f"model.layers.{layer}.self_attn.{name}" for layer in (0, 1) for name in ("q_proj", "v_proj")],
        r".*\.self_attn\.(q|v)_proj",
        "all-linear",
        None,
    ],
)
def test_the_weights_say_what_an_adapter_covers_however_its_targets_are_written(tmp_path, targets):
    adapter = adapter_files.read(write(tmp_path, target_modules=targets))
    assert adapter.projections == ["q_proj", "v_proj"]


def test_values_that_bf16_cannot_hold_are_not_finite(tmp_path):
    tensors = load_file(write(tmp_path) / WEIGHTS)
    name = next(iter(tensors))
    tensors[name][0, 0] = torch.finfo(torch.float32).max
    save_file(tensors, tmp_path / WEIGHTS)
    assert adapter_files.non_finite(adapter_files.read(tmp_path)) == [name]


@pytest.mark.parametrize("alpha", ["NaN", "Infinity", "1" + 400 * "0", '"16"', "null", "0"])
def test_an_alpha_that_scales_nothing_is_refused(tmp_path, alpha):
    write(tmp_path)
    (tmp_path / CONFIG).write_text((tmp_path / CONFIG).read_text().replace('"lora_alpha": 8', f'"lora_alpha": {alpha}'))
    with pytest.raises(CheckpointError, match=CONFIG):
        adapter_files.read(tmp_path)
