"""Reads parts of the tensors of a checkpoint and dequantises MXFP4 ones, straight to where they belong.

By `pread`, not by mapping the files: mapped pages would count as memory of every rank that reads them.
"""

import math
import os
from pathlib import Path

import torch

from grpo.model import mxfp4
from grpo.model.model_files import CheckpointError, Model

_DTYPES = {"U8": torch.uint8, "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_PIECE = 1 << 23  # elements of a tensor that is not MXFP4 in memory at a time, beside the result


class CheckpointReader:
    """Reads the tensors of a (sharded) safetensors checkpoint.

    Args:
        model: a checkpoint in which `grpo.model.architecture.check` has found no fault.

    Attributes:
        bytes_read: from the files so far.
    """

    def __init__(self, model: Model) -> None:
        self._tensors = model.tensors
        self._open: dict[Path, int] = {}
        self.bytes_read = 0

    def __del__(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def fill(self, name: str, shape: torch.Size, start: int, out: torch.Tensor) -> None:
        """Write elements of the flattened parameter ``name``, from ``start`` on, into ``out``.

        Of an expert tensor only the experts that the range touches are read, one after the other. Memory beyond
        ``out``: one expert.

        Args:
            name: the parameter's name in ``GptOssForCausalLM``.
            shape: the parameter's shape; an MXFP4 tensor is stored transposed and is written in this layout.
            out: bf16 ``[elements]``, contiguous; MXFP4 is dequantised on its device.

        Raises:
            CheckpointError: where a file cannot be read, or has been cut since its header was checked.
        """
        if f"{name}_blocks" in self._tensors:
            self._fill_experts(name, shape, start, out)
            return
        for begin in range(0, len(out), _PIECE):
            part = out[begin : begin + _PIECE]
            part.copy_(self._read(name, start + begin, len(part)))

    def _fill_experts(self, name: str, shape: torch.Size, start: int, out: torch.Tensor) -> None:
        size, stop = math.prod(shape[1:]), start + len(out)
        for expert in range(start // size, -(-stop // size)):
            blocks, scales = (self._expert(f"{name}_{kind}", expert).to(out.device) for kind in ("blocks", "scales"))
            first, last = max(start, expert * size), min(stop, (expert + 1) * size)
            target = out[first - start : last - start]
            if len(target) == size:
                mxfp4.dequantize(blocks, scales, out=target.view(shape[1:]))
            else:  # the range of a rank begins or ends inside this expert
                whole = mxfp4.dequantize(blocks, scales).view(-1)
                target.copy_(whole[first - expert * size : last - expert * size])

    def _expert(self, name: str, number: int) -> torch.Tensor:
        shape = self._tensors[name].shape[1:]
        size = math.prod(shape)
        return self._read(name, number * size, size).view(shape)

    def _read(self, name: str, start: int, count: int) -> torch.Tensor:
        """Return elements of the flattened tensor ``name`` in its own dtype, ``[count]``."""
        tensor = self._tensors[name]
        result = torch.empty(count, dtype=_DTYPES[tensor.dtype])
        left = result.view(torch.uint8).numpy().data
        position = tensor.start + start * result.itemsize
        try:
            if tensor.file not in self._open:
                self._open[tensor.file] = os.open(tensor.file, os.O_RDONLY)
            while left:
                got = os.preadv(self._open[tensor.file], [left], position)
                if not got:
                    raise OSError(f"it ends before byte {position + 1:,}")
                left, position = left[got:], position + got
        except OSError as error:
            raise CheckpointError(f"{tensor.file} cannot be read ({error}): download it again") from error
        self.bytes_read += result.nbytes
        return result
