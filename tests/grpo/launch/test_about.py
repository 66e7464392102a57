from types import SimpleNamespace

import pytest

from grpo.launch import about
from grpo.stack import machine
from grpo.stack.machine import Gpu

CONFIG = SimpleNamespace(
    gpus=8,
    engine_gpus=4,
    actor_ranks=4,
    args=SimpleNamespace(vllm_num_engines=2, vllm_tensor_parallel_size=2, colocate_all_models=False),
)


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch, write_sysfs) -> None:
    buses = ["19", "3b", "4c", "5d", "9b", "bb", "cb", "db"]
    write_sysfs({bus: number // 4 for number, bus in enumerate(buses)}, {0: "0-47", 1: "48-95"})
    gpus = [Gpu("H100", 1, 0, "9.0", number, bus=f"00000000:{bus.upper()}:00.0") for number, bus in enumerate(buses)]
    monkeypatch.setattr(machine, "all_gpus", lambda: gpus)
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_plan_says_which_gpus_serve_whom(eight_gpus, monkeypatch) -> None:
    assert about.describe_placement(CONFIG) == [
        "placement   engine 0: GPUs 0, 1 (NUMA node 0)",
        "            engine 1: GPUs 2, 3 (NUMA node 0)",
        "            actor: GPUs 4, 5, 6, 7 (NUMA node 1)",
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4,5,6,7,0,1,2")
    assert about.describe_placement(CONFIG)[0] == "placement   engine 0: GPUs 3, 4 (NUMA nodes 0, 1)"
    assert about.describe_placement(CONFIG)[2] == "            actor: GPUs 7, 0, 1, 2 (NUMA nodes 0, 1)"


def test_engines_and_actor_of_one_box_have_the_same_gpus(eight_gpus) -> None:
    args = SimpleNamespace(vllm_num_engines=2, vllm_tensor_parallel_size=1, colocate_all_models=True)
    shared = SimpleNamespace(gpus=2, engine_gpus=2, actor_ranks=2, args=args)
    assert [line.split(": ")[1] for line in about.describe_placement(shared)] == [
        f"GPU{which} (NUMA node 0)" for which in (" 0", " 1", "s 0, 1")
    ]


def test_without_nodes_gpus_alone_are_named(eight_gpus, write_sysfs) -> None:
    write_sysfs(dict.fromkeys(["19", "3b"], -1), {0: "0-47"})
    assert about.describe_placement(CONFIG)[0] == "placement   engine 0: GPUs 0, 1"


@pytest.mark.parametrize(
    ("name", "value"), [("CUDA_VISIBLE_DEVICES", "0,1"), ("RAY_ADDRESS", "host:1"), ("DS_ACCELERATOR", "cpu")]
)
def test_gpus_that_are_not_here_are_not_named(eight_gpus, monkeypatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert about.describe_placement(CONFIG) == []


@pytest.mark.parametrize(
    ("capabilities", "named"),
    [((), []), (("9.0", "10.0"), []), (("8.0", "9.0", "8.0"), ["8.0"]), (("12.0", "8.9"), ["12.0", "8.9"])],
)
def test_other_generations_are_named_once_each(monkeypatch, capabilities, named):
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu(f"GPU {kind}", 1, 0, kind) for kind in capabilities])
    lines = about.warn_of_gpus()
    assert len(lines) == len(named)
    for line, capability in zip(lines, named, strict=True):
        assert f"compute capability {capability}" in line and "slower" in line and "same results" in line


def test_no_gpu_is_named_on_the_cpu_stack(monkeypatch):
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu("GPU", 1, 0, "8.0")])
    assert about.warn_of_gpus() == []
