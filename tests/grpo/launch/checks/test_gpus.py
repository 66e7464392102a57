"""Which GPUs serve whom, and which are slower."""

import pytest

from grpo.launch.checks import gpus
from grpo.stack import machine
from grpo.stack.machine import Gpu


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch, write_sysfs) -> None:
    buses = ["19", "3b", "4c", "5d", "9b", "bb", "cb", "db"]
    write_sysfs({bus: number // 4 for number, bus in enumerate(buses)}, {0: "0-47", 1: "48-95"})
    present = [Gpu("H100", 1, 0, "9.0", number, bus=f"00000000:{bus.upper()}:00.0") for number, bus in enumerate(buses)]
    monkeypatch.setattr(machine, "all_gpus", lambda: present)
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_plan_says_which_gpus_serve_whom(setting, eight_gpus, monkeypatch, write_sysfs) -> None:
    config = setting.make_config()
    assert gpus.describe_placement(config) == [
        "placement   engine 0: GPUs 0, 1 (NUMA node 0)",
        "            engine 1: GPUs 2, 3 (NUMA node 0)",
        "            actor: GPUs 4, 5, 6, 7 (NUMA node 1)",
    ]
    shape = {"vllm_num_engines": 2, "vllm_tensor_parallel_size": 1, "actor_num_gpus_per_node": 2}
    shared = gpus.describe_placement(setting.make_config(colocate_all_models=True, **shape))
    assert [line.split(": ")[1].partition(" (")[0] for line in shared] == ["GPU 0", "GPU 1", "GPUs 0, 1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4,5,6,7,0,1,2")
    first, _, actor = gpus.describe_placement(config)
    assert "GPUs 3, 4 (NUMA nodes 0, 1)" in first and "GPUs 7, 0, 1, 2 (NUMA nodes 0, 1)" in actor
    write_sysfs(dict.fromkeys(["5d", "9b"], -1), {0: "0-47"})
    assert gpus.describe_placement(config)[0] == "placement   engine 0: GPUs 3, 4", "without nodes"


@pytest.mark.parametrize(
    ("name", "value"), [("CUDA_VISIBLE_DEVICES", "0,1"), ("RAY_ADDRESS", "host:1"), ("DS_ACCELERATOR", "cpu")]
)
def test_gpus_that_are_not_here_are_not_named(setting, eight_gpus, monkeypatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert gpus.describe_placement(setting.make_config()) == []


@pytest.mark.parametrize(
    ("capabilities", "named"),
    [((), []), (("9.0", "10.0"), []), (("8.0", "9.0", "8.0"), ["8.0"]), (("12.0", "8.9"), ["12.0", "8.9"])],
)
def test_other_generations_are_named_once_each_on_the_gpu_stack(monkeypatch, capabilities, named) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu(f"GPU {kind}", 1, 0, kind) for kind in capabilities])
    assert gpus.warn_of_gpus() == []
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    lines = gpus.warn_of_gpus()
    assert len(lines) == len(named) and all(kind in line for line, kind in zip(lines, named, strict=True))
