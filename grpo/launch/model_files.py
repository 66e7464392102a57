"""What the files of a checkpoint say about a model, read from its config and the headers of its shards."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_HEADER = 100_000_000


class ModelError(ValueError):
    """A checkpoint that cannot be loaded; the message names the file."""


@dataclass(frozen=True)
class Model:
    """A checkpoint folder.

    Attributes:
        config: the contents of config.json.
        shapes: the shape of every stored tensor.
    """

    folder: Path
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    @property
    def is_mxfp4(self) -> bool:
        """Tell whether the experts are stored in MXFP4."""
        return (self.config.get("quantization_config") or {}).get("quant_method") == "mxfp4"

    @property
    def bf16_bytes(self) -> int:
        """Return the size of the model in bf16; a byte of MXFP4 blocks holds two values."""
        values = 0
        for name, shape in self.shapes.items():
            if name.endswith("_blocks"):
                values += 2 * math.prod(shape)
            elif not name.endswith("_scales"):
                values += math.prod(shape)
        return 2 * values

    @property
    def file_bytes(self) -> int:
        """Return the size of the shards on disk."""
        return sum(shard.stat().st_size for shard in shards(self.folder))

    def lora_parameters(self, rank: int, targets: list[str]) -> int:
        """Return the parameters of LoRA on the linear layers whose names end in one of `targets`."""
        count = 0
        for name, shape in self.shapes.items():
            if len(shape) == 2 and name.endswith(".weight") and name.split(".")[-2] in targets:
                count += rank * sum(shape)
        return count


def read(folder: Path) -> Model:
    """Read config.json and the header of every shard.

    Raises:
        ModelError: where a file is missing, cut off, or is no safetensors file.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder} is not on this machine")
    config = _read_json(folder / "config.json")
    shapes: dict[str, tuple[int, ...]] = {}
    for shard in shards(folder):
        shapes |= read_header(shard)
    if (folder / INDEX).is_file():
        missing = sorted(set(_read_json(folder / INDEX)["weight_map"]) - set(shapes))
        if missing:
            raise ModelError(f"{INDEX} names {len(missing)} tensors that no shard holds, {missing[0]} for one")
    return Model(folder, config, shapes)


def shards(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint.

    Raises:
        ModelError: where there are none.
    """
    if (folder / INDEX).is_file():
        return [folder / name for name in sorted(set(_read_json(folder / INDEX)["weight_map"].values()))]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    raise ModelError(f"{folder} has neither {INDEX} nor {SINGLE}")


def read_header(shard: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a safetensors file declares, and check that the file is as long as it says.

    The format: 8 bytes little-endian header length, JSON header, data (https://github.com/huggingface/safetensors).

    Raises:
        ModelError: where the file is missing, too short, too long, or something else.
    """
    try:
        size = shard.stat().st_size
        with shard.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length < _MAX_HEADER else b""
    except FileNotFoundError:
        raise ModelError(f"{shard.name} is missing") from None
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        expected = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ModelError(f"{shard.name} ({size:,} bytes) is no safetensors file: a cut or a pointer file?") from None
    if size != expected:
        raise ModelError(f"{shard.name} has {size:,} bytes, its header says {expected:,}: a broken download")
    return {name: tuple(entry["shape"]) for name, entry in header.items()}


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{file.name} is missing") from None
    except ValueError as error:
        raise ModelError(f"{file.name} is no JSON: {error}") from None
