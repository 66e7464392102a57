"""What differs between the supported versions of OpenRLHF, for tests."""

import inspect
from types import SimpleNamespace
from typing import Any

import torch


def make_stock_loss(args: SimpleNamespace) -> Any:
    """OpenRLHF's policy loss with our flags."""
    from openrlhf.models.loss import PolicyLoss

    kind, thresholds = args.vllm_is_correction_type, args.vllm_is_truncated_threshold
    if "is_correction_level" in inspect.signature(PolicyLoss).parameters:
        level, mode = {"tis": ("token", "clip"), "icepop": ("token", "mask")}.get(kind, ("seq", "mask"))
        correction = {
            "is_correction_level": level if args.enable_vllm_is_correction else "off",
            "is_correction_mode": mode, "is_correction_threshold": thresholds,
        }  # fmt: skip
    else:
        correction = {
            "enable_vllm_is_correction": args.enable_vllm_is_correction,
            "vllm_is_truncated_threshold": thresholds, "vllm_is_correction_type": kind,
        }  # fmt: skip
    low, high = args.eps_clip_low_high
    return PolicyLoss(low, high, args.dual_clip, True, args.policy_loss_type, **correction)


def read_noted(experience: Any) -> dict[str, torch.Tensor]:
    """What OpenRLHF notes of rollouts: in ``info``, or later in fields of their own."""
    fields = ("response_length", "total_length", "truncated")
    return experience.info | {name: getattr(experience, name) for name in fields if hasattr(experience, name)}
