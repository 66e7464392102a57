"""Signals to the launcher while no trainer runs: during the checks, and between two attempts.

While a trainer runs, :mod:`grpo.launch.supervise.supervisor` notes signals instead, since the run may save first.
"""

import signal
from types import FrameType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signalled(BaseException):
    """A signal asks the launcher to end. `except Exception` does not catch it, as with KeyboardInterrupt."""

    def __init__(self, number: int) -> None:
        self.name, self.code = get_name(number), 128 + number
        super().__init__(self.name)


def get_name(number: int) -> str:
    """Return what the user calls a signal."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def handle(handler: Any) -> dict[signal.Signals, Any]:
    """Install a handler of the signals that end a run; return the handlers before, for :func:`restore`.

    A signal that the caller ignores (nohup, a background job) stays ignored.
    """
    before = {number: signal.getsignal(number) for number in ENDING}
    restore({number: handler for number, old in before.items() if old is not signal.SIG_IGN})
    return before


def restore(handlers: dict[signal.Signals, Any]) -> None:
    """Install these handlers."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


def raise_them() -> None:
    """Raise :class:`Signalled` at the next signal, also for one that came since :func:`hold_back`; ignore others."""
    handle(_raise)
    let_through()


def hold_back() -> None:
    """Keep signals pending until :func:`let_through` or :func:`raise_them`, also across an exec."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def let_through() -> None:
    """End what :func:`hold_back` began."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def _raise(number: int, frame: FrameType | None) -> None:
    handle(signal.SIG_IGN)  # the launcher ends from here on, and says how
    raise Signalled(number)
