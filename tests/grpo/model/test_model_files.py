"""Malformed files of a model: each is a fault with a remedy, never a traceback, an endless wait or a file elsewhere."""

import json
import os
from pathlib import Path

import pytest

from grpo.model import model_files
from grpo.model.model_files import INDEX, CheckpointError, HeaderError

NESTED = "[" * 200_000


def write(file: Path, header: object, data: int = 16) -> Path:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    return file


def make_tensor_header(*offsets: int, shape: tuple[int, ...] = (4,)) -> dict:
    return {"dtype": "BF16", "shape": shape, "data_offsets": offsets}


def test_tensors_one_after_the_other_are_read(tmp_path: Path) -> None:
    header = {"b": make_tensor_header(8, 16), "a": make_tensor_header(0, 8), "__metadata__": {"c": "d"}}
    tensors, end, metadata = model_files.read_header(write(tmp_path / "a", header))
    assert metadata == {"c": "d"} and tensors.keys() == {"a", "b"} and end == (tmp_path / "a").stat().st_size


@pytest.mark.parametrize(
    "header",
    [
        NESTED,
        {"a": make_tensor_header(0, 8), "b": make_tensor_header(4, 12)},
        {"a": make_tensor_header(0, 8), "b": make_tensor_header(0, 8)},
        {"a": make_tensor_header(-8, 0)},
        {"a": make_tensor_header(8, 16)},
        {"a": make_tensor_header(0, 8, shape=(-2, -2))},
        {"a": make_tensor_header(0, 8, shape=(4.0,))},
        {"a": make_tensor_header(False, 8)},
        {"a": make_tensor_header(0, 8) | {"dtype": None}},
        {"a": make_tensor_header(0, 8), "__metadata__": None},
        {"a": make_tensor_header(0, 8), "__metadata__": {"base_sha256": 5}},
        {
            f"model.layers.{number}.self_attn.q_proj.weight": make_tensor_header(0, 0, shape=(0,))
            for number in range(120_000)
        },
    ],
    ids=lambda header: str(header)[:60],
)
def test_a_header_that_the_format_forbids_is_refused(tmp_path: Path, header: object) -> None:
    with pytest.raises(HeaderError):
        model_files.read_header(write(tmp_path / "a", header))


SHARDS = ("../other.safetensors", "/etc/passwd", "a\0b", 3)
MAPS = ({}, ["a"], *({"a": shard} for shard in SHARDS))


@pytest.mark.parametrize("content", ["[]", "{}", "not JSON", *(json.dumps({"weight_map": each}) for each in MAPS)])
def test_an_index_names_files_of_its_folder(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / INDEX).write_text(content)
    model = model_files.read(tmp_path)
    assert model.shards == () and "is not an index" in next(str(each) for each in model.faults if INDEX in str(each))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe"):
        model_files.read_json(tmp_path / "pipe")
    with pytest.raises(HeaderError):
        model_files.read_header(tmp_path / "pipe")


def test_json_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(NESTED)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        model_files.read(tmp_path)
