"""Reads parts of the tensors of a checkpoint and dequantises MXFP4 ones; nothing is read before it is asked for."""

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from grpo import mxfp4
from grpo.checkpoint_files import CheckpointError, Model


class CheckpointReader:
    """Reads the tensors of a (sharded) safetensors checkpoint.

    Args:
        model: a checkpoint in which `grpo.architecture.check` has found no fault.
    """

    def __init__(self, model: Model) -> None:
        self._tensors = model.tensors
        self._open: dict[Path, Any] = {}

    def _slice(self, name: str) -> Any:
        """Return safetensors' lazy slice of the tensor ``name``."""
        file = self._tensors[name].file
        if file not in self._open:
            try:
                self._open[file] = safe_open(file, framework="pt").__enter__()
            except Exception as error:
                raise CheckpointError(f"{file} cannot be read ({error}): download it again") from error
        return self._open[file].get_slice(name)

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
        rows = math.prod(shape[1:])
        first, last = start // rows, math.ceil(stop / rows)
        if f"{name}_blocks" in self._tensors:
            blocks = self._slice(f"{name}_blocks")[first:last].to(device)
            scales = self._slice(f"{name}_scales")[first:last].to(device)
            part = mxfp4.dequantize(blocks, scales, dtype=torch.bfloat16)
        else:
            part = self._slice(name)[first:last].to(device=device, dtype=torch.bfloat16)
        return part.reshape(-1)[start - first * rows : stop - first * rows]
