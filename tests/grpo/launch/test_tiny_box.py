"""The tiny run takes what the machine has: engines without GPUs load bf16, and fewer GPUs are a smaller box."""

import os

import pytest

from grpo.stack import machine
from grpo.stack.machine import Gpu
from tests import nvml

from .test_trainer_flags import SHAPE, resolve_flags


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
