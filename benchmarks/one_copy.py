"""The check of one copy of the model: engine and actor on one GPU, all layers at full size with random weights.

As in a run with --actor_shard engine, the engine holds the base and the actor maps it. On a CPU, in tests, both are
tiny and a stand-in in the engine's process holds the base: :mod:`grpo.model.base_on_cpu`.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import actor, parity
from benchmarks.checks import Passed, Skipped, choose_device, note
from benchmarks.engine_speed import Lengths, describe_times, start_engine
from benchmarks.random_model import write_config
from grpo.model.architecture import OF_ENGINE, Architecture
from grpo.stack import machine
from grpo.stack.problem import UserError

LENGTHS, SEQUENCES, TIMED = (4096, 16_384), (1, 8, 16), Lengths(prompt=128)
_FRAGMENTS = 0.05  # share of a GPU, as the plan assumes
_ENGINE = 4.8e9  # bytes of an engine beside its weights: buffers, as the plan assumes, and a cache for SEQUENCES


def check(gpus: int) -> Passed:
    """Let engine and actor share the largest model for which one GPU has room, if vLLM leaves its experts in place."""
    if gpu := machine.find_gpu_that_cannot_share():
        raise Skipped(f"{gpu.name} has compute capability {gpu.capability}, and this needs {machine.SHARES_MODEL}")
    return share_model(gpus, *actor.choose_model(compute_needed), LENGTHS, SEQUENCES, TIMED)


def compute_needed(shape: Architecture) -> float:
    """Return the bytes of a GPU that both need for the shortest sequence."""
    return (_weigh(shape) + _ENGINE + _plan_actor(shape, LENGTHS[0])) / (1 - _FRAGMENTS)


def _weigh(shape: Architecture) -> int:
    return sum(shape.actor_bytes(packed=True).values())


def _plan_actor(shape: Architecture, tokens: int) -> float:
    return actor.plan_bytes(shape, tokens, maps=True) + actor.CUDA


def share_model(
    gpus: int, model: str, shape: Architecture, lengths: Sequence[int], sequences: Sequence[int], timed: Lengths
) -> Passed:
    """Start an engine and an actor on its base; time passes and steps, and compare log-probs.

    The actor must not copy the base, nor change it.
    """
    import torch

    from grpo.lora import adapter
    from grpo.model.shared_base import MappedBase

    device = torch.device(choose_device(gpus))
    numbers: dict[str, Any] = {"model": model}
    with tempfile.TemporaryDirectory() as name:
        packed = folder = Path(name, "mxfp4")
        args: Any = SimpleNamespace(
            lora_rank=actor.RANK, lora_alpha=2 * actor.RANK, routing_replay=False, parity_limit=1, enforce_eager=True,
            actor_shard=OF_ENGINE, pretrain=str(packed),
        )  # fmt: skip
        options: dict[str, Any] = {"additional_config": adapter.engine_config(args)}
        if gpus:  # no weights: they are made on the GPU
            tokenizer, memory = write_config(packed, shape), actor.memory_of_gpu()
            # What the longest sequence leaves. If that is too little for the engine, the sequence may not fit.
            left = memory * (1 - _FRAGMENTS) - max(_plan_actor(shape, tokens) for tokens in lengths)
            options["gpu_memory_utilization"] = max(_weigh(shape) + _ENGINE, left) / memory
        else:
            folder, tokenizer, shape = parity.write_for_both(packed, shape, gpus)
            options["load_format"] = "auto"
        begin = time.perf_counter()
        with start_engine(folder, max(sequences), timed, **options) as engine:
            numbers |= {"start_s": time.perf_counter() - begin, **engine.describe()}
            numbers["decode_s"] = {str(count): engine.seconds_per_pass(count) for count in sequences}
            note(**numbers)
            base = MappedBase(engine.call("describe_base"))
            trainer = actor.build(shape, device, base, parity.compute_scale(shape, actor.RANK))
            numbers |= {"base_gb": _weigh(shape) / 1e9, "shared_gb": engine.describe()["memory_gb"]}
            if gpus and (held := torch.cuda.memory_allocated(device)) > _weigh(shape) / 2:
                raise UserError(f"the actor holds {held / 1e9:.1f} GB of its own, beside the engine's base")
            trained = actor.time_lengths(trainer, shape, lengths, numbers, maps=True)
            base.check()
            what = f"{shape.layers} layers of {shape.hidden}, {shape.experts} experts"
            agreed = parity.compare_with_replay(what, engine, trainer.module.eval(), tokenizer)
    parts = [
        f"{model}: {numbers['base_gb']:.1f} GB of base",
        f"{numbers['memory_gb']:.1f} GB in use with the engine, {numbers['shared_gb']:.1f} GB with the actor too",
        f"ms a pass at {', '.join(numbers['decode_s'])} sequences: {describe_times(numbers['decode_s'])}",
    ]
    line = "; ".join([*parts, trained, agreed.line])
    return Passed(line, {**numbers, **agreed.numbers})
