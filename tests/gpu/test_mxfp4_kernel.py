"""The Triton kernel that unpacks MXFP4, against the definition of the format."""

import pytest
import torch

from grpo.model import mxfp4
from grpo.stack.problem import UserError
from scripts.gpu_check import kernels


@pytest.fixture
def unpack(device):
    from grpo.model.mxfp4_triton import unpack

    return lambda blocks, scales: unpack(blocks.to(device), scales.to(device)).cpu()


def test_every_byte_with_every_scale(device):
    assert kernels.mxfp4(int(device == "cuda")).numbers["wrong"] == 0


def test_one_wrong_value_is_noticed(device, monkeypatch):
    right = kernels.dequantize_by_definition
    monkeypatch.setattr(
        kernels,
        "dequantize_by_definition",
        lambda blocks, scales: right(blocks, scales).index_fill(0, torch.tensor(0), 1),
    )
    with pytest.raises(UserError, match="values are unpacked wrong"):
        kernels.mxfp4(int(device == "cuda"))


def test_scale_255_matches_transformers(unpack):
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    scales = torch.full((1, 1, 16), 255, dtype=torch.uint8)
    expected = mxfp4.dequantize(blocks, scales).transpose(-1, -2)
    torch.testing.assert_close(unpack(blocks, scales), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("part", [(1, 8, 16), (2, 2, 3), (1, 0, 24), (2, 5, 1)])
def test_parts_of_a_tensor(unpack, part):
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (5, 24, 6, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(0, 255, (5, 24, 6), dtype=torch.uint8, generator=generator)
    blocks, scales = blocks.narrow(*part), scales.narrow(*part)
    assert torch.equal(unpack(blocks, scales), kernels.dequantize_by_definition(blocks, scales).bfloat16())
