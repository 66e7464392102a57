"""The live view in a terminal: it is redrawn, ends with the run and restores the screen."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def viewed_run(make_run) -> Iterator[tuple]:
    """A run that goes on, its view in a pseudo terminal, and the terminal's other side."""
    run = make_run()
    run.hold()
    run.step(1)
    outside, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.watch", str(run.folder), "--every", "0.1"],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "50"},
        start_new_session=True,
        # The shell disables it for background jobs, which may include the tests.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(inside)
    read_until(outside, "step 1/40")
    yield run, process, outside
    process.kill()
    process.wait()
    os.close(outside)


def read_until(outside: int, wanted: str) -> str:
    text = b""
    while wanted.encode() not in text:
        try:
            text += os.read(outside, 65536)
        except OSError:  # the other side was closed
            break
    assert wanted in text.decode()
    return text.decode()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_terminal_view_is_redrawn_and_the_screen_restored(viewed_run, number, code) -> None:
    run, process, outside = viewed_run
    run.step(2)
    read_until(outside, "step 2/40")
    process.send_signal(number)
    end = read_until(outside, "\x1b[?1049l")
    assert process.wait(400) == code and "Traceback" not in end


def test_terminal_view_ends_with_the_run(viewed_run) -> None:
    run, process, outside = viewed_run
    run.let_go(0)
    end = read_until(outside, "adapter ")
    assert "finished" in end.partition("\x1b[?1049l")[2]
    assert process.wait(400) == 0
