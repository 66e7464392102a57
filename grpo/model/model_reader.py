"""Reads parts of a checkpoint's tensors and dequantizes MXFP4 straight into the destination.

It uses `pread` rather than mmap: mapped pages would count towards the memory of every rank that reads them.
"""

import math
import os
from pathlib import Path

import torch

from grpo.model import mxfp4
from grpo.model.model_files import CheckpointError, Model

_DTYPES = {"U8": torch.uint8, "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_PIECE = 1 << 23  # elements of a non-MXFP4 tensor in memory at a time, besides the result


class CheckpointReader:
    """Reads the tensors of a (sharded) safetensors checkpoint.

    Args:
        model: a checkpoint that passed `grpo.model.architecture.check`.

    Attributes:
        bytes_read: bytes read from the files so far.
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

        For an expert tensor it reads only the experts that the range touches, one at a time. Besides ``out`` it needs
        memory for one expert.

        Args:
            name: the parameter's name in ``GptOssForCausalLM``.
            shape: the parameter's shape. MXFP4 is stored transposed and is written in this layout.
            out: ``[elements]``, contiguous. In bf16, MXFP4 is dequantized on its device. In uint8, ``name`` is that of
                blocks or scales, which are read as they are.

        Raises:
            CheckpointError: if a file cannot be read, or was truncated after its header was checked.
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
            else:  # the rank's range begins or ends inside this expert
                whole = mxfp4.dequantize(blocks, scales).view(-1)
                target.copy_(whole[first - expert * size : last - expert * size])

    def _expert(self, name: str, number: int) -> torch.Tensor:
        shape = self._tensors[name].shape[1:]
        size = math.prod(shape)
        return self._read(name, number * size, size).view(shape)

    def _read(self, name: str, start: int, count: int) -> torch.Tensor:
        """Return ``count`` elements of the flattened tensor ``name`` in its own dtype, ``[count]``."""
        tensor = self._tensors[name]
        result = torch.empty(count, dtype=_DTYPES[tensor.dtype])
        left = result.view(torch.uint8).numpy().data
        position = tensor.start + start * result.itemsize
        try:
            if tensor.file not in self._open:
                self._open[tensor.file] = os.open(tensor.file, os.O_RDONLY)
            while left:  # Linux reads at most 2 GB at once
                got = os.preadv(self._open[tensor.file], [left], position)
                if not got:
                    raise OSError(f"it ends before byte {position + 1:,}")
                left, position = left[got:], position + got
        except OSError as error:
            raise CheckpointError(f"{tensor.file} cannot be read ({error})", "download it again") from error
        self.bytes_read += result.nbytes
        return result
