"""Which processes, shared memory and folders are a run's, and which are deleted. Real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo.launch.supervise import processes
from grpo.launch.supervise.processes import RunFolder

RUN = """
import time
from grpo.launch.supervise import processes
processes.LONGEST_PARENT = 1000
folder = processes.RunFolder()
(folder.path / "ray").mkdir()
print(folder.path, flush=True)
time.sleep(300)
"""


def test_marked_processes_are_found_by_their_exact_run_id(bystander) -> None:
    own = {"GRPO_TESTS": os.environ.get("GRPO_TESTS", "")}
    stray = subprocess.Popen(["sleep", "300"], env=own | {processes.RUN_ID_VARIABLE: "abc"})
    try:
        deadline = time.monotonic() + 400
        while not Path(f"/proc/{stray.pid}/environ").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)  # during its exec, a process has no environment
        assert [process.pid for process in processes.find_marked("abc")] == [stray.pid]
        assert processes.find_marked("ab") == set()
    finally:
        stray.kill()
        stray.wait()


def test_shared_memory_in_use_by_others_stays() -> None:
    from multiprocessing import shared_memory

    segment = shared_memory.SharedMemory(create=True, size=1000)
    file = Path("/dev/shm", segment.name)
    assert file in processes.find_shared_memory([os.getpid()])
    processes.remove_shared_memory([file, Path("/dev/shm/not-there")])
    assert file.exists()
    segment.close()
    processes.remove_shared_memory([file])
    assert not file.exists()
    segment._track = False  # type: ignore[attr-defined]


def test_folders_of_living_runs_are_kept_and_others_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LONGEST_PARENT", len(str(tmp_path)))  # else it would be /tmp
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for folder in ("grpo-my-thesis", "other"):
        (tmp_path / folder).mkdir()
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True, env=variables) as run:
        try:
            theirs = Path(run.stdout.readline().strip())
            assert theirs.parent == tmp_path
            ours = RunFolder()
            assert (theirs / "ray").is_dir() and ours.path.is_dir()
        finally:
            run.send_signal(signal.SIGKILL)
    again = RunFolder()
    assert {path.name for path in tmp_path.iterdir()} == {"grpo-my-thesis", "other", ours.path.name, again.path.name}
    ours.delete()
    again.delete()
    assert {path.name for path in tmp_path.iterdir()} == {"grpo-my-thesis", "other"}
