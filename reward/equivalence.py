"""Are two answers equal? String work and exact numbers decide here, math-verify in a worker.

math-verify can hang or eat memory, and its own time-outs are signals, which fail in threads. So it runs in worker
processes (`equivalence_worker`): one from the start (`warm_up`), and others when first needed. The threads of this
process share them. A pair that exceeds a worker's limits ends the worker, and another replaces it. A worker starts
from a fresh interpreter and not by a fork, since engines have threads. It gets only the paths of this process's
environment. It ends with this process, however that ends, because its input does.
"""

import importlib.util
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

from reward import comparison
from reward.expression import decide_cheaply
from reward.literals import integer
from reward.notation import spell

logger = logging.getLogger(__name__)

# Processor time of one pair, after which the kernel ends the worker: a busy machine changes no verdict. The wall clock
# counts only for a worker that does not run at all.
LIMIT_SECONDS = 5.0
# An answer that equals an integer is a number, and numbers take milliseconds.
INTEGER_LIMIT_SECONDS = 2.0
WALL_LIMIT_SECONDS = 20.0
# A caller waits at most this long in all: for another caller's verdict on the same pair, for a worker that others keep
# busy, for one that starts (importing sympy takes seconds on a busy machine), and for the reply.
WAIT_SECONDS = 60.0
WORKERS = 4
MAX_VERDICTS = 10_000

MATH_VERIFY = "math-verify==0.9.0"  # as pyproject.toml pins it; it brings the others
_PACKAGES = ("math_verify", "latex2sympy2_extended", "sympy")
_ROOT = Path(__file__).resolve().parents[1]
_COMMAND = [sys.executable, "-m", "reward.equivalence_worker"]
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "HOME", "TMPDIR")


class Unavailable(RuntimeError):
    """No worker is available, so it is unknown whether the two answers are equal."""


class MissingPackages(Unavailable, ImportError):
    """This Python lacks packages that the worker imports."""


class _Hung(Exception):
    """The worker took longer than its limit."""


class _Died(Exception):
    """The worker ended: somebody killed it, or it ran out of memory."""


class _Undecided(Exception):
    """String work and exact numbers do not decide the pair."""


def equal(first: str, second: str) -> bool:
    """Whether two answers are equal; thread-safe. A pair that hangs or breaks a worker is unequal, and counted.

    Raises Unavailable if no worker starts, or no verdict comes within WAIT_SECONDS. It is a MissingPackages, which is
    also an ImportError, if this Python lacks math-verify.
    """
    try:
        return comparison.equal(first, second, _decide_or_raise)
    except _Undecided:
        is_integer = integer(spell(first)) or integer(spell(second))
        first, second = sorted((first, second))
        return pool.equal(first, second, min(LIMIT_SECONDS, INTEGER_LIMIT_SECONDS) if is_integer else LIMIT_SECONDS)


def warm_up() -> None:
    """Starts a worker in another thread, so that the first pair that needs one does not wait for its start.

    Call it before the work that precedes grading. A call while a worker is idle starts nothing.
    """
    pool.is_settled.clear()
    threading.Thread(target=pool.warm_up, name="equivalence-warmup", daemon=True).start()


def _decide_or_raise(first: str, second: str, question: str) -> bool:
    verdict = decide_cheaply(first, second, question)
    if verdict is None:
        raise _Undecided
    return verdict


