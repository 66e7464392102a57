import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from grpo import mxfp4

E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)  # OCP MX 1.0, table 5
DTYPES = (torch.bfloat16, torch.float32, torch.float16)


def bits(tensor):
    """Tell 0 from -0, and let NaN equal NaN: which of its bit patterns comes out depends on the SIMD path."""
    tensor = torch.where(tensor.isnan(), torch.nan, tensor).contiguous()
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def every_byte_and_scale():
    """2 experts of 128 rows and 32 groups: each of the 65,536 pairs of byte and scale occurs."""
    pairs = torch.arange(256 * 256)
    scales = (pairs >> 8).view(256, 16, 16)[..., 0].to(torch.uint8)
    blocks = (pairs & 255).view(256, 16, 16).to(torch.uint8)
    return blocks.reshape(2, 128, 16, 16), scales.reshape(2, 128, 16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantize_has_the_bits_of_transformers_for_every_byte_and_scale(dtype):
    blocks, scales = every_byte_and_scale()
    seen = (scales.long().unsqueeze(-1) * 256 + blocks.long()).unique()
    assert len(seen) == 256 * 256
    expected = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    result = mxfp4.dequantize(blocks, scales, dtype)
    assert result.shape == (2, 16 * 32, 128) and result.dtype == dtype and result.is_contiguous()
    assert torch.equal(bits(result), bits(expected))


def test_every_byte_covers_the_special_results():
    result = mxfp4.dequantize(*every_byte_and_scale())
    smallest_normal = torch.finfo(torch.bfloat16).tiny
    assert result.isinf().any() and result.isnan().any()
    assert ((result != 0) & (result.abs() < smallest_normal)).any()
    assert (torch.signbit(result) & (result == 0)).any()


@settings(max_examples=25, deadline=None)
@given(
    experts=st.integers(1, 3),
    out_features=st.integers(1, 130),
    groups=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_dequantize_agrees_with_transformers_for_any_shape(experts, out_features, groups, seed):
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(256, (experts, out_features, groups, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(256, (experts, out_features, groups), dtype=torch.uint8, generator=generator)
    expected = convert_moe_packed_tensors(blocks, scales)
    assert torch.equal(bits(mxfp4.dequantize(blocks, scales)), bits(expected))
    # A single expert, and a view that is not contiguous.
    assert torch.equal(bits(mxfp4.dequantize(blocks[0], scales[0])), bits(expected[0]))
    assert torch.equal(bits(mxfp4.dequantize(blocks[:, ::2], scales[:, ::2])), bits(expected[..., ::2]))


@pytest.mark.parametrize(
    "blocks, scales",
    [
        (torch.zeros(4, 2, 16), torch.zeros(4, 2, dtype=torch.uint8)),
        (torch.zeros(4, 2, 16, dtype=torch.uint8), torch.zeros(4, 2)),
        (torch.zeros(4, 2, 8, dtype=torch.uint8), torch.zeros(4, 2, dtype=torch.uint8)),
        (torch.zeros(4, 2, 16, dtype=torch.uint8), torch.zeros(4, 3, dtype=torch.uint8)),
        (torch.zeros(2, 16, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)),
    ],
)
def test_dequantize_refuses_what_is_not_mxfp4(blocks, scales):
    with pytest.raises(ValueError, match="MXFP4"):
        mxfp4.dequantize(blocks, scales)


def random_weight(seed, spread):
    """`[2, 64, 3]` whose groups differ in size by up to 2**spread."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(2, 64, 3, generator=generator)
    exponents = torch.randint(-spread, spread + 1, (2, 2, 1, 3), generator=generator)
    return torch.ldexp(weight.view(2, 2, 32, 3), exponents).view(2, 64, 3).to(torch.bfloat16)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), spread=st.sampled_from([0, 3, 60, 120]))
def test_quantizing_again_changes_nothing(seed, spread):
    once = mxfp4.dequantize(*mxfp4.quantize(random_weight(seed, spread)))
    twice = mxfp4.dequantize(*mxfp4.quantize(once))
    assert torch.equal(bits(once), bits(twice))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), spread=st.sampled_from([0, 3, 60]))
def test_quantize_picks_the_nearest_value_of_the_grid(seed, spread):
    weight = random_weight(seed, spread)
    blocks, scales = mxfp4.quantize(weight)
    assert blocks.shape == (2, 3, 2, 16) and scales.shape == (2, 3, 2)
    assert blocks.is_contiguous() and scales.is_contiguous()
    groups = weight.double().transpose(1, 2).unflatten(-1, (2, 32))
    amax = groups.abs().amax(-1)
    scale = torch.exp2(scales.double() - 127)
    # MX specification 1.0, 6.3: the largest power of two in the group over that of E2M1, 4.
    assert torch.all((scale * 4 <= amax) & (amax < scale * 8))
    grid = torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=torch.float64) * scale[..., None, None]
    best = (groups.unsqueeze(-1) - grid).abs().amin(-1)
    result = mxfp4.dequantize(blocks, scales).double().transpose(1, 2).unflatten(-1, (2, 32))
    assert torch.equal((groups - result).abs(), best)


def test_quantize_breaks_ties_to_the_even_code_and_saturates():
    values = torch.zeros(32, 1)
    values[:10, 0] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, 7.5, -0.25])
    result = mxfp4.dequantize(*mxfp4.quantize(values), dtype=torch.float32)
    assert result[:10, 0].tolist() == [0, 1, 1, 2, 2, 4, 4, -4, 6, 0]
    assert torch.signbit(result[9, 0])


def test_quantize_holds_zeros_and_the_ends_of_the_range():
    assert torch.equal(mxfp4.dequantize(*mxfp4.quantize(torch.zeros(32, 2))), torch.zeros(32, 2).bfloat16())
    largest = torch.full((32, 1), torch.finfo(torch.bfloat16).max, dtype=torch.bfloat16)
    assert torch.equal(mxfp4.dequantize(*mxfp4.quantize(largest)), torch.full((32, 1), 6 * 2.0**125).bfloat16())
    smallest = torch.full((32, 1), 2.0**-128, dtype=torch.bfloat16)
    assert torch.equal(mxfp4.dequantize(*mxfp4.quantize(smallest)), smallest)


@pytest.mark.parametrize("weight", [torch.zeros(33, 2), torch.zeros(32), torch.full((32, 2), torch.nan)])
def test_quantize_refuses_what_it_cannot_hold(weight):
    with pytest.raises(ValueError, match="MXFP4"):
        mxfp4.quantize(weight)
