"""Any range of any parameter is what it is in the whole, and no more is read than it takes."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.model import architecture, loading, model_files
from grpo.model.model_files import CheckpointError
from grpo.model.model_reader import CheckpointReader

EXPERTS = "model.layers.1.mlp.experts.gate_up_proj"


@pytest.fixture(scope="module")
def model(either_checkpoint):
    return model_files.read_whole(either_checkpoint)


@pytest.fixture(scope="module")
def whole_tensors(either_checkpoint):
    return {
        name: parameter.data
        for packed in (True, False)
        for name, parameter in loading.load_gpt_oss(either_checkpoint, packed=packed).named_parameters()
    }


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_range_equals_the_slice_of_the_whole_tensor(model, whole_tensors, data):
    name = data.draw(st.sampled_from(sorted(whole_tensors)))
    flat = whole_tensors[name].view(-1)
    start = data.draw(st.integers(0, len(flat)))
    out = torch.empty(data.draw(st.integers(0, len(flat) - start)), dtype=flat.dtype)
    CheckpointReader(model).fill(name, whole_tensors[name].shape, start, out)
    assert torch.equal(out, flat[start : start + len(out)])


def test_all_ranks_together_read_the_files_once(model, whole_tensors):
    shapes = architecture.Architecture.from_config(model.config).parameters()
    stored = sum(tensor.stop - tensor.start for tensor in model.tensors.values())
    for ranks in (1, 2, 4):  # 8 experts
        reader = CheckpointReader(model)
        for name, shape in shapes.items():
            size = torch.Size(shape).numel()
            for rank in range(ranks):
                share = -(-size // ranks)
                part = torch.empty(len(range(size)[rank * share :][:share]), dtype=torch.bfloat16)
                reader.fill(name, torch.Size(shape), rank * share, part)
        assert reader.bytes_read == stored
    expert = torch.Size(shapes[EXPERTS][1:]).numel()
    reader = CheckpointReader(model)
    reader.fill(EXPERTS, torch.Size(shapes[EXPERTS]), expert // 2, torch.empty(expert, dtype=torch.bfloat16))
    packed = (model.tensors[f"{EXPERTS}_{kind}"] for kind in ("blocks", "scales"))
    whole = sum((tensor.stop - tensor.start) // shapes[EXPERTS][0] for tensor in packed)
    assert reader.bytes_read == 2 * whole, "of a range that ends inside of experts, only these"


@pytest.mark.parametrize("name", [EXPERTS, "lm_head.weight"])
def test_file_truncated_while_reading_is_named(model, whole_tensors, tmp_path, name):
    folder = shutil.copytree(model.folder, tmp_path / "cut")
    reader = CheckpointReader(model_files.read_whole(folder))
    for shard in folder.glob("*.safetensors"):
        shard.write_bytes(shard.read_bytes()[:200])
    with pytest.raises(CheckpointError, match=r"model-.*\.safetensors"):
        reader.fill(name, whole_tensors[name].shape, 0, torch.empty_like(whole_tensors[name]).view(-1))
