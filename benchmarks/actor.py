"""The checks of the whole actor: all layers at full size with random weights, log-probs and training steps.

Model, adapter and DeepSpeed are set up as in a run with --actor_shard none, and then with --actor_shard engine: engine
and actor on one GPU, where the engine holds the base and the actor maps it. Weights are made on the GPU.
"""

import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import parity
from benchmarks.checks import Passed, Skipped, choose_device, note
from benchmarks.engine_speed import Lengths, describe_times, start_engine
from benchmarks.measure import measure_peak, time_in_turn
from benchmarks.random_model import fill_whole, write_config
from grpo.model.architecture import ATTENTION_PROJECTIONS, NO_SHARD, OF_ENGINE, PACKED, Architecture
from grpo.model.footprint import Actor
from grpo.model.released import RELEASED
from grpo.stack import machine
from grpo.stack.problem import UserError

if TYPE_CHECKING:
    from grpo.model.shared_base import MappedBase

LENGTHS = (4096, 16_384, 32_768)
_SHARED_LENGTHS, _SEQUENCES = (4096, 16_384), (1, 8, 16)  # with an engine on the GPU
RANK = 64
CUDA = 1e9  # bytes, as the plan assumes
_FRAGMENTS = 0.05  # share of a GPU, as the plan assumes
_ENGINE = 4.8e9  # bytes of an engine beside its weights: buffers, as the plan assumes, and a cache for _SEQUENCES
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
    model = loading.build_gpt_oss(of_files, fill_whole, ds_config=config, sharded=False, base=base)
    model = parity.add_adapter(model, RANK, scale)
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
    score = torch.no_grad()(lambda: parity.score_tokens(engine, ids, mask, allocated))

    def train() -> None:
        engine.backward((parity.score_tokens(engine, ids, mask, allocated) * upstream).sum())
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


def check_shared(gpus: int) -> Passed:
    """Let engine and actor share the largest model for which one GPU has room, if vLLM leaves its experts in place."""
    if gpu := machine.find_gpu_that_cannot_share():
        raise Skipped(f"{gpu.name} has compute capability {gpu.capability}, and this needs {machine.SHARES_MODEL}")
    return share_model(gpus, *choose_model(compute_shared), _SHARED_LENGTHS, _SEQUENCES, Lengths(prompt=128))


def compute_shared(shape: Architecture) -> float:
    """Return the bytes of a GPU that both need for the shortest sequence."""
    return (_weigh(shape) + _ENGINE + _plan_actor(shape, _SHARED_LENGTHS[0])) / (1 - _FRAGMENTS)


def _weigh(shape: Architecture) -> int:
    return sum(shape.actor_bytes(packed=True).values())


def _plan_actor(shape: Architecture, tokens: int) -> float:
    return plan_bytes(shape, tokens, maps=True) + CUDA


def share_model(
    gpus: int, model: str, shape: Architecture, lengths: Sequence[int], sequences: Sequence[int], timed: Lengths
) -> Passed:
    """Start an engine and an actor on its base; time passes and steps, and compare log-probs.

    The actor must not copy the base, nor change it. On a CPU, in tests, a stand-in in the engine's process holds the
    base: :mod:`grpo.model.base_on_cpu`.
    """
    from grpo.lora import adapter
    from grpo.model.shared_base import MappedBase

    device = torch.device(choose_device(gpus))
    numbers: dict[str, Any] = {"model": model}
    with tempfile.TemporaryDirectory() as name:
        packed = folder = Path(name, "mxfp4")
        args: Any = SimpleNamespace(
            lora_rank=RANK, lora_alpha=2 * RANK, routing_replay=False, parity_limit=1, enforce_eager=True,
            actor_shard=OF_ENGINE, pretrain=str(packed),
        )  # fmt: skip
        options: dict[str, Any] = {"additional_config": adapter.engine_config(args)}
        if gpus:  # no weights: they are made on the GPU
            tokenizer, memory = write_config(packed, shape), memory_of_gpu()
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
            trainer = build(shape, device, base, parity.compute_scale(shape, RANK))
            numbers |= {"base_gb": _weigh(shape) / 1e9, "shared_gb": engine.describe()["memory_gb"]}
            if gpus and (held := torch.cuda.memory_allocated(device)) > _weigh(shape) / 2:
                raise UserError(f"the actor holds {held / 1e9:.1f} GB of its own, beside the engine's base")
            trained = time_lengths(trainer, shape, lengths, numbers, maps=True)
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
