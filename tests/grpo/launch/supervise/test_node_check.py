"""What each node is asked for follows from its part of the run."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from grpo.launch.config import Config
from grpo.launch.plan import Plan
from grpo.launch.supervise import node_check
from grpo.stack.seats import Seats

A, B = "10.0.0.1", "10.0.0.2"
ACTOR_HERE = Seats(A, (B, B), (A, A))
ACTOR_THERE = Seats(A, (A,), (B, B))
MEMORY = {
    "offloaded model, pinned": 200,
    "engines' models": 40,
    "Ray's object store, in /dev/shm": 7,
    "10 processes": 10,
}


def make_config(tmp_path: Path) -> Config:
    args = SimpleNamespace(
        pretrain="/models/actor", engine_model="/models/engine", vllm_tensor_parallel_size=2, agent_func_path=None,
        ckpt_path=str(tmp_path / "checkpoints"), metrics_dir=str(tmp_path / "run"),
    )  # fmt: skip
    return cast(Config, SimpleNamespace(args=args))


def make_plan() -> Plan:
    return Plan(1, 1, 1, host_memory=MEMORY, object_store_bytes=7)


@pytest.fixture(autouse=True)
def own_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_REWARD_FILES", "/own/reward.py")
    monkeypatch.setenv("GRPO_REWARD_WEIGHTS", "")


def test_engines_need_their_model_and_the_users_files(tmp_path: Path) -> None:
    need = node_check.compute_needs(B, ACTOR_HERE, make_config(tmp_path), make_plan(), tmp_path / "run")
    assert (need.gpus, need.models, need.files, need.shared) == (4, ("/models/engine",), ("/own/reward.py",), ())
    assert (need.memory, need.store) == (45, 7)


def test_the_actor_on_the_launchers_node_shares_no_folder(tmp_path: Path) -> None:
    need = node_check.compute_needs(A, ACTOR_HERE, make_config(tmp_path), make_plan(), tmp_path / "run")
    assert (need.gpus, need.models, need.files, need.shared) == (2, ("/models/actor",), (), ())
    assert need.memory == 205


def test_ranks_on_another_node_share_what_they_write(tmp_path: Path) -> None:
    need = node_check.compute_needs(B, ACTOR_THERE, make_config(tmp_path), make_plan(), tmp_path / "run")
    assert need.models == ("/models/actor",)
    assert need.shared == (str(tmp_path / "checkpoints"), str(tmp_path / "run"))
    home = node_check.compute_needs(A, ACTOR_THERE, make_config(tmp_path), make_plan(), tmp_path / "run")
    assert home.models == ("/models/engine", "/models/actor"), "the controller reads the actor's tokenizer"


def test_tokens_are_written_where_folders_will_be_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def ask(seats: Seats, tokens: list[str], **_: list[str]) -> tuple[None, str]:
        seen.update({file: Path(file).read_text() for file in tokens})
        return None, "of a test"

    monkeypatch.setattr(node_check, "ask", ask)
    [problem] = node_check.problems(ACTOR_THERE, make_config(tmp_path), make_plan(), tmp_path / "run")
    assert "could not be checked: of a test" in str(problem)
    assert len(seen) == 2 and len(set(seen.values())) == 2
    assert {Path(file).parent for file in seen} == {tmp_path} and not list(tmp_path.iterdir())


def test_a_node_without_the_checkout_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {A: {}, B: {"error": "ModuleNotFoundError: No module named 'grpo'"}}
    monkeypatch.setattr(node_check, "ask", lambda *_, **__: (found, ""))
    monkeypatch.setattr(node_check.node, "compare", lambda *_: [])
    [problem] = node_check.problems(ACTOR_HERE, make_config(tmp_path), make_plan(), tmp_path / "run")
    assert "node 10.0.0.2 cannot run this checkout: ModuleNotFoundError" in str(problem)


def test_nodes_that_do_not_answer_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired(sys.executable, 1.0)

    monkeypatch.setattr(node_check.subprocess, "run", run)
    assert node_check.ask(ACTOR_HERE)[0] is None


def test_a_node_that_came_back_has_the_object_store_of_the_living_one() -> None:
    lost = {"NodeManagerAddress": "10.0.0.2", "Alive": False, "Resources": {}}
    living = {"NodeManagerAddress": "10.0.0.2", "Alive": True, "Resources": {"object_store_memory": 7.0}}
    for nodes in ([lost, living], [living, lost]):
        assert node_check.object_stores(nodes) == {"10.0.0.2": 7.0}
