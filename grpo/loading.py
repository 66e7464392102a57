"""Loads a gpt-oss checkpoint (MXFP4 or bf16) into the actor, one parameter at a time.

Stock transformers builds a quantised model whole in the host memory of every rank: 4 x 233.7 GB for the 120b. Here
the model is built on the meta device, and each rank fills its own ZeRO-3 partition of each parameter from the
safetensors files, so that the ranks together hold the model about once.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, GptOssConfig, GptOssForCausalLM
from transformers.modeling_utils import no_init_weights

from grpo import mxfp4
from grpo.zero import ZeroPartitioner


class CheckpointError(ValueError):
    """The checkpoint cannot be loaded; the message names the file and the remedy."""


class CheckpointReader:
    """Reads tensors of a (sharded) safetensors checkpoint and dequantises MXFP4 ones.

    Args:
        path: a local directory with ``config.json`` and safetensors files.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        index = self.path / "model.safetensors.index.json"
        single = self.path / "model.safetensors"
        if index.exists():
            self._files: dict[str, str] = json.loads(index.read_text())["weight_map"]
        elif single.exists():
            with safe_open(single, framework="pt") as shard:
                self._files = dict.fromkeys(shard.keys(), single.name)
        else:
            raise CheckpointError(f"{self.path} has neither {index.name} nor {single.name}: download the model again")
        missing = sorted({name for name in self._files.values() if not (self.path / name).exists()})
        if missing:
            raise CheckpointError(f"{index} names files that do not exist: {', '.join(missing)}; download them again")
        self._open: dict[str, Any] = {}

    def _slice(self, name: str) -> Any:
        """Return safetensors' lazy slice of the tensor ``name``."""
        if name not in self._files:
            raise CheckpointError(f"{self.path} has no tensor {name}: it is incomplete or not a gpt-oss checkpoint")
        file = self._files[name]
        if file not in self._open:
            try:
                self._open[file] = safe_open(self.path / file, framework="pt").__enter__()
            except Exception as error:
                raise CheckpointError(f"{self.path / file} cannot be read ({error}): download it again") from error
        return self._open[file].get_slice(name)

    def _check_shape(self, name: str, shape: torch.Size, quantised: bool) -> None:
        stored = self._slice(f"{name}_blocks" if quantised else name).get_shape()
        if quantised:
            experts, rows, groups, size = stored
            stored = [experts, groups * size * 2, rows]
        if list(stored) != list(shape):
            raise CheckpointError(
                f"{name} in {self.path} has shape {tuple(stored)}, its config.json asks for {tuple(shape)}: "
                "they are of different models"
            )

    def read_flat(self, name: str, shape: torch.Size, start: int, stop: int, device: torch.device) -> torch.Tensor:
        """Return elements ``start:stop`` of the flattened parameter ``name``, in bf16.

        Of an expert tensor only the experts that the range touches are read and dequantised.

        Args:
            name: the parameter's name in ``GptOssForCausalLM``.
            shape: the parameter's shape; an MXFP4 tensor is stored transposed and is returned in this layout.
            device: where the dequantisation runs.

        Returns:
            bf16 ``[stop - start]``.
        """
        quantised = f"{name}_blocks" in self._files
        self._check_shape(name, shape, quantised)
        rows = math.prod(shape[1:])
        first, last = start // rows, math.ceil(stop / rows)
        if quantised:
            blocks = self._slice(f"{name}_blocks")[first:last].to(device)
            scales = self._slice(f"{name}_scales")[first:last].to(device)
            part = mxfp4.dequantize(blocks, scales, dtype=torch.bfloat16)
        else:
            part = self._slice(name)[first:last].to(device=device, dtype=torch.bfloat16)
        return part.reshape(-1)[start - first * rows : stop - first * rows]


def is_gpt_oss(path: str | Path) -> bool:
    """Say whether ``path`` is a gpt-oss checkpoint."""
    return isinstance(AutoConfig.from_pretrained(path), GptOssConfig)


def load_gpt_oss(
    path: str | Path, attn_implementation: str = "eager", ds_config: dict | None = None
) -> GptOssForCausalLM:
    """Load a gpt-oss checkpoint in bf16, partitioned by ZeRO-3 where ``ds_config`` asks for stage 3.

    Args:
        path: a local checkpoint directory, or a hub id that is in the local cache or can be downloaded.
        attn_implementation: an implementation that applies attention sinks, see ``grpo.flags.SINK_ATTENTION``.
        ds_config: OpenRLHF's DeepSpeed configuration; None loads whole parameters on the CPU.

    Raises:
        CheckpointError: for an incomplete checkpoint or one of another architecture.
    """
    directory = _local_directory(path)
    config = AutoConfig.from_pretrained(directory)
    if not isinstance(config, GptOssConfig):
        raise CheckpointError(f"{directory} is a {config.model_type} checkpoint, not gpt_oss")
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the loaded model is bf16; transformers would look for a quantizer
    config.dtype = torch.bfloat16
    config._attn_implementation = attn_implementation
    with torch.device("meta"), no_init_weights():
        model = GptOssForCausalLM(config)

    zero = ZeroPartitioner(ds_config) if ds_config and ds_config["zero_optimization"]["stage"] == 3 else None
    reader = CheckpointReader(directory)
    for name, parameter in list(model.named_parameters()):
        owner_name, _, leaf = name.rpartition(".")
        owner = model.get_submodule(owner_name)
        owner.register_parameter(leaf, _load_parameter(reader, name, parameter.shape, zero))
    restore_rope(model)
    return model


def _load_parameter(
    reader: CheckpointReader, name: str, shape: torch.Size, zero: ZeroPartitioner | None
) -> nn.Parameter:
    if zero is None:
        flat = reader.read_flat(name, shape, 0, shape.numel(), torch.device("cpu"))
        return nn.Parameter(flat.reshape(shape))
    start, stop = zero.local_range(shape)
    local = reader.read_flat(name, shape, start, stop, zero.device) if stop > start else None
    return zero.partitioned_parameter(shape, local)


def _local_directory(path: str | Path) -> Path:
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(str(path), allow_patterns=["*.json", "*.safetensors", "*.jinja"]))


def restore_rope(model: nn.Module) -> None:
    """Recompute the rotary frequencies of ``model`` in fp32.

    DeepSpeed 0.18.5 casts the whole module to bf16, this buffer included: YaRN's angles are then wrong by 0.8 rad at
    position 512 and 3 rad at 2048, while vLLM keeps fp32. Also fills the buffer of a model built on the meta device.
    """
    module: Any
    for module in model.modules():
        if hasattr(module, "rope_init_fn") and hasattr(module, "inv_freq"):
            device = next((p.device for p in model.parameters() if p.device.type != "meta"), torch.device("cpu"))
            frequencies, module.attention_scaling = module.rope_init_fn(module.config, device)
            module.register_buffer("inv_freq", frequencies.float(), persistent=False)
            module.original_inv_freq = module.inv_freq
