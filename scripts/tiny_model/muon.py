"""Muon in float32: torch.optim.Muon computes in bf16, which is ten times slower on CPUs without bf16 arithmetic.

Source: K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). The update's scale, 0.2 *
sqrt(larger side), is from J. Liu et al., "Muon is Scalable for LLM Training" (2025).
"""

from collections import defaultdict

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """Bring the singular values of each matrix near one, with a quintic Newton-Schulz iteration.

    Args:
        matrices: float32 `[n, rows, columns]`.

    Returns:
        The same shape; singular values between about 0.7 and 1.2, except those near zero.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, for two-dimensional parameters; equal shapes are batched."""

    def __init__(self, params: list[torch.nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # there is no closure to call
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                gradients = torch.stack([parameter.grad for parameter in parameters])
                state = self.state[parameters[0]]
                average = state.setdefault("momentum_buffer", torch.zeros_like(gradients))
                average.lerp_(gradients, 1 - group["momentum"])
                update = orthogonalise(gradients.lerp(average, group["momentum"]))
                for parameter, part in zip(parameters, update, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.sub_(part, alpha=group["lr"] * 0.2 * max(shape) ** 0.5)
