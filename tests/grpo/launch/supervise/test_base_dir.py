"""The folder of a run whose processes were all killed is deleted by the next launch, and no other folder is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.launch.supervise import base_dir

RUN = """
import time
from grpo.launch.supervise import base_dir
base_dir.LONGEST_PARENT = 1000
folder, held = base_dir.make()
(folder / "ray").mkdir()
print(folder, flush=True)
time.sleep(300)
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(base_dir, "LONGEST_PARENT", len(str(tmp_path)))  # else it would be /tmp
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_folders_of_living_runs_are_kept_and_others_deleted(parent: Path) -> None:
    for folder in ("grpo-my-thesis", "other"):
        (parent / folder).mkdir()
    variables = {**os.environ, "TMPDIR": str(parent)}
    with subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True, env=variables) as run:
        try:
            theirs = Path(run.stdout.readline().strip())
            assert theirs.parent == parent
            ours, held = base_dir.make()
            assert (theirs / "ray").is_dir() and ours.is_dir()
        finally:
            run.send_signal(signal.SIGKILL)
    again, other = base_dir.make()
    assert not theirs.exists() and ours.is_dir() and again.is_dir()
    assert {path.name for path in parent.iterdir()} == {"grpo-my-thesis", "other", ours.name, again.name}
    os.close(held)
    os.close(other)


def test_a_process_that_inherits_the_descriptor_keeps_the_folder(parent: Path) -> None:
    ours, held = base_dir.make()
    (ours / "tmp").mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[held]) as child:
        os.close(held)
        _, second = base_dir.make()
        assert (ours / "tmp").is_dir()
        child.communicate(b"\n")
    _, third = base_dir.make()
    assert not ours.exists()
    os.close(second)
    os.close(third)
