"""GPUs without the fused grouped product are named."""

import pytest

from grpo.launch import kernels
from grpo.stack import machine
from grpo.stack.machine import Gpu


@pytest.mark.parametrize(
    ("capabilities", "named"),
    [((), []), (("9.0", "10.0"), []), (("8.0", "9.0", "8.0"), ["8.0"]), (("12.0", "8.9"), ["12.0", "8.9"])],
)
def test_other_generations_are_named_once_each(monkeypatch, capabilities, named):
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu(f"GPU {kind}", 1, 0, kind) for kind in capabilities])
    lines = kernels.warnings()
    assert len(lines) == len(named)
    for line, capability in zip(lines, named, strict=True):
        assert f"compute capability {capability}" in line and "slower" in line and "same results" in line


def test_the_cpu_stack_uses_no_gpu(monkeypatch):
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu("GPU", 1, 0, "8.0")])
    assert kernels.warnings() == []
