"""The parts of the host memory, against what PyTorch's pinned allocator is documented to take."""

import pytest

from grpo.launch import host_memory
from grpo.launch.plan import make_plan
from grpo.model.architecture import Architecture

GIB = 2**30


def make_architecture_120b() -> Architecture:
    return Architecture(36, 2880, 64, 8, 64, 128, 4, 2880, 201088, True, True)


@pytest.mark.parametrize(
    ("elements", "ranks", "expected"), [(2**29, 1, GIB), (2**29 + 1, 1, 2 * GIB), (2**31, 4, 4 * GIB)]
)
def test_blocks_are_powers_of_two(elements: int, ranks: int, expected: int) -> None:
    assert host_memory.pinned_bytes([2 * elements], ranks) == expected


def test_the_120b_fits_four_ranks_and_not_six() -> None:
    sizes = make_architecture_120b().actor_bytes(packed=False).values()
    exact = sum(sizes)
    assert exact == pytest.approx(233.7e9, rel=0.001)
    assert host_memory.pinned_bytes(sizes, 4) < 1.03 * exact
    assert host_memory.pinned_bytes(sizes, 6) > 1.4 * exact


def test_packed_experts_take_little_more_than_the_files() -> None:
    assert sum(make_architecture_120b().actor_bytes(packed=True).values()) == pytest.approx(65.2e9, rel=0.001)


def test_host_memory_excludes_parts_not_on_the_host(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    offloaded, resident = (make_plan(setting.make_config(offload=offload)) for offload in (True, None))
    assert "offloaded model, pinned" in offloaded.host_memory
    assert not any("model" in part or "cache" in part for part in resident.host_memory)
    asleep = make_plan(setting.make_config(vllm_enable_sleep=True, colocate_all_models=True))
    assert asleep.host_bytes - resident.host_bytes >= sum(asleep.architecture.actor_bytes(packed=True).values())
    sharing = {"colocate_all_models": True, "actor_shard": "engine", "offload": None}
    shared = make_plan(setting.make_config(vllm_enable_sleep=True, **sharing))
    assert shared.host_memory == resident.host_memory  # sleep leaves a base that the actor maps on the GPU
    for plan in (offloaded, resident, asleep):
        assert plan.host_bytes == sum(plan.host_memory.values())
