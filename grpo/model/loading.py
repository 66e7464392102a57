"""Loads a gpt-oss checkpoint (MXFP4 or bf16) into the actor, one parameter at a time.

OpenRLHF does not load MXFP4, and transformers builds a dequantized model whole in the host memory of every rank. This
module builds the model on the meta device. Each rank then fills its own ZeRO-3 partition of each parameter from the
safetensors files, so the ranks together hold the model about once. Experts stay packed as MXFP4, or become bf16.

Where the base fits on each GPU, it may stay whole there. It then consists of buffers, which DeepSpeed neither
partitions nor gathers. ZeRO-3 holds the adapter alone. The buffers may be the engine's, see
:mod:`grpo.model.shared_base`.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from torch import nn
from transformers import AutoConfig, GptOssConfig, GptOssForCausalLM

from grpo.model import architecture, attention, experts, model_files
from grpo.model.model_files import CheckpointError
from grpo.model.model_reader import CheckpointReader
from grpo.model.shared_base import MappedBase
from grpo.model.zero import ZeroPartitioner
from grpo.stack.hub import downloaded_folder

try:
    from transformers.initialization import no_init_weights  # transformers 5
except ImportError:
    from transformers.modeling_utils import no_init_weights  # transformers 4

# Writes elements of a parameter: :meth:`grpo.model.model_reader.CheckpointReader.fill`, or what a benchmark has.
Fill = Callable[[str, torch.Size, int, torch.Tensor], None]


def is_gpt_oss(path: str | Path) -> bool:
    """Return whether ``path`` is a gpt-oss checkpoint."""
    return isinstance(AutoConfig.from_pretrained(path), GptOssConfig)


def load_gpt_oss(
    path: str | Path,
    attn_implementation: str = attention.NAME,
    ds_config: dict | None = None,
    packed: bool = True,
    sharded: bool = True,
    base: MappedBase | None = None,
) -> GptOssForCausalLM:
    """Load a gpt-oss checkpoint, partitioned by ZeRO-3 if ``ds_config`` asks for stage 3.

    Args:
        path: a local checkpoint directory, or a hub id that is cached locally or can be downloaded.
        attn_implementation: one that applies attention sinks, see ``grpo.launch.flags``.
        ds_config: OpenRLHF's DeepSpeed configuration; None loads whole parameters on the CPU.
        packed: whether experts in MXFP4 stay so. All else is bf16.
        sharded: False keeps the whole model on this rank's device, as buffers, whatever ``ds_config`` says.
        base: with ``sharded`` False and ``packed``, the frozen model that an engine holds already.

    Raises:
        CheckpointError: if the checkpoint is incomplete or has another architecture.
        BaseError: if the engine holds another model.
    """
    directory = downloaded_folder(str(path))
    files = model_files.read(directory)
    faults = architecture.check(files)
    if faults:
        raise CheckpointError(f"{directory}: {faults[0].file} {faults[0].what}", faults[0].remedy)
    is_packed = packed and architecture.Architecture.from_config(files.config).mxfp4
    config = AutoConfig.from_pretrained(directory)
    reader = CheckpointReader(files)
    model = build_gpt_oss(config, reader.fill, attn_implementation, ds_config, is_packed, sharded, base)
    if base:
        base.compare(reader)
    return model


def build_gpt_oss(
    config: GptOssConfig,
    fill: Fill,
    attn_implementation: str = attention.NAME,
    ds_config: dict | None = None,
    packed: bool = True,
    sharded: bool = True,
    base: MappedBase | None = None,
) -> GptOssForCausalLM:
    """Build a model, and let each rank fill its parameters.

    Args:
        config: of the model; it is changed.
        packed: whether experts are in MXFP4; the other arguments are those of :func:`load_gpt_oss`.
    """
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # transformers would look for a quantizer
    config.dtype = torch.bfloat16
    attention.register()
    if attn_implementation == attention.NAME:
        attention.check(config, torch.device(get_accelerator().current_device_name()))
    config._attn_implementation = attn_implementation
    with torch.device("meta"), no_init_weights():
        model: Any = GptOssForCausalLM(config)
    experts.install(model, packed)

    is_zero3 = sharded and ds_config and ds_config["zero_optimization"]["stage"] == 3
    zero = ZeroPartitioner(ds_config) if ds_config and is_zero3 else None
    for name, parameter in list(model.named_parameters()):  # the loop replaces them
        owner_name, _, leaf = name.rpartition(".")
        owner = model.get_submodule(owner_name)
        if sharded:
            owner.register_parameter(leaf, _load_parameter(fill, name, parameter, zero))
        else:
            delattr(owner, leaf)
            if base:
                base.register(owner, leaf, name, parameter)
            else:
                owner.register_buffer(leaf, _load_whole(fill, name, parameter))
    if not sharded:
        # PEFT asks for it, or else for a parameter's device.
        model.hf_device_map = {"": torch.device(get_accelerator().current_device_name())}
    restore_rope(model)
    return model


@contextlib.contextmanager
def share_of_cores(ranks: int) -> Iterator[None]:
    """Let PyTorch use this rank's share of the cores within the context.

    Ray starts its actors with OMP_NUM_THREADS=1. Training on a GPU needs no more; copying and unpacking weights does.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(max(before, len(os.sched_getaffinity(0)) // ranks))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _load_parameter(fill: Fill, name: str, described: nn.Parameter, zero: ZeroPartitioner | None) -> nn.Parameter:
    """Return a parameter of the shape of ``described``, which is on the meta device."""
    if zero is None:
        whole = _load_whole(fill, name, described, "cpu")
        return nn.Parameter(whole, requires_grad=described.requires_grad)
    shape = described.shape
    parameter = zero.partitioned_parameter(shape, _dtype(described), described.requires_grad)
    start, stop = zero.local_range(shape)
    if stop > start:
        fill(name, shape, start, parameter.ds_tensor.data[: stop - start])
    return parameter


def _load_whole(fill: Fill, name: str, described: nn.Parameter, device: str | None = None) -> torch.Tensor:
    """Return the values of a parameter that is on the meta device, by default on this rank's device."""
    device = device or get_accelerator().current_device_name()
    whole = torch.empty(described.shape, dtype=_dtype(described), device=device)
    fill(name, described.shape, 0, whole.view(-1))
    return whole


def _dtype(described: nn.Parameter) -> torch.dtype:
    return torch.uint8 if described.dtype == torch.uint8 else torch.bfloat16


def restore_rope(model: nn.Module) -> None:
    """Recompute the rotary frequencies of ``model`` in fp32.

    DeepSpeed casts the whole module to bf16, including this buffer. YaRN's angles are then wrong by 0.8 rad at
    position 512 and by 3 rad at 2048, while vLLM keeps fp32. This also fills the buffer of a model built on the meta
    device.
    """
    module: Any
    for module in model.modules():
        if hasattr(module, "rope_type") and hasattr(module, "inv_freq"):
            tensors = itertools.chain(model.parameters(), model.buffers())
            device = next((t.device for t in tensors if t.device.type != "meta"), torch.device("cpu"))
            fresh = type(module)(module.config, device)
            module.attention_scaling = fresh.attention_scaling
            module.register_buffer("inv_freq", fresh.inv_freq.float(), persistent=False)
            module.original_inv_freq = module.inv_freq
