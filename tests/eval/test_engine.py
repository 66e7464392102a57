"""The folder in which the ranks of an evaluation's engine meet."""

import os
import signal
from pathlib import Path

from eval.engine import meeting_place
from grpo.launch.supervise import base_dir


def test_the_next_evaluation_deletes_what_a_killed_one_left(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(base_dir, "LONGEST_PARENT", len(str(tmp_path)))  # else it would be /tmp
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if not (child := os.fork()):
        meeting_place().mkdir()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 1
    assert [meeting_place().parent] == list(tmp_path.iterdir())
