"""Cores next to a GPU, on a recorded layout of a machine with two processors and four GPUs."""

import os

import pytest

from grpo.stack import machine
from grpo.stack.machine import Gpu

BUSES = ("19", "3B", "9B", "DB")


@pytest.fixture
def gpus(write_sysfs) -> list[Gpu]:
    write_sysfs({"19": 0, "3b": 0, "9b": 1, "db": 1}, {0: "0-47,96-143", 1: "48-95,144-191"})
    return [Gpu("H100", 80 * 2**30, 0, "9.0", index, bus=f"00000000:{bus}:00.0") for index, bus in enumerate(BUSES)]


@pytest.fixture
def rank(gpus: list[Gpu], monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """A rank of the GPU stack to which Ray gave GPU 2; the cores of each of its threads."""
    bound: dict[int, set[int]] = {}
    monkeypatch.setattr(machine, "all_gpus", lambda: gpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(192)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: bound.update({thread: cores}))
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    return bound


@pytest.mark.parametrize(
    ("visible", "local", "allowed", "said", "cores"),
    [
        ("2", "0", set(range(192)), "GPU 2: bound to 96 cores of NUMA node 1", {*range(48, 96), *range(144, 192)}),
        ("3,1", "1", set(range(192)), "GPU 1: bound to 96 cores of NUMA node 0", {*range(48), *range(96, 144)}),
        ("2", "0", {0, 1, 50}, "GPU 2: bound to 1 cores of NUMA node 1", {50}),  # a container's
        ("2", "0", {0, 1}, "may use no core of its NUMA node 1", None),
    ],
)
def test_a_rank_is_bound_with_all_its_threads(rank, monkeypatch, visible, local, allowed, said, cores) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    assert said in machine.bind_to_gpu()
    assert set(map(frozenset, rank.values())) == ({frozenset(cores)} if cores else set())
    assert (os.getpid() in rank) == bool(cores)


def test_nothing_is_bound_where_there_is_nothing_to_know(rank, write_sysfs, monkeypatch) -> None:
    assert machine.find_node(Gpu("GPU", 1, 0, "9.0", bus="00000000:FF:00.0")) is None, "hidden by a container"
    write_sysfs({"9b": -1}, {0: "0-191"})
    assert "NUMA node is unknown" in machine.bind_to_gpu() and not rank, "there is one node"
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert machine.bind_to_gpu() == "" and not rank
