"""The rung about one copy of the model: engine and actor on one GPU, all layers at full size with random weights.

As in a run with ACTOR_SHARD=engine, the engine holds the base and the actor maps it. On a CPU, in tests, both are tiny
and a stand-in in the engine's process holds the base: :mod:`grpo.model.base_on_cpu`.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import actor, agreement, width
from benchmarks.engine_speed import Lengths, describe_times, start_engine
from benchmarks.random_model import write_config
from benchmarks.rung import Passed, Skipped, choose_device, note
from grpo.model.architecture import OF_ENGINE, Architecture
from grpo.model.released import RELEASED
from grpo.stack import machine
from grpo.stack.problem import UserError

LENGTHS = (4096, 16_384)
SEQUENCES = (1, 8, 16)
TIMED = Lengths(prompt=128)
_FRAGMENTS = 0.05  # share of a GPU, as the plan assumes
_ENGINE = 4.8e9  # bytes of an engine beside its weights: buffers, as the plan assumes, and a cache for SEQUENCES


def check(gpus: int) -> Passed:
    """Let engine and actor share the largest model for which one GPU has room.

    Raises:
        Skipped: if vLLM rearranges the experts on a GPU of this machine.
    """
    if gpu := machine.find_gpu_that_cannot_share():
        raise Skipped(f"{gpu.name} has compute capability {gpu.capability}, and this needs {machine.SHARES_MODEL}")
    name = actor.choose_model(actor.memory_of_gpu(), compute_needed)
    return share_model(gpus, name.rpartition("/")[2], RELEASED[name], LENGTHS, SEQUENCES, TIMED)


def compute_needed(shape: Architecture) -> float:
    """Return the bytes of a GPU that both need for the shortest sequence."""
    of_actor = actor.plan_bytes(shape, LENGTHS[0], maps=True) + actor.CUDA
    return (_weigh(shape) + _ENGINE + of_actor) / (1 - _FRAGMENTS)


def _weigh(shape: Architecture) -> int:
    return sum(shape.actor_bytes(packed=True).values())


def share_model(
    gpus: int, model: str, shape: Architecture, lengths: Sequence[int], sequences: Sequence[int], timed: Lengths
) -> Passed:
    """Start an engine and an actor on its base; compare their log-probs, time their passes, and train.

    Args:
        model: its name, for the report.
        shape: in MXFP4.
        lengths: tokens of the sequences to train on.
        sequences, timed: of the engine's passes.

    Raises:
        UserError: if the actor makes a copy of the base, or changes it, or computes other log-probs than the engine.
    """
    import torch

    from grpo.lora import adapter
    from grpo.model.shared_base import MappedBase
    from grpo.model.vocabulary import find_allocated

    device = torch.device(choose_device(gpus))
    numbers: dict[str, Any] = {"model": model, "gpu": torch.cuda.get_device_name(device) if gpus else "CPU"}
    with tempfile.TemporaryDirectory() as name:
        folder, tokenizer, shape, options = _write_model(Path(name, "mxfp4"), shape, gpus, lengths)
        begin = time.perf_counter()
        with start_engine(folder, max(sequences), timed, **options) as engine:
            numbers |= {"start_s": time.perf_counter() - begin, **engine.describe()}
            numbers["decode_s"] = {str(count): engine.seconds_per_pass(count) for count in sequences}
            note(**numbers)
            begin = time.perf_counter()
            base = MappedBase(engine.call("describe_base"))
            numbers["map_s"] = time.perf_counter() - begin
            trainer = actor.build(shape, device, base, width.compute_scale(shape, actor.RANK))
            numbers |= {"base_gb": _weigh(shape) / 1e9, "shared_gb": engine.describe()["memory_gb"]}
            if gpus and (held := torch.cuda.memory_allocated(device)) > _weigh(shape) / 2:
                raise UserError(f"the actor holds {held / 1e9:.1f} GB of its own, beside the engine's base")
            actor.time_lengths(trainer, shape, lengths, numbers, maps=True)
            base.check()
            prompts = agreement.make_prompts(tokenizer)  # last: the report keeps the rest
            responses = engine.loop.run(agreement.draw(engine.actor, *adapter.gather(trainer.module), prompts))
            what = f"{shape.layers} layers of {shape.hidden}, {shape.experts} experts"
            of_actor = trainer.module.eval(), prompts, responses, find_allocated(tokenizer), str(device)
            agreed = agreement.judge_with_replay(what, *of_actor)
    parts = [
        f"{model}: {numbers['base_gb']:.1f} GB of base",
        f"{numbers['memory_gb']:.1f} GB in use with the engine, {numbers['shared_gb']:.1f} GB with the actor too",
        f"ms a pass at {', '.join(numbers['decode_s'])} sequences: {describe_times(numbers['decode_s'])}",
    ]
    line = "; ".join([*parts, actor.describe_lengths(numbers), agreed.line])
    return Passed(line, {**numbers, **agreed.numbers})


def _write_model(
    packed: Path, shape: Architecture, gpus: int, lengths: Sequence[int]
) -> tuple[Path, Any, Architecture, dict[str, Any]]:
    """Write what the engine loads; return it, its tokenizer, the shape of the model, and the engine's arguments."""
    from grpo.lora import adapter

    args: Any = SimpleNamespace(
        lora_rank=actor.RANK, lora_alpha=2 * actor.RANK, routing_replay=False, parity_limit=1, enforce_eager=True,
        actor_shard=OF_ENGINE, pretrain=str(packed),
    )  # fmt: skip
    options: dict[str, Any] = {"additional_config": adapter.engine_config(args)}
    if not gpus:
        tokenizer, shape = width.write_with_tokenizer(packed, shape)
        return width.write_for_engine(packed, gpus), tokenizer, shape, options | {"load_format": "auto"}
    memory = actor.memory_of_gpu()
    planned = max(actor.plan_bytes(shape, tokens, maps=True) for tokens in lengths)
    # What the longest sequence leaves. If that is too little for the engine, the sequence may not fit.
    left = max(_weigh(shape) + _ENGINE, memory * (1 - _FRAGMENTS) - actor.CUDA - planned)
    tokenizer = write_config(packed, shape)  # without weights, which are made on the GPU
    return packed, tokenizer, shape, options | {"gpu_memory_utilization": left / memory}
