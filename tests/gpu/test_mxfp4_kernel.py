"""The Triton kernel that unpacks MXFP4, against the definition of the format."""

import pytest
import torch

from grpo.model import mxfp4

# E2M1's values in the order of their codes: OCP Microscaling Formats (MX) specification 1.0, section 5.3.3.
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


@pytest.fixture
def unpack(device):
    from grpo.model.mxfp4_triton import unpack

    return lambda blocks, scales: unpack(blocks.to(device), scales.to(device)).cpu()


def defined(blocks, scales):
    """Return what the specification says, in float64: ``[experts, out, in]``."""
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()
    values = torch.cat([VALUES, -VALUES])[codes]
    return (values * torch.exp2(scales.double() - 127).unsqueeze(-1)).flatten(-2)


def test_every_byte_with_every_scale(unpack):
    blocks = torch.arange(256, dtype=torch.uint8).expand(1, 255, 256).reshape(1, 255, 16, 16).contiguous()
    scales = torch.arange(255, dtype=torch.uint8).view(1, 255, 1).expand(1, 255, 16).contiguous()
    assert torch.equal(unpack(blocks, scales), defined(blocks, scales).bfloat16())


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
    assert torch.equal(unpack(blocks, scales), defined(blocks, scales).bfloat16())
