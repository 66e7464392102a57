"""Writes a checkpoint tensor by tensor, with one piece of a tensor in memory at a time."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo.launch.plan import size
from grpo.model.architecture import Architecture, check, is_expert
from grpo.model.model_files import INDEX, ITEM_BYTES, FileFault, Model, Tensor, read
from grpo.model.model_reader import CheckpointReader
from grpo.stack.machine import disk_free
from grpo.stack.problem import UserError

SHARD_BYTES = 5_000_000_000
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
_PIECE = 1 << 24  # elements of a tensor, or bytes of a file, in memory at a time; more if a row has more
_OTHER_FILES = 100_000_000  # bytes for the tokenizer and the rest


@dataclass(frozen=True)
class TensorOutput:
    """A tensor to be written; `pieces` gives its bytes in order, and is called once."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[Any]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def whole_model(folder: Path) -> Model:
    """Read a complete base model.

    Raises:
        UserError: with every fault.
    """
    model = read(folder)
    faults = check(model)
    if faults:
        raise refusal(f"{folder} is not complete", faults)
    return model


def refusal(what: str, faults: Sequence[FileFault]) -> UserError:
    """Return the error that lists all faults; its remedy names each of theirs once."""
    listed = "\n  ".join([f"{what}:", *(f"{fault.file} {fault.what}" for fault in faults)])
    return UserError(listed, "; ".join(dict.fromkeys(fault.remedy for fault in faults)))


def copy_tensors(model: Model, dequantize: bool) -> dict[str, TensorOutput]:
    """Return a complete model's tensors unchanged, by name and in file order.

    Args:
        dequantize: turn MXFP4 experts into bf16. Otherwise blocks and scales are copied byte for byte.
    """
    architecture = Architecture.from_config(model.config)
    parameters = architecture.parameters()
    reader = CheckpointReader(model)
    outputs = {}
    for name, tensor in sorted(model.tensors.items(), key=lambda item: (item[1].file, item[1].start)):
        parameter = name.removesuffix("_blocks").removesuffix("_scales")
        if architecture.mxfp4 and dequantize and is_expert(parameter):
            if name.endswith("_blocks"):
                outputs[parameter] = _convert(reader, parameter, parameters[parameter])
        elif tensor.dtype in ("BF16", "U8"):
            outputs[name] = TensorOutput(name, tensor.dtype, tensor.shape, partial(_read_bytes, tensor))
        else:
            outputs[name] = _convert(reader, name, tensor.shape)
    return outputs


def _read_bytes(tensor: Tensor) -> Iterator[bytes]:
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        for position in range(tensor.start, tensor.stop, _PIECE):
            yield file.read(min(_PIECE, tensor.stop - position))


def _convert(reader: CheckpointReader, name: str, shape: tuple[int, ...]) -> TensorOutput:
    row = math.prod(shape[1:])
    step = max(1, _PIECE // row) * row

    def pieces() -> Iterator[Any]:
        total = math.prod(shape)
        for start in range(0, total, step):
            piece = torch.empty(min(step, total - start), dtype=torch.bfloat16)
            reader.fill(name, torch.Size(shape), start, piece)
            yield as_bytes(piece)

    return TensorOutput(name, "BF16", shape, pieces)


def as_bytes(tensor: torch.Tensor) -> Any:
    """Return the bytes of a tensor without a copy; numpy has no bf16."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data


def write_checkpoint(
    model: Model, outputs: dict[str, TensorOutput], target: Path, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write `outputs`, the config and the tokenizer of `model` to `target`: whole, or not at all.

    Raises:
        UserError: as :func:`write_aside`, or if the result is incomplete.
    """
    dequantized = not any(output.dtype == "U8" for output in outputs.values())
    with write_aside(target, sum(output.nbytes for output in outputs.values()) + _OTHER_FILES) as folder:
        write_shards(list(outputs.values()), folder, shard_bytes)
        config = dict(model.config)
        if dequantized:
            config = {key: value for key, value in config.items() if key not in ("quantization_config", "torch_dtype")}
            config["dtype"] = "bfloat16"
        write_json(folder / "config.json", config)
        for name in COPIED:
            if (model.folder / name).is_file():
                shutil.copyfile(model.folder / name, folder / name)
        whole_model(folder)


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
        folder.rename(target)  # replaces an empty directory
    except BaseException:
        shutil.rmtree(folder)
        raise


def write_shards(outputs: list[TensorOutput], folder: Path, shard_bytes: int) -> None:
    """Write tensors in the given order to files of at most `shard_bytes` (or of one tensor), and the index."""
    shards: list[list[TensorOutput]] = [[]]
    filled = 0
    for output in outputs:
        if shards[-1] and filled + output.nbytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(output)
        filled += output.nbytes
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(shard, folder / file)
        weight_map.update({output.name: file for output in shard})
    total = sum(output.nbytes for output in outputs)
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})


def _write_shard(outputs: list[TensorOutput], path: Path) -> None:
    """Write one safetensors file; the format is in `grpo.model.model_files.read_header`."""
    # Wide types first, so that every tensor starts at a multiple of its item size.
    ordered = sorted(outputs, key=lambda output: -ITEM_BYTES[output.dtype])
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for output in ordered:
        span = [offset, offset + output.nbytes]
        header[output.name] = {"dtype": output.dtype, "shape": output.shape, "data_offsets": span}
        offset += output.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for output in ordered:
            start = file.tell()
            for piece in output.pieces():
                file.write(piece)
            if file.tell() - start != output.nbytes:
                raise UserError(f"{output.name} gave {file.tell() - start:,} bytes, not {output.nbytes:,}")
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write indented JSON with a final line feed."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
