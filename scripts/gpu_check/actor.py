"""The rung about the whole actor: all layers at full size with random weights, log-probs and training steps.

Model, adapter and DeepSpeed are set up as in a run with ACTOR_SHARD=none. Weights are made on the GPU.
"""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.harness import time_in_turn
from benchmarks.parts.memory import measure_peak
from benchmarks.parts.random_values import fill_
from grpo.model.architecture import NO_SHARD, Architecture
from grpo.model.footprint import Actor
from grpo.model.released import RELEASED
from grpo.stack.problem import UserError
from scripts.gpu_check import full_size
from scripts.gpu_check.rung import Passed, choose_device, note
from scripts.gpu_check.scoring import add_adapter, score_tokens

if TYPE_CHECKING:
    from grpo.model.shared_base import MappedBase

LENGTHS = (4096, 16_384, 32_768)
RANK = 64
_CUDA = 1e9  # bytes, as the plan assumes


class RandomWeights:
    """Random values for a model, in place of a checkpoint's reader."""

    def fill(self, name: str, shape: torch.Size, start: int, out: torch.Tensor) -> None:
        """Fill a whole parameter."""
        assert (start, out.numel()) == (0, shape.numel())
        fill_(name, out, shape[-1])


def plan_bytes(shape: Architecture, tokens: int, maps: bool = False) -> int:
    """Return the bytes that the plan calculates for a sequence, without those of CUDA and fragments.

    Args:
        maps: whether the base is an engine's.
    """
    projections = [shape.projection(name) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    actor = Actor(
        architecture=shape,
        lora_parameters=shape.layers * RANK * sum(map(sum, projections)),
        ranks=1,
        packed=True,
        sharded=False,
        maps=maps,
        offload=False,
        adam_offload=True,
        checkpointing=True,
        eager=False,
    )
    return sum(actor.parts(1, tokens).values())


def compute_needed(shape: Architecture) -> float:
    """Return the bytes of a GPU that the shortest sequence needs."""
    return plan_bytes(shape, LENGTHS[0]) + _CUDA


def check(gpus: int) -> Passed:
    """Train the largest model that one GPU holds."""
    name = full_size.fitting(full_size.memory_of_gpu(), compute_needed)
    return measure_lengths(gpus, name.rpartition("/")[2], RELEASED[name], LENGTHS)


def measure_lengths(gpus: int, model: str, shape: Architecture, lengths: Sequence[int]) -> Passed:
    """Time log-probs and a training step at some lengths, as far as they fit."""
    device = torch.device(choose_device(gpus))
    torch.manual_seed(0)
    begin = time.perf_counter()
    engine = build(shape, device)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    numbers: dict[str, Any] = {"model": model, "gpu": gpu, "start_s": time.perf_counter() - begin}
    time_lengths(engine, shape, lengths, numbers)
    return Passed(f"{model}: {describe_lengths(numbers)}", numbers)


def time_lengths(
    engine: Any, shape: Architecture, lengths: Sequence[int], numbers: dict[str, Any], maps: bool = False
) -> None:
    """Add to the numbers what log-probs and a training step take at some lengths, as far as they fit.

    Args:
        engine: of :func:`build`.
        maps: whether its base is an engine's.
    """
    names = ("tokens", "old_s", "train_s", "peak_gb", "reserved_gb", "planned_gb")
    numbers |= {name: [] for name in names}
    for tokens in lengths:
        try:
            values = measure_at_length(engine, shape, tokens)
        except torch.OutOfMemoryError:
            if not numbers["tokens"]:
                raise
            numbers["too_long"] = tokens
            break
        for name, value in zip(names, (tokens, *values, plan_bytes(shape, tokens, maps) / 1e9), strict=True):
            numbers[name].append(value)
        note(**numbers)


def build(shape: Architecture, device: torch.device, base: "MappedBase | None" = None, scale: float = 0.02) -> Any:
    """Return DeepSpeed's engine around the model with its adapter.

    Args:
        base: an engine's; None makes random weights.
        scale: of the adapter's random values.
    """
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from transformers import AutoConfig

    from benchmarks.parts.random_model import write_model_config
    from grpo.model import deepspeed_start, loading, zero

    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed wants it
    deepspeed_start.shorten()
    folder = Path(tempfile.mkdtemp())  # it goes with the rung's TMPDIR: groups of ranks still meet in it
    get_accelerator().set_device(0)
    deepspeed.init_distributed(
        get_accelerator().communication_backend_name(), auto_mpi_discovery=False,
        init_method=f"file://{folder}/rendezvous", rank=0, world_size=1,
    )  # fmt: skip
    write_model_config(folder / "model", shape)
    config = AutoConfig.from_pretrained(folder / "model")
    ds_config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "none"},
            "offload_optimizer": {"device": "cpu", "pin_memory": device.type == "cuda"},
        },
    }
    args: Any = SimpleNamespace(actor_shard=NO_SHARD, offload=False)
    zero.tune(ds_config, args)
    model = loading.build_gpt_oss(config, RandomWeights(), ds_config=ds_config, sharded=False, base=base)
    model = add_adapter(model, RANK, scale)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=ds_config)[0]
    loading.restore_rope(engine)
    return engine


def measure_at_length(engine: Any, shape: Architecture, tokens: int) -> tuple[float, float, float, float]:
    """Return the seconds of log-probs and of a training step, and the GB that the step held and reserved at most.

    Raises:
        UserError: if a log-prob or the gradient is not finite, or if steps change nothing.
    """
    from grpo.model.vocabulary import Allocated

    kept, device = Allocated(shape.vocabulary - 1), engine.device
    ids = torch.randint(shape.vocabulary - 1, (1, tokens), device=device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    upstream = torch.randn(1, tokens - 1, device=device) / tokens  # advantages

    def old() -> torch.Tensor:
        with torch.no_grad():
            return score_tokens(engine, ids, mask, kept)

    def train() -> None:
        engine.backward((score_tokens(engine, ids, mask, kept) * upstream).sum())
        engine.step()

    before = old()
    held = torch.cuda.memory_allocated(device) if device.type == "cuda" else _count_bytes(engine.module)
    peak = held + measure_peak(train, device)  # two steps
    reserved = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else peak
    timings = time_in_turn({"old": old, "train": train}, 1, device)
    after, norm = old(), float(engine.get_global_grad_norm())
    if not bool(before.isfinite().all() and after.isfinite().all()) or not 0 < norm < float("inf"):
        raise UserError(f"{tokens:,} tokens: log-probs are not finite, or the gradient's norm is {norm}")
    if torch.equal(before, after):
        raise UserError(f"{tokens:,} tokens: steps do not change the log-probs")
    return timings["old"].seconds, timings["train"].seconds, peak / 1e9, reserved / 1e9


def _count_bytes(model: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def describe_lengths(numbers: Mapping[str, Any]) -> str:
    """Say what :func:`time_lengths` has found."""
    rows = zip(*(numbers[name] for name in ("tokens", "old_s", "train_s", "peak_gb", "planned_gb")), strict=True)
    parts = [
        f"{tokens:,} tokens: log-probs {old:.2f} s, a step {train:.2f} s, {peak:.1f} GB (plan {plan:.1f})"
        for tokens, old, train, peak, plan in rows
    ]
    if "too_long" in numbers:
        parts.append(f"{numbers['too_long']:,} tokens do not fit")
    return "; ".join(parts)
