"""SHA256SUMS of a checkpoint: every difference between the files and the list is found, and named."""

import os
import subprocess
from pathlib import Path

import torch
from safetensors.torch import save_file

from grpo.checkpoint import digests
from grpo.checkpoint.digests import NAME, damage, step_damage

FILES = {"adapter_config.json": b"{}", "a name with blanks": bytes(range(256)), "empty": b""}


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    digests.write(folder)
    return folder


def flip(file: Path, offset: int) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= 1
    file.write_bytes(content)


def list_damaged(folder: Path) -> list[str]:
    return list(damage(folder))


def test_the_standard_tool_reads_the_list(tmp_path: Path) -> None:
    folder = make(tmp_path / "adapter")
    command = ["sha256sum", "--check", "--strict", NAME]
    assert subprocess.run(command, cwd=folder, capture_output=True).returncode == 0
    flip(folder / "a name with blanks", 77)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and "a name with blanks: FAILED" in done.stdout


def test_every_byte_of_every_file_counts(tmp_path: Path) -> None:
    folder = make(tmp_path / "adapter")
    for name in (*FILES, NAME):
        whole = (folder / name).read_bytes()
        for offset in range(len(whole)):
            flip(folder / name, offset)
            assert list_damaged(folder) == [name], offset
            (folder / name).write_bytes(whole[:offset])  # cut there
            assert list_damaged(folder) == [name], offset
            (folder / name).write_bytes(whole)
        (folder / name).write_bytes(whole + b"\0")
        assert list_damaged(folder) == [name]
        (folder / name).write_bytes(whole)
    assert damage(folder) == {}


def test_a_missing_file_is_damage_and_one_more_is_not(tmp_path: Path) -> None:
    folder = make(tmp_path / "adapter")
    (folder / "more.bin").write_bytes(b"1")
    (folder / "deeper").mkdir()
    assert damage(folder) == {}
    (folder / "empty").unlink()
    assert damage(folder) == {"empty": "is missing, but SHA256SUMS lists it"}


def test_weights_of_another_size_are_not_hashed(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file({"a": torch.zeros(4)}, folder / "a.safetensors")
    digests.write(folder)
    assert damage(folder) == {}
    os.truncate(folder / "a.safetensors", 1 << 40)
    assert list_damaged(folder) == ["a.safetensors"]


def test_without_a_digest_list_nothing_is_verified(tmp_path: Path) -> None:
    folder = make(tmp_path / "adapter")
    (folder / NAME).unlink()
    flip(folder / "adapter_config.json", 0)
    assert damage(folder) == {} and not digests.is_sealed(folder)
    assert str(folder) in digests.describe_unverified(folder)


def test_digest_list_missing_from_one_part_is_reported(tmp_path: Path) -> None:
    for part in digests.PARTS:
        make(tmp_path / "step_2" / part)
    assert step_damage(tmp_path / "step_2") == {}
    (tmp_path / "step_2" / "adapter" / NAME).unlink()
    assert step_damage(tmp_path / "step_2") == {f"adapter/{NAME}": "is missing"}
