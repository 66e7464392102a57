"""Runs the launcher in a child process, so that a run ends however the launcher ends.

The launcher starts everything, and ends it; this parent waits, and hands on signals. The one that survives a SIGKILL of
the other ends what is left: a child whose parent dies gets a SIGTERM, and the parent of a child inherits its processes.
"""

import contextlib
import ctypes
import os
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from grpo.launch import signals
from grpo.launch.supervise import base_dir, processes
from grpo.stack.machine import SHM

_GUARD_VARIABLE = "GRPO_GUARD"  # the parent's pid
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def guard(main: Callable[[], int]) -> int:
    """Run `main` under a parent that guards it; return its exit code, or 128 + n if signal n ended it."""
    if not is_lost():  # a launcher that replaces a guarded one (a restart)
        return main()
    os.environ |= {_GUARD_VARIABLE: str(os.getpid()), processes.RUN_ID_VARIABLE: uuid.uuid4().hex}
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    foreign = set(SHM.glob("*"))
    signals.hold_back()
    if child := os.fork():
        return _wait(child, foreign)
    os.setsid()  # a Ctrl-C reaches the parent alone, which hands it on
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signals.let_through()
    return 128 + signal.SIGKILL if is_lost() else main()


def is_lost() -> bool:
    """Tell whether this process has no guard, or its guard was killed."""
    return os.environ.get(_GUARD_VARIABLE) != str(os.getppid())


def _wait(child: int, foreign: set[Path]) -> int:
    def hand_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    signals.handle(hand_on)
    signals.let_through()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signals.handle(signal.SIG_IGN)
    left = processes.end_all(os.environ[processes.RUN_ID_VARIABLE], 0.0, foreign)  # mostly nothing is left
    if code >= 0:
        return code
    base_dir.delete_dead()
    if -code not in signals.ENDING:  # which end it silently while it starts
        what = f"the launcher was killed by {signal.Signals(-code).name}: its run has ended"
        print(f"{what}; ./train_grpo.sh --resume latest continues it", *filter(None, [left]), sep="\n", file=sys.stderr)
    return 128 - code


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(f"prctl({option}) failed")
