"""Places on equal nodes: what must hold of all of them, and what is refused."""

from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.launch import equal_nodes, placement
from grpo.launch.equal_nodes import place
from grpo.stack import machine
from grpo.stack.machine import Gpu

# nodes, GPUs of a node, engines, GPUs of an engine, ranks
SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 24), st.integers(1, 9), st.integers(1, 40))
SMALL = st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(1, 10), st.integers(1, 8), st.integers(1, 24))


@settings(max_examples=600, deadline=None)
@given(SHAPES)
def test_everybody_has_a_place_no_gpu_is_used_twice_and_ranks_are_on_the_fewest_nodes(shape) -> None:
    """An engine has one address, so it is never split; a node never gives more GPUs than it has."""
    count, gpus, engines, width, ranks = shape
    places = place(*shape)
    if places is None:
        return
    assert (len(places.engines), len(places.ranks)) == (engines, ranks)
    used = Counter(places.ranks)
    for node in places.engines:
        used[node] += width
    assert set(used) <= {str(number) for number in range(1, count + 1)} and max(used.values()) <= gpus
    assert len(set(places.ranks)) == -(-ranks // gpus)
    assert places.ranks[0] == "1" and list(places.ranks) == sorted(places.ranks)


@settings(max_examples=400, deadline=None)
@given(SMALL)
def test_nothing_that_fits_so_is_refused(shape) -> None:
    """Every number of engines on every node is tried; some one has to leave the fewest nodes to the ranks."""
    count, gpus, engines, width, ranks = shape
    fewest = -(-ranks // gpus)
    fits = any(
        sum(sorted((gpus - here * width for here in numbers), reverse=True)[:fewest]) >= ranks
        for numbers in product(range(gpus // width + 1), repeat=count)
        if sum(numbers) == engines
    )
    assert (place(*shape) is not None) == fits


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 16))
def test_one_node_is_filled_as_it_is_without_any_word_of_nodes(engines: int, width: int, ranks: int) -> None:
    """The GPUs are those that the plan of one machine names."""
    total = engines * width + ranks
    config: Any = SimpleNamespace(
        gpus=total,
        engine_gpus=engines * width,
        actor_ranks=ranks,
        args=SimpleNamespace(vllm_num_engines=engines, vllm_tensor_parallel_size=width, colocate_all_models=False),
    )
    places = place(1, total, engines, width, ranks)
    assert places is not None and set(places.engines) | set(places.ranks) == {"1"}
    with pytest.MonkeyPatch.context() as patch:
        gpus = [Gpu("H100", 1, 0, "9.0", number, bus="") for number in range(total)]
        patch.setattr(machine, "known_gpus", lambda: gpus)
        patch.setattr(placement.numa, "find_node", lambda gpu: None)
        *of_engines, of_actor = placement.describe(config)
    last = of_engines[-1].rpartition(" ")[2]
    assert last == str(engines * width - 1)
    numbers = [int(number) for number in of_actor.partition("GPU")[2].lstrip("s").split(", ")]
    assert numbers == list(range(engines * width, total))


@settings(max_examples=200, deadline=None)
@given(SHAPES)
def test_remedies_are_the_least_change_that_fits(shape) -> None:
    count, gpus, engines, width, ranks = shape
    if width > gpus:
        return
    enough = equal_nodes.fewest_nodes(gpus, engines, width, ranks)
    assert place(enough, gpus, engines, width, ranks)
    assert not place(enough - 1, gpus, engines, width, ranks)
    most = equal_nodes.most_engines(count, gpus, width, ranks)
    assert most == 0 or place(count, gpus, most, width, ranks)
    assert not place(count, gpus, most + 1, width, ranks)


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"nodes": 2}, "how many GPUs each has is unknown", "set GPUS_PER_NODE"),
        ({"nodes": 2, "gpus_per_node": 8, "colocate_all_models": True}, "share GPUs", "NODES=1"),
        (
            {"nodes": 4, "gpus_per_node": 8, "vllm_tensor_parallel_size": 16},
            "an engine has ENGINE_TP 16 GPUs, but a node has 8",
            "lower ENGINE_TP to 8 or less, or use nodes with 16 GPUs",
        ),
        (
            {"nodes": 2, "gpus_per_node": 8, "vllm_num_engines": 8},
            "8 engines of 2 GPUs and 4 actor GPUs do not fit on 2 nodes of 8",
            "set NODES=3, or lower NUM_ENGINES to 6",
        ),
        (
            {"nodes": 2, "gpus_per_node": 5, "vllm_num_engines": 3, "vllm_tensor_parallel_size": 3,
             "actor_num_gpus_per_node": 1},
            "3 engines of 3 GPUs and 1 actor GPU do not fit on 2 nodes of 5, since an engine does not span nodes",
            "set NODES=3, or lower NUM_ENGINES to 2",
        ),
        ({"gpus_per_node": 4}, "do not fit on 1 node of 4", "set NODES=2, or lower ACTOR_GPUS"),
    ],
)  # fmt: skip
def test_what_cannot_be_placed_is_refused(setting, monkeypatch, ample_machine, changes, what, remedy) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    found = [problem for problem in setting.find_problems(**changes) if what in problem]
    assert len(found) == 1 and remedy in found[0]


@pytest.mark.parametrize("changes", [{}, {"gpus_per_node": 8}, {"nodes": 2, "gpus_per_node": 4}])
def test_what_can_be_placed_is_not_refused(setting, changes) -> None:
    assert list(equal_nodes.problems(setting.make_config(**changes))) == []


def test_several_nodes_need_a_cluster(setting, monkeypatch, ample_machine) -> None:
    several = {"nodes": 2, "gpus_per_node": 4}
    assert [line for line in setting.find_problems(**several) if "NODES is 2, but no RAY_ADDRESS" in line]
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert not [line for line in setting.find_problems(**several) if "NODES" in line]
