"""Are two answers equal? Structure and numbers decide in this process; a worker process evaluates expressions.

math-verify can hang or eat memory, and its time-outs are signals, which fail in threads. The worker
(`equivalence_worker`) is killed instead. It starts from a fresh interpreter, since engines have threads, and gets only
the paths of this process's environment. It ends with this process, because its input does.
"""

import functools
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

from reward import comparison

logger = logging.getLogger(__name__)

LIMIT_SECONDS = 10.0  # processor time of a pair, after which it counts as unequal: a busy machine changes no verdict
WAIT_SECONDS = 120.0  # after which a silent worker is broken
_ROOT = Path(__file__).resolve().parents[1]
_COMMAND = [sys.executable, "-m", "reward.equivalence_worker"]
_PATHS = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "HOME", "TMPDIR")


class Unavailable(RuntimeError):
    """The worker does not start or is silent, so it is unknown whether the two answers are equal."""


class Worker:
    """One process. It starts when it is first needed, and again after it has ended. One thread at a time uses it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.ask = functools.lru_cache(10_000)(self._ask)

    def decide(self, first: str, second: str, is_multiple: bool) -> bool:
        """The verdict on two expressions; see `comparison.Decide`."""
        with self.lock:
            return self.ask(first, second, is_multiple)

    def _ask(self, *question: str | bool) -> bool:
        request = json.dumps([*question, LIMIT_SECONDS]).encode() + b"\n"
        code = None
        for _ in range(3):  # it may have been killed from outside
            is_new, self.process = not self.process, self.process or _start()
            if (not is_new or _reply(self.process, b"")) and (line := _reply(self.process, request)):
                return bool(json.loads(line))
            code, self.process = self.process.wait(), None
            if code == -signal.SIGPROF:
                logger.warning("a pair of answers took more than %.0f s and counts as unequal", LIMIT_SECONDS)
                return False
        raise Unavailable(
            f"the worker of math-verify ended three times (exit code {code}); to see why: cd {_ROOT} && "
            "python -m reward.equivalence_worker </dev/null"
        )


def _start() -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in _PATHS if name in os.environ} | {"PYTHONPATH": str(_ROOT)}
    return subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=_ROOT,
        env=environment,
        bufsize=0,
    )


def _reply(process: subprocess.Popen[bytes], request: bytes) -> bytes:
    """A worker's next line; empty if it ended, or was silent and was killed."""
    assert process.stdin and process.stdout
    line, poll = b"", select.poll()  # select() takes no descriptors above 1023
    poll.register(process.stdout, select.POLLIN)
    try:
        process.stdin.write(request)
        line = process.stdout.readline() if poll.poll(WAIT_SECONDS * 1000) else b""
    except BrokenPipeError:
        pass
    if not line:
        if not poll.poll(0):  # neither a reply nor an end
            process.kill()
        process.stdin.close()
        process.stdout.close()
    return line


def equal(first: str, second: str) -> bool:
    """Whether two answers are equal; thread-safe. Raises Unavailable if the worker does not reply."""
    return comparison.equal(first, second, worker.decide)


def warm_up() -> None:
    """Starts the worker in another thread, so that the first pair does not wait for it."""
    threading.Thread(target=_warm_up, name="equivalence-warmup", daemon=True).start()


def _warm_up() -> None:
    try:
        worker.decide("x", "x+1", False)
    except Unavailable as error:
        logger.warning("%s", error)


def _renew() -> None:
    """Also in a forked child: the worker belongs to the parent, and so do its replies."""
    global worker
    worker = Worker()


worker: Worker
_renew()
os.register_at_fork(after_in_child=_renew)
