"""GPUs as NVIDIA's library states them, memory, and disk."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from grpo.stack import machine
from grpo.stack.machine import Gpu
from grpo.stack.problem import UserError
from tests import nvml

GPUS = [
    Gpu("H100", 80 * 2**30, 0, "9.0", number, uuid)
    for number, uuid in enumerate(("GPU-5a1e0c7d-2", "GPU-5a9b3f10-8", "GPU-c20d1188-4"))
]
ASK = "from grpo.stack import machine; print([machine.all_gpus(), machine.find_gpu_fault(), machine.find_driver()])"


def ask(variables: dict[str, str]) -> tuple[list[Gpu], str, str | None]:
    """Ask a new process, since the library is loaded once."""
    done = subprocess.run([sys.executable, "-c", ASK], env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    gpus, fault, driver = eval(done.stdout)  # of our own output
    return gpus, fault, driver


def test_gpus_are_those_that_nvml_lists(tmp_path) -> None:
    gpus, fault, driver = ask(nvml.make_variables(tmp_path, 2, "8.9"))
    assert (gpus[1], fault, driver) == (
        Gpu("NVIDIA Test 8.9", 81559 * 2**20, 4 * 2**20, "8.9", 1, "GPU-1", "00000000:12:00.0"), "", "570.86.15",
    )  # fmt: skip
    assert [gpu.index for gpu in gpus] == [0, 1]


@pytest.mark.parametrize(
    ("count", "fault", "left", "reason"),
    [
        (0, "", 0, "No GPU"),
        (2, "init 18", 0, "RM has detected an NVML/RM version mismatch."),
        (2, "memory 3", 0, "GPU 0: Not Supported; GPU 1: Not Supported"),
        (2, "capability 3 1", 1, "GPU 1: Not Supported"),
        (2, "handle 999 0", 1, "GPU 0: Unknown Error"),
    ],
)
def test_a_gpu_that_does_not_answer_is_left_out_with_the_drivers_reason(tmp_path, count, fault, left, reason) -> None:
    gpus, why, driver = ask(nvml.make_variables(tmp_path, count, fault=fault))
    assert (len(gpus), why, driver is None) == (left, reason, fault == "init 18")


def test_without_a_driver_there_is_no_gpu(tmp_path) -> None:
    assert ask({"LD_LIBRARY_PATH": str(tmp_path)}) == ([], "NVML Shared Library Not Found", None)


def test_visible_devices_select_gpus() -> None:
    first, _, third = present = GPUS
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

    monkeypatch.setattr(machine, "all_gpus", lambda: GPUS)
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


@pytest.mark.parametrize(
    ("line", "folder", "version"),
    [
        ("0::/", "", 2),
        ("0::/slurm/job_7/step_0", "slurm/job_7", 2),  # a group above its own has the limit
        ("0::/docker/abc", "", 2),  # the host's name of it
        ("4:memory:/kubepods/pod1", "memory/kubepods", 1),
        ("9:cpuset,memory:/docker/abc", "memory", 1),
    ],
)
def test_the_limit_of_a_control_group_counts_wherever_it_is(tmp_path, monkeypatch, line, folder, version) -> None:
    (tmp_path / "own").write_text(f"12:pids:/elsewhere\n{line}\n")
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    unlimited = machine.memory_total()
    *names, cache = {1: machine._GROUP_V1, 2: machine._GROUP_V2}[version]
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for name, value in zip((*names, "memory.stat"), ("5000000", "3000000", f"{cache} 1000000"), strict=True):
        (tmp_path / folder / name).write_text(f"{value}\n")
    assert (machine.memory_total(), machine.memory_available()) == (5_000_000, 3_000_000) and unlimited > 10**8


def test_the_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    program = "from grpo.stack import machine; machine.raise_open_files(); import resource as r; "
    program += "print(r.getrlimit(r.RLIMIT_NOFILE))"
    limited = ["sh", "-c", 'ulimit -Sn 100; ulimit -Hn 200; exec "$0" -c "$1"', sys.executable, program]
    assert subprocess.run(limited, capture_output=True, text=True, check=True).stdout == "(200, 200)\n"
