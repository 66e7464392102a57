"""Signals to the launcher while no trainer runs: during the checks, and between two parts of a run.

While it runs, :mod:`grpo.launch.supervise.driver` notes them, since it lets the run save first.
"""

import signal
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signalled(BaseException):
    """A signal asks the launcher to end. Like KeyboardInterrupt, it is no Exception, which much code catches."""

    def __init__(self, number: int) -> None:
        self.name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self.code = 128 + number
        super().__init__(self.name)


def raise_them() -> None:
    """Raise :class:`Signalled` from now on, also for signals that came since :func:`hold_back`.

    A signal that the caller ignores (nohup, a background job) stays ignored.
    """
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def hold_back() -> None:
    """Keep signals pending until :func:`raise_them`, also across an exec."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Signalled(number)
