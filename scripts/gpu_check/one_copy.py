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

from grpo.model.architecture import OF_ENGINE, Architecture
from grpo.model.released import RELEASED
from grpo.stack import machine
from grpo.stack.problem import UserError
from scripts.gpu_check import actor, engine_speed, full_size, width
from scripts.gpu_check.engine_speed import Lengths
from scripts.gpu_check.rung import Passed, Skipped, choose_device, note

LENGTHS = (4096, 16_384)
SEQUENCES = (1, 8, 16)
TIMED = Lengths(prompt=128)
_CUDA, _FRAGMENTS = 1e9, 0.05  # bytes and the share of a GPU, as the plan assumes
_ENGINE = 4.8e9  # bytes of an engine beside its weights: buffers, as the plan assumes, and a cache for SEQUENCES


def check(gpus: int) -> Passed:
    """Let engine and actor share the largest model for which one GPU has room.

    Raises:
        Skipped: if vLLM rearranges the experts on a GPU of this machine.
    """
    if gpu := machine.find_gpu_that_cannot_share():
        raise Skipped(f"{gpu.name} has compute capability {gpu.capability}, and this needs {machine.SHARES_MODEL}")
    name = full_size.fitting(full_size.memory_of_gpu(), compute_needed)
    return share_model(gpus, name.rpartition("/")[2], RELEASED[name], LENGTHS, SEQUENCES, TIMED)


def compute_needed(shape: Architecture) -> float:
    """Return the bytes of a GPU that both need for the shortest sequence."""
    of_engine = sum(shape.actor_bytes(packed=True).values()) + _ENGINE
    return (of_engine + actor.plan_bytes(shape, LENGTHS[0], maps=True) + _CUDA) / (1 - _FRAGMENTS)


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

    device = torch.device(choose_device(gpus))
    numbers: dict[str, Any] = {"model": model, "gpu": torch.cuda.get_device_name(device) if gpus else "CPU"}
    with tempfile.TemporaryDirectory() as name:
        folder, shape, options = _write_model(Path(name), shape, gpus, lengths)
        begin = time.perf_counter()
        with engine_speed.start_engine(folder, engine_speed.EAGER, sequences, timed, **options) as engine:
            numbers |= {"start_s": time.perf_counter() - begin, **engine.describe()}
            numbers["decode_s"] = {str(count): engine.seconds_per_pass(count) for count in sequences}
            note(**numbers)
            base, trainer = _map_base(engine, shape, device, numbers)
            actor.time_lengths(trainer, shape, lengths, numbers, maps=True)
            base.check()
            agreement = _compare(engine, trainer.module, folder, shape, device)  # last: the report keeps the rest
    passes = ", ".join(f"{1e3 * seconds:.1f}" for seconds in numbers["decode_s"].values())
    parts = [
        f"{model}: {numbers['base_gb']:.1f} GB of base",
        f"{numbers['memory_gb']:.1f} GB in use with the engine, {numbers['shared_gb']:.1f} GB with the actor too",
        f"ms a pass at {', '.join(numbers['decode_s'])} sequences: {passes}",
    ]
    return Passed(
        "; ".join([*parts, actor.describe_lengths(numbers), agreement.line]), {**numbers, **agreement.numbers}
    )


def _write_model(
    folder: Path, shape: Architecture, gpus: int, lengths: Sequence[int]
) -> tuple[Path, Architecture, dict[str, Any]]:
    """Write what the engine loads; return it, the shape of the model, and the engine's arguments."""
    from grpo.lora import adapter
    from grpo.model import model_files

    packed = folder / "mxfp4"
    args: Any = SimpleNamespace(
        lora_rank=actor.RANK, lora_alpha=2 * actor.RANK, routing_replay=False, parity_limit=1, enforce_eager=True,
        actor_shard=OF_ENGINE, pretrain=str(packed),
    )  # fmt: skip
    options: dict[str, Any] = {"additional_config": adapter.engine_config(args)}
    if gpus:
        packed.mkdir()
        engine_speed.write_model(packed, shape)  # without weights, which are made on the GPU
        memory = full_size.memory_of_gpu()
        planned = [actor.plan_bytes(shape, tokens, maps=True) for tokens in lengths]
        weights = sum(shape.actor_bytes(packed=True).values())
        # What the longest sequence leaves. If that is too little for the engine, the sequence may not fit.
        left = max(weights + _ENGINE, memory * (1 - _FRAGMENTS) - _CUDA - max(planned))
        return packed, shape, options | {"gpu_memory_utilization": left / memory}
    width.write_model(packed, shape)
    found = Architecture.from_config(model_files.read_json(packed / "config.json"))
    return width.write_for_engine(packed, gpus), found, options | {"load_format": "auto"}


def _map_base(
    engine: engine_speed.Engine, shape: Architecture, device: Any, numbers: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the engine's base, and DeepSpeed's engine around the actor's model on it."""
    import torch

    from grpo.model.shared_base import MappedBase

    begin = time.perf_counter()
    [description] = engine.call("describe_base")
    base = MappedBase(description)
    numbers["map_s"] = time.perf_counter() - begin
    size = sum(shape.actor_bytes(packed=True).values()) / 1e9
    trainer = actor.build(shape, device, base, width.compute_scale(shape, actor.RANK))
    numbers |= {"base_gb": size, "shared_gb": engine.describe()["memory_gb"]}
    if device.type == "cuda" and (held := torch.cuda.memory_allocated(device) / 1e9) > size / 2:
        raise UserError(f"the actor holds {held:.1f} GB of its own, beside the {size:.1f} GB of the engine's base")
    return base, trainer


def _compare(engine: engine_speed.Engine, model: Any, folder: Path, shape: Architecture, device: Any) -> Passed:
    """Let the engine sample with the actor's adapter, and compare the log-probs of what it samples."""
    from transformers import AutoTokenizer

    from grpo.lora import adapter
    from grpo.model.vocabulary import find_allocated

    tokenizer = AutoTokenizer.from_pretrained(folder)
    flat, specs = adapter.gather(model)
    prompts = [width.make_prompt(tokenizer, number) for number in range(width.PROMPTS)]
    responses = engine.loop.run(width.draw(engine.actor, flat, specs, prompts))
    what = f"{shape.layers} layers of {shape.hidden}, {shape.experts} experts"
    model.eval()
    passed = width.compare_with_replay(what, model, prompts, responses, find_allocated(tokenizer), str(device))
    model.train()
    return passed
