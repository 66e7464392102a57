"""The rungs about engine and actor at the 120b's width: few layers, random weights, the same tokens scored by both."""

import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import agreement
from benchmarks.engine import RANK
from benchmarks.engine_speed import Lengths, start_engine
from benchmarks.random_model import FULL, write_config, write_model
from benchmarks.rung import Passed, choose_device
from grpo.model.architecture import NO_SHARD, Architecture

SHAPE = replace(FULL, layers=2)  # one sliding, one full
_EXPERT_RANK = 16  # EXPERT_RANK's default in the recipe
_SCALE = 0.7
_UTILIZATION = 0.4  # two layers and their actor fit into 24 GB


def check(gpus: int) -> Passed:
    """Compare at the width of gpt-oss-120b."""
    return measure_width(gpus, SHAPE)


def check_experts(gpus: int) -> Passed:
    """Compare at the width of gpt-oss-120b, with an adapter of the experts, too."""
    return measure_width(gpus, SHAPE, _EXPERT_RANK)


def measure_width(gpus: int, shape: Architecture, expert_rank: int = 0) -> Passed:
    """Write a checkpoint of this shape, sample from it, and score the same tokens with the actor's model.

    Args:
        shape: in MXFP4; its vocabulary becomes that of the tiny model's tokenizer.
        expert_rank: of each expert's adapter; 0 for one of the attention alone.
    """
    from grpo.lora import adapter
    from grpo.model import loading
    from grpo.model.vocabulary import find_allocated

    device = choose_device(gpus)
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder, "mxfp4")
        tokenizer, shape = write_with_tokenizer(packed, shape)
        # On the host, for now
        scale = compute_scale(shape, RANK)
        model = agreement.add_adapter(loading.load_gpt_oss(packed), RANK, scale, expert_rank)
        flat, specs = adapter.gather(model)
        prompts = agreement.make_prompts(tokenizer)
        lengths = Lengths(prompt=max(map(len, prompts)), long=agreement.TOKENS)
        args: Any = SimpleNamespace(lora_rank=RANK, lora_alpha=2 * RANK, routing_replay=True, actor_shard=NO_SHARD)
        options: dict[str, Any] = {"additional_config": adapter.engine_config(args, expert_rank), "load_format": "auto"}
        options |= {"gpu_memory_utilization": _UTILIZATION} if gpus else {}
        with start_engine(write_for_engine(packed, gpus), len(prompts), lengths, **options) as engine:
            responses = engine.loop.run(agreement.draw(engine.actor, flat, specs, prompts))
    what = f"{shape.layers} layers of {shape.hidden}, {shape.experts} experts"
    what += f" with adapters of rank {expert_rank}" if expert_rank else ""
    model = model.to(device).eval()
    return agreement.judge_with_replay(what, model, prompts, responses, find_allocated(tokenizer), device)


def compute_scale(shape: Architecture, rank: int) -> float:
    """Return the scale of an adapter whose projections change about as much as they compute."""
    return float(_SCALE * (shape.hidden * rank) ** -0.25)


def write_with_tokenizer(folder: Path, shape: Architecture) -> tuple[Any, Architecture]:
    """Write a checkpoint with the vocabulary of its tokenizer; return both."""
    tokenizer = write_config(folder, shape)
    shape = replace(shape, vocabulary=(len(tokenizer) // 64 + 1) * 64)
    return write_model(folder, shape), shape


def write_for_engine(packed: Path, gpus: int) -> Path:
    """Return what the engine loads: vLLM on a CPU has no kernel for MXFP4."""
    if gpus:
        return packed
    from scripts.dequantize_checkpoint import dequantize_checkpoint

    dequantize_checkpoint(packed, packed.with_name("bf16"))
    return packed.with_name("bf16")
