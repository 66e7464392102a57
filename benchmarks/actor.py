"""The check of the whole actor: all layers at full size with random weights, log-probs and training steps.

Model, adapter and DeepSpeed are set up as in a run with --actor_shard none. Weights are made on the GPU.
"""

import os
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.checks import Passed, Skipped, choose_device, note
from benchmarks.measure import measure_peak, time_in_turn
from benchmarks.parity import add_adapter, score_tokens
from benchmarks.random_model import RandomWeights, write_config
from grpo.model.architecture import ATTENTION_PROJECTIONS, NO_SHARD, OF_ENGINE, PACKED, Architecture
from grpo.model.footprint import Actor
from grpo.model.released import RELEASED
from grpo.stack.problem import UserError

if TYPE_CHECKING:
    from grpo.model.shared_base import MappedBase

LENGTHS = (4096, 16_384, 32_768)
RANK = 64
CUDA = 1e9  # bytes, as the plan assumes
_NAMES = ("tokens", "old_s", "train_s", "peak_gb", "planned_gb")


def check(gpus: int) -> Passed:
    """Train the largest model that one GPU holds."""
    name, shape = choose_model(lambda shape: plan_bytes(shape, LENGTHS[0]) + CUDA)
    return measure_lengths(gpus, name, shape, LENGTHS)


def memory_of_gpu() -> int:
    """Return the bytes of the first GPU."""
    return int(torch.cuda.get_device_properties(0).total_memory)


def choose_model(needed: Callable[[Architecture], float]) -> tuple[str, Architecture]:
    """Return the name and shape of the largest released model whose needed bytes the first GPU has.

    Raises:
        Skipped: if none fits.
    """
    memory = memory_of_gpu()
    for name, shape in RELEASED.items():  # the largest first
        if needed(shape) <= memory:
            return name.rpartition("/")[2], shape
    raise Skipped(f"{name} needs {needed(shape) / 1e9:.0f} GB here; the GPU has {memory / 1e9:.0f} GB")


def plan_bytes(shape: Architecture, tokens: int, maps: bool = False) -> int:
    """Return what the plan calculates for a sequence, without CUDA and fragments; maps: the base is an engine's."""
    args = Namespace(
        actor_shard=OF_ENGINE if maps else NO_SHARD, experts=PACKED, offload=False, adam_offload=True,
        lora_rank=RANK, target_modules=ATTENTION_PROJECTIONS, adapter=None, gradient_checkpointing=True,
        attn_implementation="sinks",
    )  # fmt: skip
    return sum(Actor(shape, args, ranks=1).parts(1, tokens).values())


def measure_lengths(gpus: int, model: str, shape: Architecture, lengths: Sequence[int]) -> Passed:
    """Time log-probs and a training step at some lengths, as far as they fit."""
    device = torch.device(choose_device(gpus))
    torch.manual_seed(0)
    engine = build(shape, device)
    numbers: dict[str, Any] = {"model": model}
    return Passed(f"{model}: {time_lengths(engine, shape, lengths, numbers)}", numbers)


def build(shape: Architecture, device: torch.device, base: "MappedBase | None" = None, scale: float = 0.02) -> Any:
    """Return DeepSpeed's engine around the model, on an engine's base or with random weights, with its adapter."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from transformers import AutoConfig

    from grpo.model import loading, zero

    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed wants it
    zero.shorten_start()
    folder = Path(tempfile.mkdtemp())  # it goes with the check's TMPDIR: groups of ranks still meet in it
    get_accelerator().set_device(0)
    deepspeed.init_distributed(
        get_accelerator().communication_backend_name(), auto_mpi_discovery=False,
        init_method=f"file://{folder}/rendezvous", rank=0, world_size=1,
    )  # fmt: skip
    write_config(folder / "model", shape)
    offload = {"device": "cpu", "pin_memory": device.type == "cuda"}
    config: Any = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "offload_param": {"device": "none"}, "offload_optimizer": offload},
    }
    args: Any = SimpleNamespace(actor_shard=NO_SHARD, offload=False)
    zero.tune(config, args)
    of_files = AutoConfig.from_pretrained(folder / "model")
    model = loading.build_gpt_oss(of_files, RandomWeights(), ds_config=config, sharded=False, base=base)
    model = add_adapter(model, RANK, scale)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    loading.restore_rope(engine)
    return engine


def time_lengths(
    engine: Any, shape: Architecture, lengths: Sequence[int], numbers: dict[str, Any], maps: bool = False
) -> str:
    """Add to the numbers what log-probs and a training step take at some lengths, as far as they fit; describe it."""
    numbers |= {name: [] for name in _NAMES}
    parts: list[str] = []
    for tokens in lengths:
        try:
            old, train, peak = measure_at_length(engine, shape, tokens)
        except torch.OutOfMemoryError:
            if not parts:
                raise
            numbers["too_long"] = tokens
            parts.append(f"{tokens:,} tokens do not fit")
            break
        plan = plan_bytes(shape, tokens, maps) / 1e9
        for name, value in zip(_NAMES, (tokens, old, train, peak, plan), strict=True):
            numbers[name].append(value)
        note(**numbers)
        seconds = f"log-probs {old:.2f} s, a step {train:.2f} s"
        parts.append(f"{tokens:,} tokens: {seconds}, {peak:.1f} GB (plan {plan:.1f})")
    return "; ".join(parts)


def measure_at_length(engine: Any, shape: Architecture, tokens: int) -> tuple[float, float, float]:
    """Return the seconds of log-probs and of a training step, and the GB that the step held at most.

    Raises:
        UserError: if a log-prob or the gradient is not finite, or if steps change nothing.
    """
    from grpo.model.vocabulary import Allocated

    allocated, device = Allocated(shape.vocabulary - 1), engine.device
    ids = torch.randint(shape.vocabulary - 1, (1, tokens), device=device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    upstream = torch.randn(1, tokens - 1, device=device) / tokens  # advantages
    score = torch.no_grad()(lambda: score_tokens(engine, ids, mask, allocated))

    def train() -> None:
        engine.backward((score_tokens(engine, ids, mask, allocated) * upstream).sum())
        engine.step()

    before = score()
    whole = (*engine.module.parameters(), *engine.module.buffers())
    held = torch.cuda.memory_allocated(device) if device.type == "cuda" else sum(tensor.nbytes for tensor in whole)
    peak = held + measure_peak(train, device)  # two steps
    seconds = time_in_turn({"old": score, "train": train}, 1, device)
    after, norm = score(), float(engine.get_global_grad_norm())
    if not bool(before.isfinite().all() and after.isfinite().all()) or not 0 < norm < float("inf"):
        raise UserError(f"{tokens:,} tokens: log-probs are not finite, or the gradient's norm is {norm}")
    if torch.equal(before, after):
        raise UserError(f"{tokens:,} tokens: steps do not change the log-probs")
    return seconds["old"], seconds["train"], peak / 1e9
