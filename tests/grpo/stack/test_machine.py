"""The system's output on GPUs, memory and disk is parsed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.stack import machine
from grpo.stack.machine import Gpu
from grpo.stack.problem import UserError

OUTPUT = """\
0, GPU-5a1e0c7d-2, NVIDIA H100 80GB HBM3, 81559, 4, 9.0, 00000000:19:00.0
1, GPU-5a9b3f10-8, NVIDIA H100 80GB HBM3, 81559, 20000, 9.0, 00000000:3B:00.0
2, GPU-c20d1188-4, NVIDIA H100 80GB HBM3, 81559, 4, 9.0, 00000000:9B:00.0
"""


def test_nvidia_smi_is_understood() -> None:
    first, second, third = machine.parse_gpus(OUTPUT)
    memory = 81559 * 2**20
    assert first == Gpu("NVIDIA H100 80GB HBM3", memory, 4 * 2**20, "9.0", 0, "GPU-5a1e0c7d-2", "00000000:19:00.0")
    present = [first, second, third]
    assert machine.select_visible(present, None) == present
    assert machine.select_visible(present, "") == []
    assert (
        machine.select_visible(present, "2, 0") == machine.select_visible(present, "GPU-c2,GPU-5a1") == [third, first]
    )


@pytest.fixture
def number_three_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], str | None]:
    """Return what CUDA_VISIBLE_DEVICES becomes on the GPU stack of a machine with three GPUs."""

    def number_devices(devices: str | None, order: str = "PCI_BUS_ID") -> str | None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if devices is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        machine.number_gpus()
        assert os.environ["CUDA_DEVICE_ORDER"] == order
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    monkeypatch.setattr(machine, "all_gpus", lambda: machine.parse_gpus(OUTPUT))
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "set and removed, so that it is restored")
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    return number_devices


def test_uuids_become_indices_in_the_users_order(number_three_gpus, monkeypatch) -> None:
    assert number_three_gpus("GPU-c20d1188-4,GPU-5a1e") == "2,0"
    assert number_three_gpus("GPU-5a9b, 2") == "1,2"
    for other in ("2,0", "", None):
        assert number_three_gpus(other) == other
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert number_three_gpus("1,0", "FASTEST_FIRST") == "1,0"  # the user's word
    assert number_three_gpus("GPU-c2") == "2"  # its index is in nvidia-smi's order


@pytest.mark.parametrize(
    ("devices", "what", "remedy"),
    [
        ("GPU-c2,MIG-7f-1", "MIG-7f-1, a part of a GPU", "nvidia-smi -mig 0"),
        ("0,3", "3, not one GPU", "nvidia-smi -L"),
        ("GPU-ffff", "GPU-ffff, not one GPU", "nvidia-smi -L"),
        ("GPU-5a", "GPU-5a, not one GPU", "nvidia-smi -L"),
        ("GPU-c2,2", "2, a GPU that is already", "once"),
    ],
)
def test_names_that_are_no_whole_gpu_are_refused(number_three_gpus, devices: str, what: str, remedy: str) -> None:
    with pytest.raises(UserError) as refused:
        number_three_gpus(devices)
    assert what in refused.value.problem.what and remedy in refused.value.problem.remedy


def test_names_of_gpus_do_not_matter_on_the_cpu_stack_or_in_a_joined_cluster(number_three_gpus, monkeypatch) -> None:
    for name, value in (("DS_ACCELERATOR", "cpu"), ("RAY_ADDRESS", "host:6379")):
        with monkeypatch.context() as other:
            other.setenv(name, value)
            other.setenv("CUDA_VISIBLE_DEVICES", "MIG-7f-1")
            machine.number_gpus()
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-7f-1"


def test_the_machine_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 0 < machine.memory_available() <= machine.memory_total()
    assert machine.disk_free(tmp_path / "not" / "there" / "yet") == pytest.approx(
        shutil.disk_usage(tmp_path).free, rel=0.1
    )


def test_the_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    program = "from grpo.stack import machine; machine.raise_open_files(); import resource as r; "
    program += "print(r.getrlimit(r.RLIMIT_NOFILE))"
    limited = ["sh", "-c", 'ulimit -Sn 100; ulimit -Hn 200; exec "$0" -c "$1"', sys.executable, program]
    assert subprocess.run(limited, capture_output=True, text=True, check=True).stdout == "(200, 200)\n"
