"""Hooks of openrlhf/utils/deepspeed/deepspeed.py: the result of a run."""

import torch
from peft import PeftModel

from grpo.checkpoint import saving


def save_adapter(model: torch.nn.Module, output_dir: str) -> bool:
    """Save only the adapter if the model has one; return whether it has."""
    if not isinstance(model, PeftModel):
        return False
    saving.save_adapter(model, output_dir)
    return True
