from pathlib import Path

import pytest
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.adam import cpu_adam as deepspeeds
from deepspeed.ops.op_builder.builder import CUDAMismatchException, MissingCUDAException, OpBuilder
from deepspeed.ops.op_builder.cpu_adam import CPUAdamBuilder as GpuStacksBuilder
from torch.utils import cpp_extension

from grpo.model import cpu_adam


@pytest.fixture(params=[None, "13.0", "12.8"], ids=["no toolkit", "CUDA 13.0", "CUDA 12.8"])
def toolkit(request, tmp_path: Path, monkeypatch) -> str | None:
    """The GPU stack's choice of a builder, and an nvcc of this version beside a torch for CUDA 12.8."""
    if request.param:
        nvcc = tmp_path / "bin" / "nvcc"
        nvcc.parent.mkdir()
        nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {request.param}, V{request.param}.88'\n")
        nvcc.chmod(0o755)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path) if request.param else None)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(deepspeeds, "CPUAdamBuilder", GpuStacksBuilder)
    monkeypatch.setattr(OpBuilder, "_loaded_ops", {})
    return request.param


def step_of(optimizer: type[torch.optim.Optimizer]) -> torch.Tensor:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(1000))
    stepped = optimizer([weight], lr=0.1, weight_decay=0.01)
    for _ in range(3):
        weight.grad = torch.randn(1000)
        stepped.step()
    return weight.detach()


def test_the_optimizer_needs_no_cuda_toolkit(toolkit: str | None) -> None:
    cpu_adam.install()
    torch.testing.assert_close(step_of(DeepSpeedCPUAdam), step_of(torch.optim.AdamW))
    # torch counts the builds of a process whose flags or sources differ; another count would be another file.
    assert Path(OpBuilder._loaded_ops["cpu_adam"].__file__).name == "cpu_adam.so"


def test_deepspeeds_own_build_depends_on_the_toolkit(toolkit: str | None) -> None:
    flags = GpuStacksBuilder()
    if toolkit is None:
        with pytest.raises((MissingCUDAException, TypeError)):
            flags.extra_ldflags()
    elif toolkit == "13.0":
        with pytest.raises(CUDAMismatchException):
            flags.cxx_args()
    else:
        assert "-lcurand" in flags.extra_ldflags()
