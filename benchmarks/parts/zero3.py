"""The part of OpenRLHF's DeepSpeed configuration that the benchmarks' ranks share."""

from typing import Any

from grpo.model import zero


def make_offload_config(**more: Any) -> dict[str, Any]:
    """Return ZeRO-3 in bf16 with its parameters on the host; `more` goes into `zero_optimization`."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "cpu"},
            "stage3_param_persistence_threshold": 0,
            **more,
        },
    }
    return zero.tune(config, None)
