"""Writes a gpt-oss checkpoint file by file, with the tensors of one file in memory."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from grpo.launch.plan import size
from grpo.model.architecture import Architecture, check, is_packed
from grpo.model.model_files import INDEX, Model, read
from grpo.model.model_reader import CheckpointReader
from grpo.stack.machine import disk_free
from grpo.stack.problem import UserError

COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "LICENSE",
    "USAGE_POLICY",
)
_OTHER_FILES = 100_000_000  # bytes for the tokenizer and the rest

Read = Callable[[str], dict[str, torch.Tensor]]  # returns a parameter's tensors, by their names in a file


def whole_model(folder: Path) -> Model:
    """Read a complete base model. Raises UserError with every fault."""
    model = read(folder)
    faults = check(model)
    if faults:
        listed = "\n  ".join([f"{folder} is not complete:", *(f"{fault.file} {fault.what}" for fault in faults)])
        raise UserError(listed, "; ".join(dict.fromkeys(fault.remedy for fault in faults)))
    return model


class Parameters:
    """The parameters of a complete model."""

    def __init__(self, model: Model) -> None:
        self._stored, self._reader = model.tensors, CheckpointReader(model)
        self._shapes = Architecture.from_config(model.config).parameters()

    def read(self, name: str) -> dict[str, torch.Tensor]:
        """Return a parameter in bf16, or its blocks and scales, byte for byte."""
        packed = [f"{name}_blocks", f"{name}_scales"]
        if packed[0] not in self._stored:
            return self.read_bf16(name)
        return {stored: self._fill(stored, self._stored[stored].shape, torch.uint8) for stored in packed}

    def read_bf16(self, name: str) -> dict[str, torch.Tensor]:
        """Return a parameter in bf16, dequantized if it is packed."""
        return {name: self._fill(name, self._shapes[name], torch.bfloat16)}

    def _fill(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        values = torch.empty(*shape, dtype=dtype)
        self._reader.fill(name, values.shape, 0, values.view(-1))
        return values


def write_checkpoint(model: Model, target: Path, read: Read, dequantize: bool) -> None:
    """Write a complete model to `target`, whole or not at all: its config, its tokenizer, and what `read` returns.

    Args:
        read: of a parameter.
        dequantize: whether it returns no MXFP4, if the model has any.

    Raises:
        UserError: as :func:`write_aside`, or if the result is incomplete.
    """
    files: dict[str, list[str]] = {}
    for name, tensor in sorted(model.tensors.items()):
        if not name.endswith("_scales"):  # they follow their blocks
            files.setdefault(tensor.file.name, []).append(name.removesuffix("_blocks"))
    with write_aside(target, (model.bf16_bytes if dequantize else model.file_bytes) + _OTHER_FILES) as folder:
        total = 0
        weight_map: dict[str, str] = {}
        for file, names in sorted(files.items()):
            tensors = {stored: values for name in names for stored, values in read(name).items()}
            save_file(tensors, folder / file, metadata={"format": "pt"})
            total += sum(values.nbytes for values in tensors.values())
            weight_map |= dict.fromkeys(tensors, file)
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
        config = dict(model.config)
        if not any(map(is_packed, weight_map)):
            config = {key: value for key, value in config.items() if key not in ("quantization_config", "torch_dtype")}
            config["dtype"] = "bfloat16"
        write_json(folder / "config.json", config)
        for name in COPIED:
            if (model.folder / name).is_file():
                shutil.copyfile(model.folder / name, folder / name)
        whole_model(folder)


def dequantize_checkpoint(source: Path, target: Path) -> None:
    """Write a copy with plain bf16 in place of MXFP4 to `target`, whole or not at all, for engines without its kernels.

    Host memory: one file of the copy.

    Raises:
        UserError: if `source` is not a complete MXFP4 checkpoint, or the disk is too small.
    """
    model = whole_model(source)
    if not model.is_mxfp4:
        raise UserError(f"{source / 'config.json'} lacks quant_method mxfp4", "name an MXFP4 model")
    write_checkpoint(model, target, Parameters(model).read_bf16, dequantize=True)


@contextmanager
def write_aside(target: Path, needed: int) -> Iterator[Path]:
    """Provide a temporary folder that is renamed to `target` at the end, and removed if anything fails.

    Args:
        needed: bytes that will be written.

    Raises:
        UserError: if the disk has less than `needed`, `target` is not empty, or another writer is using it.
    """
    target = target.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is not empty", "remove it, or choose another folder")
    free = disk_free(target)
    if free < needed:
        raise UserError(f"{target} needs {size(needed)}, but its disk has {size(free)} free", "choose another disk")
    folder = target.with_name(f".{target.name}.partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        raise UserError(f"{folder} exists", f"remove it, unless another process is writing {target}") from None
    try:
        yield folder
        os.sync()
        folder.rename(target)  # replaces an empty directory
    except BaseException:
        shutil.rmtree(folder)
        raise


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write indented JSON with a final line feed."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
