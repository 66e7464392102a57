"""Adapters of the experts against a loop over the experts in float64."""

import pytest
import torch
from peft import LoraConfig
from torch import nn

from grpo.model import expert_lora


def compute_reference(x, ends, weight, a, b, scale):
    """Return each expert's product of its rows, one expert after the other."""
    starts = [0, *ends[:-1].tolist()]
    parts = [
        x[start:end] @ weight[e] + scale * (x[start:end] @ a[e].T) @ b[e].T
        for e, (start, end) in enumerate(zip(starts, ends.tolist(), strict=True))
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("rank", [1, 3, 8, 16])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_against_float64_per_expert(rank, dtype, tolerance):
    torch.manual_seed(0)
    weight = torch.randn(5, 32, 64, dtype=dtype)
    lora = expert_lora.ExpertLora(weight.shape, rank, weight)
    lora.update_layer("default", 4, 6.0, LoraConfig())
    a, b = lora.lora_A["default"].weight, lora.lora_B["default"].weight
    nn.init.normal_(b)
    x, upstream = torch.randn(20, 32, dtype=dtype).requires_grad_(), torch.randn(20, 64, dtype=dtype)
    ends = torch.tensor([3, 3, 12, 20, 20], dtype=torch.int32)  # the second and the last expert get no row
    product = torch._grouped_mm(x, weight, offs=ends)
    got = (values := lora(product, x, ends)), *torch.autograd.grad(values, [x, a, b], upstream)

    wide = [tensor.detach().double().requires_grad_() for tensor in (x, a, b)]
    expected = compute_reference(wide[0], ends, weight.double(), *wide[1:], 1.5)
    expected = expected, *torch.autograd.grad(expected, wide, upstream.double())
    for mine, wanted in zip(got, expected, strict=True):
        assert mine.shape == wanted.shape and (mine - wanted).norm() < tolerance * wanted.norm()
    for gradient in got[2:]:
        assert not gradient[[1, 4]].any() and all(gradient[e].any() for e in (0, 2, 3))


def test_experts_without_rows_get_no_gradient_where_pytorch_leaves_one(monkeypatch):
    """As on some GPUs: a stand-in for PyTorch's product that does not write what belongs to empty groups."""
    product = torch._grouped_mm

    def leave_empty_groups(a, b, offs):
        result = product(a, b, offs=offs)
        if b.dim() == 2:
            result[offs.diff(prepend=offs.new_zeros(1)) == 0] = torch.nan
        return result

    monkeypatch.setattr(torch, "_grouped_mm", leave_empty_groups)
    layer = expert_lora.GroupedLinear(3, 8, 16, torch.empty(0))
    layer(torch.randn(4, 8), torch.tensor([0, 4, 4], dtype=torch.int32)).sum().backward()
    assert layer.weight.grad[1].any() and not layer.weight.grad[[0, 2]].any()


def test_it_starts_without_effect_and_learns_as_fast_as_with_a_scale_of_its_own_rank():
    """The size of A at the start times the scale is that of an adapter with lora_alpha / R."""
    lora = expert_lora.ExpertLora((4, 64, 32), 2, torch.empty(0))
    lora.update_layer("default", 8, 16.0, LoraConfig())
    a = lora.lora_A["default"].weight
    assert a.abs().max().item() * lora.scaling["default"] == pytest.approx((1 / 64) ** 0.5 * 16 / 2, rel=0.05)
    x, product = torch.randn(3, 64), torch.randn(3, 32)
    assert torch.equal(lora(product, x, torch.tensor([1, 1, 1, 3], dtype=torch.int32)), product)
