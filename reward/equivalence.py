"""Are two answers equal? Structure and numbers decide in this process; a worker process evaluates expressions.

math-verify's parser can hang or eat memory, and its time-outs are signals, which fail in threads. The worker,
`python -m reward.equivalence`, is killed instead. It starts from a fresh interpreter, since engines have threads, gets
only the paths of this process's environment, and ends with this process, because its input does.
"""

import functools
import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from reward import comparison

logger = logging.getLogger(__name__)

LIMIT_SECONDS = 10.0  # processor time of a pair, after which it counts as unequal: a busy machine changes no verdict
WAIT_SECONDS = 120.0  # after which a silent worker is broken
MEMORY_BYTES = 2**30
DIGITS, TOLERANCE = 120, 1e-100
_ROOT = Path(__file__).resolve().parents[1]
_COMMAND = [sys.executable, "-m", "reward.equivalence"]
_PATHS = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "HOME", "TMPDIR")
# What the parser misreads: mixed numbers, rounded decimals, degrees, odd roots, and I and E, which are i and e here.
_MISREAD: list[tuple[str, Any]] = [
    (r"(?<![0-9.^_}])(\d+)\\frac\{(\d+)\}\{(\d+)\}", r"(\1+\\frac{\2}{\3})"),
    (r"(\d+)\.(\d*)", lambda match: f"\\frac{{{match[1]}{match[2]}}}{{1{'0' * len(match[2])}}}"),
    (r"°", r"\\cdot\\frac{\\pi}{180}"),
    (r"\\sqrt\[(\d?[13579])\]\{-(\d+)\}", r"(-\\sqrt[\1]{\2})"),
    (r"\\[A-Za-z]+|[EI]", lambda match: {"E": "\\Upsilon ", "I": "\\Xi "}.get(match[0], match[0])),
]


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
        for _ in range(3):  # it may have been killed from outside
            self.process = self.process or _start()
            if line := _reply(self.process, json.dumps([*question, LIMIT_SECONDS]).encode() + b"\n"):
                return bool(json.loads(line))
            with self.process as process:
                code, self.process = process.wait(), None
            if code == -signal.SIGPROF:
                logger.warning("a pair of answers took more than %.0f s and counts as unequal", LIMIT_SECONDS)
                return False
        see = f"cd {_ROOT} && python -m reward.equivalence </dev/null"
        raise Unavailable(f"the worker of math-verify ended three times (exit code {code}); to see why: {see}")


def _start() -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in _PATHS if name in os.environ} | {"PYTHONPATH": str(_ROOT)}
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(_COMMAND, bufsize=0, stdin=pipe, stdout=pipe, stderr=null, cwd=_ROOT, env=environment)


def _reply(process: subprocess.Popen[bytes], request: bytes) -> bytes:
    """A worker's next line; empty if it ended, or was silent and was killed."""
    assert process.stdin and process.stdout
    timer = threading.Timer(WAIT_SECONDS, process.kill)
    timer.start()
    try:
        process.stdin.write(request)
        return process.stdout.readline()
    except BrokenPipeError:
        return b""
    finally:
        timer.cancel()


def equal(first: str, second: str) -> bool:
    """Whether two answers are equal; thread-safe. Raises Unavailable if the worker does not reply."""
    return comparison.equal(first, second, worker.decide)


def warm_up() -> None:
    """Starts the worker in another thread, so that the first pair does not wait for it."""
    threading.Thread(target=worker.decide, args=("x", "x+1", False), name="equivalence-warmup", daemon=True).start()


def _renew() -> None:
    """Also in a forked child: the worker belongs to the parent, and so do its replies."""
    global worker
    worker = Worker()


worker: Worker
_renew()
os.register_at_fork(after_in_child=_renew)


@functools.lru_cache(10_000)
def _parse(text: str) -> Any:
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from sympy import I

    for pattern, full in _MISREAD:
        text = re.sub(pattern, full, text)
    config = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    expression = latex2sympy(text, is_real=True, normalization_config=None, conversion_config=config)
    return expression.subs({symbol: I for symbol in expression.free_symbols if symbol.name == "i"})


def evaluate(first: str, second: str, is_multiple: bool) -> bool:
    """The worker's verdict: the values at three points decide, since a simplification may take hours."""
    from sympy import Rational

    a, b = _parse(first), _parse(second)
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    ratio = None if is_multiple else 1
    for shift in (21, -35, 119):
        point = {symbol: Rational(shift + 4 * n, 11 + 2 * n) for n, symbol in enumerate(symbols)}
        x, y = (expression.evalf(DIGITS, subs=point) for expression in (a, b))
        if not (x.is_number and y.is_number and x.is_finite and y.is_finite):
            return False
        ratio = x / y if ratio is None else ratio
        if abs(x - ratio * y) > TOLERANCE * max(abs(x), abs(y)):
            return False
    return bool(symbols) or not is_multiple


def main() -> None:
    """Serves until the input ends. A line is a list of JSON: the arguments of `evaluate`, and a limit in seconds.

    At a question's limit of processor time, the kernel ends this process.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    logging.disable()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries is not a reply
    evaluate("\\frac{x}{2}+1", "1+x/2", False)  # imports take seconds, which count for no question
    for line in sys.stdin:
        *question, limit = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            verdict = evaluate(*question)
        except Exception:  # of any kind, from any depth of the libraries
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(bool(verdict)), file=replies, flush=True)


if __name__ == "__main__":
    main()
