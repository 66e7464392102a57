"""What commands print: nothing that a terminal obeys."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.stack import command

CHECKOUT = Path(command.__file__).resolve().parents[2]
NASTY = "a\x1b[2J\x9b1m\x07\r\u202e\ud800 b\n\tc 名"


def test_escapes_are_shown_as_question_marks() -> None:
    assert command.printable(NASTY) == "a?[2J?1m???? b\n\tc 名"


def test_a_path_of_somebody_else_does_not_reach_the_terminal(tmp_path: Path) -> None:
    command_line = [sys.executable, "-m", "grpo.launch", "--resume", str(tmp_path / "\x1b[2Jrun")]
    done = subprocess.run(command_line, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "?[2Jrun" in done.stdout + done.stderr and "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-m", "scripts.logprobs", "--help"], -signal.SIGPIPE),
        (["-c", "from grpo.stack import command as c; c.run(lambda: print('a' * 10**6) or 3, outlives=True)"], 3),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_stops_early_causes_no_traceback(words: list[str], code: int, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run([sys.executable, *words], stdout=writer, stderr=subprocess.PIPE, cwd=CHECKOUT, env=environ)
    os.close(writer)
    assert (done.returncode, done.stderr) == (code, b"")
