import os

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> str:
    """The device of the kernels: a GPU, or a CPU with Triton's interpreter."""
    if torch.cuda.is_available():
        return "cuda"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1")


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skip without a GPU."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
