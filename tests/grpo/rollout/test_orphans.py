"""The core of an engine that has died is ended by the one that takes its place; no other process is."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from grpo.rollout import orphans
from tests.supervised import command_line, is_alive, wait_until

TITLED = "import setproctitle, time; setproctitle.setproctitle({!r}); time.sleep(300)"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, bytes]:
    """Ray's store of keys and values."""
    kept: dict[bytes, bytes] = {}
    monkeypatch.setattr(orphans.internal_kv, "_internal_kv_put", lambda key, value, **_: kept.update({key: value}))
    monkeypatch.setattr(orphans.internal_kv, "_internal_kv_get", lambda key, **_: kept.get(key))
    return kept


@pytest.fixture
def titled() -> Iterator:
    processes: list[subprocess.Popen] = []

    def start(title: str) -> subprocess.Popen:
        processes.append(subprocess.Popen([sys.executable, "-c", TITLED.format(title)]))
        wait_until(lambda: command_line(processes[-1].pid).startswith(title), "no title")
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_an_engine_notes_its_cores_which_are_ended_once(store, titled) -> None:
    core, other = titled("VLLM::EngineCore"), titled("VLLM::Something")
    orphans.remember("actor")
    assert [pid for pid, _ in json.loads(store[b"actor"])] == [core.pid]
    assert orphans.end("another actor") == []
    assert orphans.end("actor") == [core.pid]
    assert not is_alive(core.pid) and is_alive(other.pid)
    assert orphans.end("actor") == []


def test_a_process_that_got_the_same_id_is_left_alone(store) -> None:
    me = psutil.Process(os.getpid())
    store[b"actor"] = json.dumps([(me.pid, me.create_time() - 1)]).encode()
    assert orphans.end("actor") == []


def test_outside_of_ray_there_is_no_actor() -> None:
    assert orphans.own_actor() is None