class Worker:
    """One process; asked by one thread at a time. Raises Unavailable if it does not start."""

    def __init__(self, deadline: float) -> None:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self.process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_ROOT,
            env=environment | {"PYTHONPATH": str(_ROOT)},
            bufsize=0,
        )
        try:
            self._reply(deadline)
        except (_Hung, _Died) as error:
            self.end()
            if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
                raise MissingPackages(
                    f"answers that are not integers need {', '.join(missing)}, which this Python lacks: pip install "
                    f"{MATH_VERIFY}"
                ) from error
            raise Unavailable(
                f"the worker for math-verify did not start (exit code {self.process.returncode}); "
                f"to see why: cd {_ROOT} && python -m reward.equivalence_worker </dev/null"
            ) from error

    def ask(self, first: str, second: str, limit: float, deadline: float) -> bool:
        """The verdict. Raises _Hung or _Died, after which the worker is of no more use."""
        request = json.dumps([first, second, limit]).encode() + b"\n"
        try:
            self.process.stdin.write(request)  # type: ignore[union-attr]  # smaller than a pipe's buffer
        except BrokenPipeError as error:
            raise _Died from error
        return bool(self._reply(min(deadline, time.monotonic() + WALL_LIMIT_SECONDS)))

    def _reply(self, deadline: float) -> object:
        output = self.process.stdout.fileno()  # type: ignore[union-attr]
        poll = select.poll()  # select() takes no descriptors above 1023
        poll.register(output, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise _Hung
            piece = os.read(output, 4096)
            if not piece:
                raise _Hung if self._exit_code() == -signal.SIGPROF else _Died
            line += piece
        return json.loads(line)

    def _exit_code(self) -> int | None:
        try:
            return self.process.wait(1)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kills it; returns soon even if the kernel is slow."""
        self.process.kill()
        self._exit_code()
        self.forget()

    def forget(self) -> None:
        """Closes this process's ends of the pipes; the worker ends when nobody else holds them."""
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()  # type: ignore[union-attr]


class Pool:
    """Up to WORKERS workers. A thread starts one or waits if all are busy. A pair is asked once."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.slots = threading.BoundedSemaphore(WORKERS)
        self.idle: list[Worker] = []
        self.alive: set[Worker] = set()
        self._lock = threading.Lock()
        self.is_settled = threading.Event()  # cleared while `warm_up` starts a worker
        self.is_settled.set()
        self.verdicts: dict[tuple[str, str], Future[bool]] = {}  # also those that are still computed
        # How often: workers `started`, pairs that `hung`, pairs that `died` with two workers.
        self.counts: Counter[str] = Counter()

    def equal(self, first: str, second: str, limit: float) -> bool:
        """The verdict, from a worker or from another thread that asked for the same pair. A failure is not kept."""
        deadline = time.monotonic() + WAIT_SECONDS
        pair, mine = (first, second), Future[bool]()
        with self._lock:
            verdict = self.verdicts.setdefault(pair, mine)
            if len(self.verdicts) > MAX_VERDICTS:
                del self.verdicts[next(iter(self.verdicts))]
        if verdict is mine:
            try:
                mine.set_result(self._ask_in_turn(first, second, limit, deadline))
            except BaseException as error:
                with self._lock:
                    self.verdicts.pop(pair, None)
                mine.set_exception(error)
        try:
            return verdict.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError as error:
            raise Unavailable(f"another thread has had no verdict on the same pair for {WAIT_SECONDS:.0f} s") from error

    def _ask_in_turn(self, first: str, second: str, limit: float, deadline: float) -> bool:
        if not self.slots.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise Unavailable(f"all {WORKERS} workers for math-verify were busy for {WAIT_SECONDS:.0f} s")
        try:
            return self._ask(first, second, limit, deadline)
        finally:
            self.slots.release()

    def warm_up(self) -> None:
        """Starts a worker unless one is idle. Raises nothing: the first pair that needs a worker raises the error."""
        deadline = time.monotonic() + WAIT_SECONDS
        try:
            if self.slots.acquire(blocking=False):
                try:
                    self.idle.append(self._take(deadline))
                except Unavailable as error:
                    logger.warning("no worker for math-verify is warm: %s", error)
                finally:
                    self.slots.release()
        finally:
            self.is_settled.set()

    def _ask(self, first: str, second: str, limit: float, deadline: float) -> bool:
        # A worker may have been killed while it was idle, by the kernel for its memory or by hand: once more.
        self.is_settled.wait(max(0.0, deadline - time.monotonic()))
        for _ in range(2):
            worker = self._take(deadline)
            try:
                verdict = worker.ask(first, second, limit, deadline)
            except _Hung as error:
                self._drop(worker)
                if time.monotonic() >= deadline:
                    raise Unavailable(f"a worker for math-verify was not heard within {WAIT_SECONDS:.0f} s") from error
                return self._give_up("hung")
            except _Died:
                self._drop(worker)
            else:
                self.idle.append(worker)
                return verdict
        return self._give_up("died")

    def _take(self, deadline: float) -> Worker:
        try:
            return self.idle.pop()
        except IndexError:
            worker = Worker(deadline)
            self.alive.add(worker)
            self.counts["started"] += 1
            return worker

    def _drop(self, worker: Worker) -> None:
        self.alive.discard(worker)
        worker.end()

    def _give_up(self, how: str) -> bool:
        self.counts[how] += 1
        if self.counts[how] == 1:
            logger.warning("a pair of answers %s in math-verify and counts as unequal; further ones are counted", how)
        return False

    def after_fork(self) -> None:
        """In a forked child: the workers belong to the parent, and so do their replies."""
        for worker in self.alive:
            worker.forget()
        self.start()


pool = Pool()
os.register_at_fork(after_in_child=pool.after_fork)
