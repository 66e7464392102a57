"""Only its user can reach a run. An outsider knows the machine's address; another user has access to its loopback.

Only a whole run opens the ports and files of Ray, vLLM, and the judge that an outsider could find.
"""

import ipaddress
import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from grpo.launch.supervise import processes

from . import doors
from .runs import list_processes, read_lines

pytestmark = pytest.mark.timeout(1200)
as_somebody_else = pytest.mark.skipif(
    not doors.can_be_somebody_else(), reason="needs root, ip and curl to be somebody else"
)


@pytest.fixture(scope="module")
def run(attacked: doors.Run) -> doors.Run:
    return attacked


def test_every_socket_is_on_loopback_and_none_is_a_client_server(run: doors.Run) -> None:
    names = {name for _, _, name in run.sockets}
    assert {"gcs_server", "raylet"} <= names and len(run.sockets) > 10, "these are not the sockets of a run"
    open_to_all = [entry for entry in run.sockets if not _is_loopback(entry[0])]
    assert not open_to_all
    assert not [line for line in run.list_processes().values() if "ray.util.client.server" in line]


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


@as_somebody_else
def test_an_outsider_reaches_no_port(run: doors.Run) -> None:
    with doors.outsider() as (there, address), socket.create_server(("0.0.0.0", 0)) as control:
        port = control.getsockname()[1]
        command = [*there, sys.executable, "-I", "-c", doors.CONNECT, address, *map(str, [*run.ports, port])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        assert json.loads(done.stdout) == [port], "the control is what an open port looks like"


@as_somebody_else
def test_outsider_cannot_join_or_submit(run: doors.Run, tmp_path: Path) -> None:
    marker = tmp_path / "outsider-was-here"
    with doors.outsider() as (there, address):
        posts = [partial(_run_shell, doors.post_job(there, address, port, f"touch {marker}", 15)) for port in run.ports]
        joins = [partial(doors.join, f"{scheme}{address}:{run.gcs}", there, seconds=20) for scheme in ("", "ray://")]
        *answers, plain, client = doors.call_at_once([*posts, *joins])
    assert {answer.split()[-1] for answer in answers} == {"000"}, "curl writes 000 where nothing has answered"
    assert "joined" not in plain.stdout + client.stdout
    assert not marker.exists()


def _run_shell(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@as_somebody_else
def test_other_users_cannot_submit_or_read_settings(run: doors.Run, tmp_path: Path) -> None:
    marker = tmp_path / "nobody-was-here"
    agents = run.agents
    assert len(agents) == 1 and set(agents) <= set(run.ports), "all other ports are asked, too, and may answer nothing"
    posts = [
        doors.post_job([], "127.0.0.1", port, f"env; touch {marker}", seconds=60 if port in agents else 3)
        for port in run.ports
    ]
    pages = ("api/job_agent/jobs/", "get_runtime_envs_info", "metrics")
    gets = [doors.get(f"http://127.0.0.1:{port}/{page}", seconds=60) for port in agents for page in pages]
    answers = [
        done.stdout for done in doors.call_at_once([partial(doors.run_as_nobody, call) for call in posts + gets])
    ]
    posted = {answer.split()[-1] for answer in answers[: len(posts)]}
    assert "401" in posted and "200" not in posted, "the agent wants the token, and there is no job API"
    assert not marker.exists()
    token = run.read_driver()["RAY_AUTH_TOKEN"]
    for answer in answers:
        assert doors.PLANTED not in answer and token not in answer and "GRPO_" not in answer


def test_only_the_token_joins(run: doors.Run) -> None:
    address, token = f"127.0.0.1:{run.gcs}", run.read_driver()["RAY_AUTH_TOKEN"]
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    without, wrong, right = doors.call_at_once(
        [
            partial(doors.join, address, seconds=30, **loopback),
            partial(doors.join, address, seconds=30, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64, **loopback),
            partial(doors.join, address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token, **loopback),
        ]
    )
    assert "joined" in right.stdout, right.stderr
    for stranger in (without, wrong):
        assert "joined" not in stranger.stdout and stranger.returncode != 0


@as_somebody_else
def test_other_users_cannot_read_files_or_environment(run: doors.Run) -> None:
    base = Path(run.read_driver()["TMPDIR"]).parent
    memory = processes.find_shared_memory(run.list_processes())
    places = [str(path) for path in (run.folder, *run.checkpoints.glob("step_*"), base, *memory)]
    readable = doors.run_as_nobody(["find", *places, "-readable"]).stdout.splitlines()
    assert readable == []
    for pid in run.list_processes():
        done = doors.run_as_nobody(["cat", f"/proc/{pid}/environ"])
        assert done.returncode != 0 and not done.stdout
    control = doors.run_as_nobody(["find", str(run.folder.parent), "-maxdepth", "0", "-readable"])
    assert control.stdout.strip() == str(run.folder.parent), "the folder around them can be read"


def test_the_token_and_the_keys_are_in_no_file_and_no_command_line(run: doors.Run) -> None:
    """It also ends the run and checks what remains."""
    token, base = run.read_driver()["RAY_AUTH_TOKEN"], Path(run.read_driver()["TMPDIR"]).parent
    assert len(token) == 64
    for line in run.list_processes().values():
        assert token not in line and doors.PLANTED not in line
    assert find_holders(base, token) == []
    run.end()
    assert not base.exists()
    left = run.folder.parent
    assert any((run.folder / "logs").glob("ray-*/raylet.out"))
    assert find_holders(left, token) == find_holders(left, doors.PLANTED) == []
    written = [run.folder, *run.folder.rglob("*"), *run.checkpoints.rglob("*")]
    assert len(written) > 20 and not [path for path in written if path.stat().st_mode & 0o077]


def test_a_run_on_data_like_aimes(run: doors.Run) -> None:
    """Problems through data.prepare, most in the form of AIME."""
    run.end()
    data = run.folder.parent / "data"
    assert (len(read_lines(data / "train.jsonl")), len(read_lines(data / "eval.jsonl"))) == (72 + 72, 18 + 6)
    steps = read_lines(run.folder / "metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1)) and len(steps) >= doors.STEPS
    assert all(step["grad_norm"] >= 0 and step["reward_error"] == 0 for step in steps)
    assert [(row["step"], row["n"]) for row in run.read_evaluations()] == [(doors.STEPS, 18 + 6)]
    assert list_processes(run.folder) == {}


def find_holders(folder: Path, text: str) -> list[Path]:
    """The files under a folder that hold a text."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if os.access(path, os.R_OK) and text.encode() in path.read_bytes()]
