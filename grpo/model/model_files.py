"""Reads a checkpoint's config and the headers of its shards, and nothing else. Works without torch.

For a 61 GB model this reads a few hundred kilobytes.
"""

import json
import math
from collections.abc import KeysView
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grpo.stack.hub import absence
from grpo.stack.json_files import open_file
from grpo.stack.json_files import read_json as load_json
from grpo.stack.problem import UserError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ITEM_BYTES = {"U8": 1, "BF16": 2, "F16": 2, "F32": 4}
# With these a model's configuration makes transformers or vLLM run foreign code, even if that is switched off: the
# implementation of attention may be a repository on the hub (CVE-2026-4372).
_NAMES_OF_CODE = {"auto_map", "trust_remote_code", "_attn_implementation_internal", "attn_implementation"}
_NAMES_OF_CODE |= {"_attn_implementation", "custom_pipelines"}
_MAX_HEADER = 10_000_000  # bytes; gpt-oss-120b's shards have 40,000 at most, and 10 MB are parsed in a second
_AGAIN = "download or copy this file again"


class CheckpointError(UserError):
    """A checkpoint that cannot be read or used."""


class HeaderError(ValueError):
    """What is wrong with a safetensors file, without its name: "is missing"."""


@dataclass(frozen=True)
class FileFault:
    """One fault in a checkpoint.

    Attributes:
        file: the file's name in the checkpoint folder.
        tensors: the names of all affected tensors; `what` names the first.
    """

    file: str
    what: str
    remedy: str
    tensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file} {self.what}: {self.remedy}"


@dataclass(frozen=True)
class Tensor:
    """The location of a tensor: bytes `start` to `stop` of `file`. `dtype` is safetensors' name (BF16, U8)."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Header(NamedTuple):
    """What the header of a safetensors file declares; `end` is the file's length in bytes that this requires."""

    tensors: dict[str, Tensor]
    end: int
    metadata: dict[str, str]


