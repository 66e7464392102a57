"""The required tensors of a checkpoint, compared with transformers' model and with damaged files."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM

from grpo.model import architecture, model_files
from grpo.model.architecture import Architecture
from grpo.model.model_files import INDEX, SINGLE, CheckpointError
from scripts.checkpoint_writer import dequantize_checkpoint
from scripts.tiny_model.checkpoint import tiny_config


@pytest.mark.parametrize("config", [GptOssConfig(), tiny_config(97)], ids=["120b", "tiny"])
def test_parameters_are_those_of_transformers(config: GptOssConfig) -> None:
    with torch.device("meta"):
        model = GptOssForCausalLM(config)
    ours = Architecture.from_config(config.to_dict()).parameters()
    assert ours == {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def test_complete_checkpoint_has_no_fault(either_checkpoint: Path, tmp_path: Path) -> None:
    dequantize_checkpoint(either_checkpoint, tmp_path / "bf16")
    for folder in (either_checkpoint, tmp_path / "bf16"):
        assert architecture.check(model_files.read(folder)) == []


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return shutil.copytree(checkpoint, tmp_path / "copy")


def rewrite(folder: Path, name: str, change) -> str:
    """Let `change` edit the tensors of the shard that holds `name`, and keep the index true; return the shard."""
    index = json.loads((folder / INDEX).read_text())
    shard = index["weight_map"][name]
    tensors = load_file(folder / shard)
    change(tensors)
    save_file(tensors, folder / shard)
    others = {key: file for key, file in index["weight_map"].items() if file != shard}
    (folder / INDEX).write_text(json.dumps({"weight_map": others | dict.fromkeys(tensors, shard)}))
    return shard


Q = "model.layers.1.self_attn.q_proj.weight"
BLOCKS = "model.layers.1.mlp.experts.down_proj_blocks"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (Q, lambda tensors: tensors.pop(Q), Q),
        (Q, lambda tensors: tensors.update({Q: tensors[Q].T.contiguous()[:-1]}), Q),
        (Q, lambda tensors: tensors.update(odd=torch.zeros(1)), "odd"),
        (BLOCKS, lambda tensors: tensors.update({BLOCKS: tensors[BLOCKS].char()}), f"{BLOCKS} is I8"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(copy: Path, name: str, change, message: str) -> None:
    shard = rewrite(copy, name, change)
    [fault] = architecture.check(model_files.read(copy))
    assert message in fault.what and fault.remedy
    assert fault.file in (shard, INDEX)
    assert len(fault.tensors) == 1


def test_a_single_file_is_a_checkpoint_and_two_models_are_a_fault(copy: Path) -> None:
    tensors = {name: tensor for file in copy.glob("*.safetensors") for name, tensor in load_file(file).items()}
    save_file(tensors, copy / SINGLE)
    [fault] = architecture.check(model_files.read(copy))
    assert fault.file == SINGLE and "which of the two" in fault.what
    (copy / INDEX).unlink()
    assert architecture.check(model_files.read(copy)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_local_experts", None), ("head_dim", None), ("num_hidden_layers", None), ("num_hidden_layers", 10**15),
        ("quantization_config", "mxfp4"),
    ],
)  # fmt: skip
def test_a_config_without_a_number_or_an_object_is_refused(copy: Path, key: str, value: object) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(CheckpointError, match=key):
        architecture.check(model_files.read(copy))


def test_the_120b_is_checked_in_seconds_from_headers_alone(tmp_path: Path) -> None:
    """Shards of holes: 15 files with the 120b's headers and sizes, and nothing in them."""
    config = GptOssConfig().to_dict() | {"quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = list(Architecture.from_config(config).list_stored().items())
    weight_map = {}
    for number in range(15):
        shard = f"model-{number:05d}-of-00014.safetensors"
        header, offset = {}, 0
        for name, shape in stored[number::15]:
            dtype = "U8" if name.endswith(("_blocks", "_scales")) else "BF16"
            end = offset + torch.Size(shape).numel() * model_files.ITEM_BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(header).encode()
        with (tmp_path / shard).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + offset)
        weight_map |= dict.fromkeys(header, shard)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    before = count_bytes_read()
    model = model_files.read(tmp_path)
    assert architecture.check(model) == []
    assert count_bytes_read() - before < 10e6, "headers alone are read, not weights"
    assert model.file_bytes > 60e9 and model.bf16_bytes / 1e9 == pytest.approx(233.7, abs=0.1)


def count_bytes_read() -> int:
    """How much this process has read from files so far."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())  # proc(5)
    return int(counters["rchar"])
