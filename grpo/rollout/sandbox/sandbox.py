"""Sandboxes: a guest process for each, made by one nursery per process of ours."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo.rollout.sandbox.confinement import Limits, Unconfined
from grpo.rollout.sandbox.guest import LENGTH, MOST_CHARS, TICKET

_NURSERY = Path(__file__).with_name("nursery.py")
_KEPT = ("PATH", "LD_LIBRARY_PATH")  # of our environment; it may hold keys
_FIXED = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}  # a guest cannot make threads
_MOST_BYTES = TICKET + 1 + 4 * 2 * MOST_CHARS  # of a reply: output and error, up to 4 bytes for a character


class GuestDied(Exception):
    """The guest ended before it replied; its variables are lost."""


@dataclass(frozen=True)
class Output:
    """What code printed, and whether it raised an error, whose traceback is then at the end of the text."""

    text: str
    failed: bool


class _Nursery:
    """The fork server; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self, limits: Limits) -> tuple[socket.socket, int]:
        """Return the socket and the pidfd of a new guest, still unconfirmed.

        Raises:
            Unconfined: if the nursery cannot start.
        """
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                control = self._running()
                socket.send_fds(control, [json.dumps(asdict(limits)).encode()], [theirs.fileno()])
                said, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
                if not said:
                    self._end()
                if not descriptors:
                    raise GuestDied(f"no process for it ({said.decode() or 'the fork server ended'})")
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours, descriptors[0]

    def leave_to_parent(self) -> None:
        """Forget the fork server, in a fork of this process: it ends with the parent, and its lock may be held."""
        self._lock, self._process, self._control = threading.Lock(), None, None

    def _running(self) -> socket.socket:
        if self._process is not None and self._process.poll() is None and self._control is not None:
            return self._control
        self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | _FIXED | _ONE_THREAD
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", str(_NURSERY)],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment, cwd="/", start_new_session=True,
            )  # fmt: skip
        self._control = ours
        _confirm(ours.recv(4096))
        return ours

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._control = None


def _confirm(message: bytes) -> None:
    """Check the first message of a nursery or a guest: why it cannot be confined, as JSON, or []."""
    if not message:
        raise Unconfined("a process of the sandbox ended at its start", "see its error in the log")
    if reasons := json.loads(message):
        raise Unconfined(*reasons)


_nursery = _Nursery()
os.register_at_fork(after_in_child=_nursery.leave_to_parent)


class Sandbox:
    """An interpreter that keeps its variables between calls; one task at a time uses it. See :meth:`start`."""

    def __init__(self, channel: socket.socket, pidfd: int, limits: Limits) -> None:
        self._channel, self._pidfd, self._limits = channel, pidfd, limits
        self.is_open = True

    @classmethod
    async def start(cls, limits: Limits) -> "Sandbox":
        """Return a new sandbox.

        Raises:
            Unconfined: if the machine cannot confine it; no code has run then.
        """
        forking = asyncio.ensure_future(asyncio.to_thread(_nursery.fork, limits))
        try:
            channel, pidfd = await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(_discard)
            raise
        channel.setblocking(False)
        sandbox = cls(channel, pidfd, limits)
        try:
            _confirm(await asyncio.get_running_loop().sock_recv(channel, 4096))
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    async def run(self, code: str) -> Output:
        """Run code. A cancelled call, as by a time limit, ends the sandbox.

        Code shares the guest's process and can therefore forge the reply to its own call. The reply to each call has
        random bytes of the call, so that a forged one is not taken for that of a later call.

        Raises:
            GuestDied: if the code has ended the interpreter, or exceeded a limit that does so.
        """
        try:
            ticket = secrets.token_bytes(TICKET)
            sent = ticket + code.encode("utf-8", "surrogatepass")
            await asyncio.get_running_loop().sock_sendall(self._channel, LENGTH.pack(len(sent)) + sent)
            size = LENGTH.unpack(await self._read(LENGTH.size))[0]
            if size > _MOST_BYTES:
                raise GuestDied
            reply = await self._read(size)
            if reply[:TICKET] != ticket:
                raise GuestDied
            del reply[:TICKET]
            return self._output(reply)
        except (OSError, ValueError) as error:  # code may write anything into the socket
            self.close()
            raise GuestDied from error
        except BaseException:
            self.close()
            raise

    def _output(self, reply: bytearray) -> Output:
        """Return what a reply says: whether the code failed, as 0 or 1, and its text."""
        failed = (b"0", b"1").index(reply[:1])
        text = reply[1:].decode("utf-8", "surrogatepass").encode("utf-8", "backslashreplace").decode()
        most, left = self._limits.output_chars, len(text) - self._limits.output_chars
        if left > 0:
            text = f"{text[: most // 2]}\n[{left} characters left out]\n{text[-(most - most // 2) :]}"
        return Output(text, bool(failed))

    async def _read(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            piece = await asyncio.get_running_loop().sock_recv(self._channel, min(size - len(data), 2**20))
            if not piece:
                raise GuestDied
            data += piece
        return data

    def close(self) -> None:
        """Kill the process. It is the only one: it cannot have made others."""
        if self.is_open:
            self.is_open = False
            _kill(self._channel, self._pidfd)


def _kill(channel: socket.socket, pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    channel.close()


def _discard(forking: "asyncio.Future[tuple[socket.socket, int]]") -> None:
    if not forking.cancelled() and forking.exception() is None:
        _kill(*forking.result())
