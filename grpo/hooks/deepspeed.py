"""Hooks of openrlhf/utils/deepspeed/deepspeed.py: the trainer engine."""

from typing import Any

import torch
from peft import PeftModel

from grpo.checkpoint import saving
from grpo.model import cpu_matmul, loading, zero
from grpo.stack.upstream.arguments import Arguments


def install_matmul() -> None:
    """Replace bf16 matrix products if the CPU has no bf16 arithmetic."""
    cpu_matmul.install()


def offload(args: Arguments) -> bool:
    """Return whether the frozen parameters stay in host memory. Some strategies of OpenRLHF lack our flags."""
    return getattr(args, "offload", False)


def optimizer(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.AdamW:
    """Return PyTorch's fused AdamW, which steps on the host and on a GPU and is not compiled.

    Empty groups are left out: DeepSpeed drops them, and the scheduler of torch 2.10 then raises.
    """
    return torch.optim.AdamW([group for group in groups if group["params"]], fused=True, **settings)


def tune(ds_config: dict[str, Any], args: Arguments) -> dict[str, Any]:
    """Return DeepSpeed's configuration, tuned for few trained parameters under ZeRO-3."""
    return zero.tune(ds_config, args)


def restore_rope(engine: torch.nn.Module) -> None:
    """Restore YaRN's frequencies to fp32 after DeepSpeed's cast."""
    loading.restore_rope(engine)


def save_adapter(model: torch.nn.Module, output_dir: str) -> bool:
    """Save only the adapter if the model has one; return whether it has."""
    if not isinstance(model, PeftModel):
        return False
    saving.save_adapter(model, output_dir)
    return True
