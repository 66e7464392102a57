"""A process that forks guests. Started with a clean environment, it has libraries loaded and no secrets in its memory.

`python -s -P nursery.py`, with a socket as its standard input. A message is the limits of a guest as JSON, with the
guest's end of its own socket; the reply has the guest's pidfd. The nursery ends when its socket closes or its parent
ends, and the kernel then kills its guests.
"""

import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[3])
PRELOADED = ("sympy", "numpy", "math", "fractions", "itertools", "collections", "functools")
PARENT_SECONDS = 5.0  # between looks at the parent, whose own children may hold its end of the socket


def main() -> None:
    """Import the packages, report that all is ready, and fork a guest for each message."""
    sys.path.append(_ROOT)
    from grpo.rollout.sandbox.confinement import Unconfined, seccomp

    sys.path.remove(_ROOT)
    control = socket.socket(fileno=os.dup(0))
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # out of memory, the kernel ends guests first
    os.nice(5)
    try:
        seccomp()
        for name in PRELOADED:
            __import__(name)
    except (Unconfined, ImportError) as error:
        control.send(json.dumps([*map(str, error.args), ""][:2]).encode())
        return
    control.send(b"[]")
    while os.getppid() == parent:
        if select.select([control], [], [], PARENT_SECONDS)[0]:
            limits, ends, _, _ = socket.recv_fds(control, 4096, 1)
            if not ends:
                return
            _fork(control, limits, ends[0])
        _reap()


def _fork(control: socket.socket, limits: bytes, end: int) -> None:
    me = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(end)
        control.send(str(error).encode())
        return
    if not pid:
        try:
            _become_guest(me, json.loads(limits), end)
        finally:
            os._exit(0)
    os.close(end)
    pidfd = os.pidfd_open(pid)
    socket.send_fds(control, [b"forked"], [pidfd])
    os.close(pidfd)


def _reap() -> None:
    """Collect guests that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return  # there are none


def _become_guest(nursery: int, limits: dict[str, int], end: int) -> None:
    from grpo.rollout.sandbox import confinement, guest

    confinement.die_with_parent(nursery)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    channel = os.dup2(end, 3)
    null = os.open("/dev/null", os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    try:
        confinement.confine(confinement.Limits(**limits))
    except confinement.Unconfined as error:
        os.write(channel, json.dumps(error.args).encode())
        return
    os.write(channel, b"[]")
    guest.serve(channel)


if __name__ == "__main__":
    main()
