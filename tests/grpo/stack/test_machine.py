"""The system's output on GPUs, memory and disk is parsed."""

import shutil
from pathlib import Path

import pytest

from grpo.stack import machine
from grpo.stack.machine import Gpu


def test_nvidia_smi_is_understood() -> None:
    output = "0, GPU-aa, NVIDIA H100 80GB HBM3, 81559, 4, 9.0\n1, GPU-bb, NVIDIA H100 80GB HBM3, 81559, 20000, 9.0\n"
    rows = machine.parse_gpus(output)
    assert machine.visible(rows, None) == [
        Gpu("NVIDIA H100 80GB HBM3", 81559 * 2**20, 4 * 2**20, "9.0"),
        Gpu("NVIDIA H100 80GB HBM3", 81559 * 2**20, 20000 * 2**20, "9.0"),
    ]
    assert len(machine.visible(rows, "1")) == len(machine.visible(rows, "GPU-bb")) == 1
    assert machine.visible(rows, "") == []


def test_the_machine_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 0 < machine.memory_available() <= machine.memory_total()
    assert machine.disk_free(tmp_path / "not" / "there" / "yet") == pytest.approx(
        shutil.disk_usage(tmp_path).free, rel=0.1
    )
