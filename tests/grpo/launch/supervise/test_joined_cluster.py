"""Which clusters a run joins, and what it refuses. What the nodes answer is made up; tests/stack has real ones."""

import socket
import subprocess
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.launch.config import Config
from grpo.launch.supervise import joined_cluster
from grpo.launch.supervise.joined_cluster import Admission, Member
from grpo.stack import cluster

HERE = socket.gethostname()
FACTS = {"ray": "2.55.1", "/models/m": "d"}


def make_members(*free: int, gpus: int = 8, **changes: Any) -> list[Member]:
    """Nodes with so many free GPUs; the first is this one. Changes are those of the second."""
    members = [
        Member(HERE if i == 0 else f"n{i}", f"10.0.0.{i + 1}", gpus, count, i == 0, FACTS if len(free) > 1 else None)
        for i, count in enumerate(free)
    ]
    return [Member(**vars(one) | (changes if i == 1 else {})) for i, one in enumerate(members)]


@pytest.fixture
def look(setting, monkeypatch: pytest.MonkeyPatch):
    """A function from the nodes' answer to what the launcher says of a run with 2 engines of 2 GPUs and 4 ranks."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")

    def admit(members: list[Member] | None, is_open: bool = False, why: str = "", **flags: object) -> Admission:
        def ask(paths: list[str]) -> tuple[list[Member] | None, bool, str]:
            marks = {path: "seen" for path in paths if "/.grpo-" in path}
            assert marks and all(Path(mark).exists() for mark in marks)
            for member in members or []:
                if member.facts is not None and "blind" not in member.facts:
                    member.facts.update(marks)
                elif member.facts is not None:
                    member.facts.update(dict.fromkeys(marks))
            return members, is_open, why

        monkeypatch.setattr(joined_cluster, "_ask", ask)
        found = joined_cluster.look(setting.make_config(**flags), setting.run_dir)
        assert not list(setting.folder.glob(".grpo-*")), "a mark is left"
        return found

    return admit


def test_equal_nodes_with_a_token_are_joined(look) -> None:
    assert look(make_members(8)) == Admission()
    assert look(make_members(4, 4, gpus=4)) == Admission(places=["actor       on 10.0.0.1", "engines     on 10.0.0.2"])


def test_an_open_cluster_is_joined_with_a_warning_and_only_if_it_is_this_machine(look) -> None:
    found = look(make_members(8), is_open=True)
    assert not found.problems and "RAY_AUTH_MODE=token" in found.warnings[0]
    [problem] = look(make_members(8, 8), is_open=True).problems
    assert "2 nodes" in problem.what and "RAY_AUTH_MODE=token" in problem.remedy


@pytest.mark.parametrize(
    ("members", "flags", "what", "remedy"),
    [
        (make_members(7), {}, "8 GPUs", "--vllm_num_engines"),
        (make_members(3, 3, gpus=3), {}, "8 GPUs", "add a node"),
        (make_members(8, 7), {}, "10.0.0.2 has 7 of 8", "--num-gpus"),
        (make_members(8, 4, gpus=8) + make_members(8, 4, gpus=4)[1:], {}, "equally many", "--num-gpus"),
        (make_members(5, 5, gpus=5), {}, "--vllm_tensor_parallel_size 2", "divisor of 5"),
        (make_members(8, 8), {"colocate_all_models": True}, "--colocate_all_models", "--no-colocate_all_models"),
        (make_members(8, 8, facts=None, error="no module grpo"), {}, "node 10.0.0.2", "setup.sh"),
        (make_members(8, 8, facts={**FACTS, "ray": "2.48.0"}), {}, "ray is 2.48.0 on node 10.0.0.2", "setup.sh"),
        (make_members(8, 8, facts={**FACTS, "/models/m": None}), {}, "/models/m is missing", "copy it there"),
        (
            make_members(2, 8, gpus=2, facts={**FACTS, "blind": ""}) + make_members(2, 2, 2, gpus=2)[2:],
            {"vllm_num_engines": 1},
            "node 10.0.0.2 may have actor ranks, and does not see",
            "--ckpt_path",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_node_and_remedy(look, members, flags, what, remedy) -> None:
    problems = look(members, **flags).problems
    assert [one for one in problems if what in one.what and remedy in one.remedy], problems


def test_folders_need_not_be_shared_if_the_actor_fits_here(look) -> None:
    assert look(make_members(4, 4, gpus=4, facts={**FACTS, "blind": ""})).problems == []


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 24), st.integers(1, 9), st.integers(1, 40))
def test_what_is_admitted_has_a_place(count: int, gpus: int, engines: int, width: int, ranks: int) -> None:
    """No engine spans two nodes, no GPU is used twice, and ranks are on the fewest nodes, from the launcher's on."""
    values = {"vllm_num_engines": engines, "vllm_tensor_parallel_size": width, "actor_num_gpus_per_node": ranks}
    args = Namespace(**values, actor_num_nodes=1, colocate_all_models=False)
    config = Config(args, {}, [])
    if list(joined_cluster._check_gpus(config, make_members(*[gpus] * count, gpus=gpus))):
        assert count * gpus < engines * width + ranks or gpus % width
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "list_gpus", lambda: [str(i) for i in range(count) for _ in range(gpus)])
        of_engines, of_ranks = cluster.engine_bundles(engines, width), cluster.rank_bundles(ranks)
    assert (len(of_engines), len(of_ranks)) == (engines * width, ranks)
    if count == 1:
        return
    nodes = [next(key for key in bundle if key.startswith("node:")) for bundle in of_engines + of_ranks]
    assert max(Counter(nodes).values()) <= gpus
    assert all(len(set(nodes[i : i + width])) == 1 for i in range(0, engines * width, width))
    assert set(nodes[engines * width :]) == {f"node:{i}" for i in range(-(-ranks // gpus))}


def test_a_cluster_that_cannot_be_joined_is_named_with_the_reason(look, monkeypatch: pytest.MonkeyPatch) -> None:
    [problem] = look(make_members(8, 8, is_home=True)[1:]).problems
    assert "runs on other machines: n1" in problem.what and "start the run there" in problem.remedy
    [problem] = look(None, why="Version mismatch").problems
    assert "cannot be joined: Version mismatch" in problem.what and "RAY_AUTH_TOKEN" in problem.remedy


def test_without_a_cluster_to_join_ray_is_not_contacted(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(subprocess, "run", None)
    assert joined_cluster.look(setting.make_config(), setting.run_dir) == Admission()
