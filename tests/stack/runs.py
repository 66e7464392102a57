"""Runs of `./train_grpo.sh --tiny`, as a user starts them, and what they leave."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 800  # seconds until something has gone wrong


def train(*options: object, code: int = 0, **flags: object) -> str:
    """Run the launcher with `--tiny`, or resume, without a key for the judge, to its end and return what it printed."""
    finished = subprocess.run(
        **_make_call(options, flags), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT
    )
    assert finished.returncode == code, finished.stdout[-5000:]
    return finished.stdout


def kill(run_dir: Path, reached: Callable[[], bool], *options: object, **flags: object) -> None:
    """Start a run, and end all its processes by SIGKILL when it has got to a place."""
    launcher = subprocess.Popen(**_make_call(options, flags), stdout=subprocess.DEVNULL)
    started: dict[int, str] = {}

    def is_there() -> bool:
        nonlocal started
        if reached():
            return True
        started = list_processes(run_dir)  # looked up before: a step is over faster than they are found
        return False

    try:
        wait_for(is_there, launcher)
        for process in started:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(process, signal.SIGKILL)
    finally:
        launcher.kill()
        launcher.wait()
    wait_for(lambda: not list_processes(run_dir) and _is_free(run_dir))


@dataclass
class Going:
    """A run that is going, and in the end what it printed."""

    launcher: subprocess.Popen
    output: str = ""


@contextlib.contextmanager
def going(*options: object, code: int = 0, **flags: object) -> Iterator[Going]:
    """Start a run; at the end of the context, wait for its end with an exit code."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    launcher = subprocess.Popen(**_make_call(options, flags), **pipes)
    run = Going(launcher)
    try:
        yield run
        run.output, _ = launcher.communicate(timeout=LIMIT)
    finally:
        launcher.kill()
        launcher.wait()
    assert launcher.returncode == code, run.output[-5000:]


def read_phase(run_dir: Path) -> tuple[str, int] | None:
    """Return the phase that a run is in, and its step."""
    try:
        phase = json.loads((run_dir / "logs" / "phase.json").read_text())
    except FileNotFoundError:
        return None
    return phase["phase"], phase["step"]


def make_words(given: Mapping[str, object]) -> list[str]:
    """Return the flags among what is given, in small letters; a switch is True or False."""
    words: list[str] = []
    for name, value in given.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif not name.isupper():
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


def select_variables(given: Mapping[str, object]) -> dict[str, str]:
    """Return the variables among what is given, in capitals."""
    return {name: str(value) for name, value in given.items() if name.isupper()}


def _make_call(options: tuple[object, ...], given: dict[str, object]) -> dict:
    start = [] if "--resume" in options else ["--tiny"]
    return {
        "args": [ROOT / "train_grpo.sh", *start, *map(str, options), *make_words(given)],
        "env": {**os.environ, "GEMINI_API_KEY": "", "GOOGLE_API_KEY": "", **select_variables(given)},
        "cwd": "/",
    }


def wait_for(condition: Callable[[], bool], launcher: subprocess.Popen | None = None) -> None:
    started = time.monotonic()
    while not condition():
        if launcher is not None and launcher.poll() is not None:
            printed = launcher.stdout.read() if launcher.stdout else ""
            raise AssertionError(f"the launcher ended with {launcher.returncode}: {printed[-5000:]}")
        assert time.monotonic() - started < LIMIT
        time.sleep(0.1)


def _is_free(run_dir: Path) -> bool:
    """Whether the launcher, which outlives its guard, has let go of the run."""
    with (run_dir / ".lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def list_processes(run_dir: Path) -> dict[int, str]:
    """Ids and command lines of living processes that this run started: they inherited its directory."""
    running = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"GRPO_RUN_DIR={run_dir}".encode() in (process / "environ").read_bytes().split(b"\0"):
                running[int(process.name)] = (process / "cmdline").read_bytes().decode()
        except OSError:  # it has ended meanwhile
            continue
    return running
