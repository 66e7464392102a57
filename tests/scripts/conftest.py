import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from grpo import loading
from grpo.flags import ATTENTION_PROJECTIONS


def save_adapter(base: Path, folder: Path, **settings) -> Path:
    """Let PEFT write an adapter of `base` with random values."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": list(ATTENTION_PROJECTIONS)} | settings
    model = get_peft_model(loading.load_gpt_oss(base), LoraConfig(**settings), autocast_adapter_dtype=False)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def trained(checkpoint: Path, tmp_path_factory) -> Path:
    """An adapter of `checkpoint`, as PEFT writes it. Not to be changed."""
    return save_adapter(checkpoint, tmp_path_factory.mktemp("adapter"))


@pytest.fixture
def adapter(trained: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return shutil.copytree(trained, tmp_path / "adapter")


@pytest.fixture
def base(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of `checkpoint` that a test may damage."""
    return shutil.copytree(checkpoint, tmp_path / "base")
