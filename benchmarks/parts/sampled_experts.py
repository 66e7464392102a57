"""Passes of an engine with adapters of the attention alone, and with those of the experts."""

import argparse
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.parts.random_model import FULL
from scripts.gpu_check.engine_speed import EAGER, Lengths, start_engine, write_model

LENGTHS = Lengths(prompt=24, short=8, long=40)
ADAPTER = {"lora_rank": 64, "lora_scale": 2.0}  # the recipe's


def measure_sampling(options: argparse.Namespace, device: torch.device, rank: int) -> dict[str, float]:
    """Return the seconds of a decoding pass of a model of one layer: `attention` and `experts`, the fastest of each.

    Args:
        options: with the benchmark's `experts`, `hidden`, `sequences` and `repeat`.
        rank: of each expert.
    """
    shape = replace(
        FULL, layers=1, vocabulary=1024, experts=options.experts, hidden=options.hidden, intermediate=options.hidden,
        experts_per_token=min(FULL.experts_per_token, options.experts),
        mxfp4=device.type != "cpu",  # vLLM on a CPU does not support MXFP4
    )  # fmt: skip
    adapters = {"attention": ADAPTER, "experts": ADAPTER | {"expert_rank": rank}}
    # Both engines live at once, and are measured in turn.
    memory = {} if device.type == "cpu" else {"gpu_memory_utilization": 0.4}
    with tempfile.TemporaryDirectory(prefix="bench-experts-") as scratch, ExitStack() as stack:
        write_model(Path(scratch), shape)
        engines = {
            name: stack.enter_context(
                start_engine(Path(scratch), EAGER, (options.sequences,), LENGTHS, additional_config=config, **memory)
            )
            for name, config in adapters.items()
        }
        rounds = [
            {name: engine.seconds_per_pass(options.sequences) for name, engine in engines.items()}
            for _ in range(options.repeat)
        ]
    return {name: min(each[name] for each in rounds) for name in engines}
