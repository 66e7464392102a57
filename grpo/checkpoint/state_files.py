"""Files of the trainer's state: safetensors, whose tensor "json" holds all other values as JSON text.

Reading them runs nothing that a file holds.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from grpo.stack.json_files import open_file

# JSON has no tensors, no tuples, and only texts as keys.
_TENSOR, _TUPLE, _PAIRS = "$tensor", "$tuple", "$pairs"
_JSON = "json"


class StateFileError(ValueError):
    """What is wrong with a file, without its name: "is truncated"."""


def write(file: Path, value: Any) -> None:
    """Write dicts, lists, tuples, texts, numbers and tensors. Contiguous tensors on the CPU are not copied.

    Raises:
        OSError, SafetensorError: if the file cannot be written.
        TypeError: for a value of another type.
    """
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_encode(value, tensors)).encode()
    save_file(tensors | {_JSON: torch.frombuffer(bytearray(text), dtype=torch.uint8)}, file)


def read(file: Path) -> Any:
    """Return what :func:`write` got. Tensors stay on disk until they are used.

    Raises:
        OSError, StateFileError: if the file is missing, truncated or of another kind.
    """
    open_file(file).close()  # the reader below waits for a named pipe
    try:
        tensors = load_file(file)
        return _decode(json.loads(tensors.pop(_JSON).numpy().tobytes()), tensors)
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise StateFileError("it is truncated or not a checkpoint") from error


def _encode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value as JSON has it, and put its tensors into `tensors`."""
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        storages = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
        one = value.detach().contiguous()
        # A file holds no two views of the same memory.
        tensors[name] = one.clone() if one.untyped_storage().data_ptr() in storages else one
        return {_TENSOR: name}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(item, tensors) for key, item in value.items()}
        return {_PAIRS: [[_encode(key, tensors), _encode(item, tensors)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {_TUPLE: [_encode(item, tensors) for item in value]}
    return [_encode(item, tensors) for item in value] if isinstance(value, list) else value


def _decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _TUPLE in value:
        return tuple(_decode(item, tensors) for item in value[_TUPLE])
    if _PAIRS in value:
        return {_decode(key, tensors): _decode(item, tensors) for key, item in value[_PAIRS]}
    return {key: _decode(item, tensors) for key, item in value.items()}