@dataclass(frozen=True)
class Model:
    """A checkpoint folder.

    Attributes:
        config: the contents of config.json.
        tensors: every tensor whose header could be read.
        shards: the safetensors files that belong to it, whether they exist or not.
        faults: contradictions within or between files; `grpo.model.architecture.check` adds those with the config.
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    shards: tuple[Path, ...] = ()
    faults: tuple[FileFault, ...] = ()

    @property
    def is_mxfp4(self) -> bool:
        """Return whether the experts are stored in MXFP4."""
        return (self.config.get("quantization_config") or {}).get("quant_method") == "mxfp4"

    @property
    def parameters(self) -> int:
        """Return the number of weights. A byte of MXFP4 blocks holds two."""
        count = 0
        for name, tensor in self.tensors.items():
            if name.endswith("_blocks"):
                count += 2 * math.prod(tensor.shape)
            elif not name.endswith("_scales"):
                count += math.prod(tensor.shape)
        return count

    @property
    def bf16_bytes(self) -> int:
        """Return the size of the model in bf16."""
        return 2 * self.parameters

    @property
    def file_bytes(self) -> int:
        """Return the size of the shards on disk."""
        return sum(shard.stat().st_size for shard in self.shards if shard.is_file())


def read(folder: Path) -> Model:
    """Read config.json, the index and the header of every shard. Their defects go into `faults`.

    Raises:
        CheckpointError: if the folder is missing, or config.json is missing or unreadable.
    """
    if not folder.is_dir():
        what, remedy = absence(str(folder))
        raise CheckpointError(f"{folder} {what}", remedy)
    config = read_json(folder / "config.json")
    faults = code_faults(folder)
    tensors: dict[str, Tensor] = {}
    promised = _list_assigned(folder, faults)
    for shard, named in promised.items():
        try:
            held, end, _ = read_header(folder / shard)
        except HeaderError as error:
            faults.append(FileFault(shard, str(error), _AGAIN, tuple(sorted(named or ()))))
            continue
        size = (folder / shard).stat().st_size
        if size != end:
            what = f"has {size:,} bytes, its header says {end:,}, a broken download or a full disk"
            faults.append(FileFault(shard, what, _AGAIN))
        tensors |= held if named is None else {name: held[name] for name in held.keys() & named}
        if named is not None:
            faults += _disagreements(shard, held.keys(), named)
    return Model(folder, config, tensors, tuple(folder / shard for shard in promised), tuple(faults))


def code_faults(folder: Path) -> list[FileFault]:
    """Return the settings that would make a program run foreign code. Raises CheckpointError as :func:`read_json`."""
    return [
        FileFault(file.name, f"names code that would run ({name})", f"remove {name}: gpt-oss needs no code of its own")
        for file in sorted(folder.glob("*config.json"))
        for name in sorted(_keys(read_json(file)) & _NAMES_OF_CODE)
    ]


def _keys(content: Any) -> set[str]:
    """Return the names in a JSON value, at all depths."""
    found: set[str] = set()
    rest = [content]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            found |= value.keys()
        rest += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return found


def read_whole(folder: Path) -> Model:
    """Read a checkpoint whose files have no fault.

    Raises:
        CheckpointError: as `read`, and for the first fault.
    """
    model = read(folder)
    if model.faults:
        fault = model.faults[0]
        raise CheckpointError(f"{fault.file} {fault.what}", fault.remedy)
    return model


def _list_assigned(folder: Path, faults: list[FileFault]) -> dict[str, set[str] | None]:
    """Return the tensors that the index assigns to each shard, by shard name; None means whatever the file holds."""
    index, single = folder / INDEX, folder / SINGLE
    if not index.exists():
        if not single.exists():
            faults.append(FileFault(INDEX, f"is missing, and so is {SINGLE}", "download the checkpoint again"))
            return {}
        return {SINGLE: None}
    shards: dict[str, set[str]] = {}
    try:
        for name, shard in read_json(index)["weight_map"].items():
            if not isinstance(shard, str) or "/" in shard or "\0" in shard:  # files of this folder alone
                raise TypeError
            shards.setdefault(shard, set()).add(name)
    except (CheckpointError, KeyError, AttributeError, TypeError):
        shards = {}
    if not shards:
        faults.append(FileFault(INDEX, "is not an index of safetensors files in this folder", _AGAIN))
    if shards and single.exists() and SINGLE not in shards:
        what = f"lies beside {INDEX}, which does not name it. Programs differ in which of the two they load"
        faults.append(FileFault(SINGLE, what, "remove the one that is not the model"))
    return dict(sorted(shards.items()))


def _disagreements(shard: str, held: KeysView[str], named: set[str]) -> list[FileFault]:
    """Compare the names in a shard with those that the index assigns to it."""
    faults = []
    lacking, unnamed = tuple(sorted(named - held)), tuple(sorted(held - named))
    if lacking:
        what = f"lacks {len(lacking)} of the {len(named)} tensors that {INDEX} assigns to it, for example {lacking[0]}"
        faults.append(FileFault(shard, what, f"download or copy this file and {INDEX} again", lacking))
    if unnamed:
        what = f"does not name {len(unnamed)} of the {len(held)} tensors in {shard}, for example {unnamed[0]}"
        faults.append(FileFault(INDEX, what, f"download or copy this file and {shard} again", unnamed))
    return faults


def read_header(file: Path) -> Header:
    """Return what a safetensors file declares.

    The format: 8 bytes little-endian header length, JSON header, data (https://github.com/huggingface/safetensors).

    Raises:
        HeaderError: if the file is missing or has no such header.
    """
    try:
        with open_file(file) as opened:
            length = int.from_bytes(opened.read(8), "little")
            text = opened.read(length) if length < _MAX_HEADER else b""
    except FileNotFoundError:
        raise HeaderError("is missing") from None
    except OSError as error:
        raise HeaderError(f"cannot be read ({error.strerror})") from None
    try:
        header = json.loads(text)
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise TypeError("the metadata is no object of texts")
        tensors = {name: _tensor(file, 8 + length, entry) for name, entry in header.items()}
        _refuse_overlaps(tensors, 8 + length)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        size = file.stat().st_size
        raise HeaderError(
            f"({size:,} bytes) is not a safetensors file; it may be truncated or a Git LFS pointer"
        ) from None
    end = max((tensor.stop for tensor in tensors.values()), default=8 + length)
    return Header(tensors, end, metadata)


def _refuse_overlaps(tensors: dict[str, Tensor], begin: int) -> None:
    """Raise ValueError unless the tensors lie one after the other, as the format demands."""
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.stop)):
        if tensor.start != begin or min(tensor.shape, default=0) < 0:
            raise ValueError("the tensors overlap, or leave holes")
        begin = tensor.stop


def _tensor(file: Path, base: int, entry: dict[str, Any]) -> Tensor:
    start, stop = entry["data_offsets"]
    if {type(number) for number in (start, stop, *entry["shape"])} != {int} or not isinstance(entry["dtype"], str):
        raise TypeError("an offset or a size is no whole number, or the type no text")
    tensor = Tensor(file, entry["dtype"], tuple(entry["shape"]), base + start, base + stop)
    size = ITEM_BYTES.get(tensor.dtype)
    if size is not None and stop - start != size * math.prod(tensor.shape):
        raise ValueError("the offsets of a tensor do not match its shape")
    return tensor


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        CheckpointError: if the file is missing or does not hold a JSON object.
    """
    try:
        content = load_json(file)
    except FileNotFoundError:
        raise CheckpointError(f"{file.name} is missing in {file.parent}", _AGAIN) from None
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be read ({error.strerror})", "make it readable, or copy it again"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON ({error})", _AGAIN) from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} does not hold a JSON object", _AGAIN)
    return content
