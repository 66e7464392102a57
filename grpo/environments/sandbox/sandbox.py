"""Sandboxes: each is an interpreter in its own process, with a clean environment and without our memory."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo.environments.sandbox.confinement import Limits, Unconfined
from grpo.environments.sandbox.guest import LENGTH, MOST_CHARS

_GUEST = Path(__file__).with_name("guest.py")
_KEPT = ("PATH", "LD_LIBRARY_PATH")  # of our environment; it may hold keys
_FIXED = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}  # a guest cannot make threads
_MOST_BYTES = 1 + 4 * 2 * MOST_CHARS  # of a reply: output and error, up to 4 bytes for a character


class GuestDied(Exception):
    """The guest ended before it replied; its variables are lost."""


@dataclass(frozen=True)
class Output:
    """What code printed, and whether it raised an error, whose traceback is then at the end of the text."""

    text: str
    failed: bool


class Sandbox:
    """An interpreter that keeps its variables between calls; one task at a time uses it. See :meth:`start`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.is_open = True
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", str(_GUEST), json.dumps(asdict(limits))],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=kept | _FIXED | _ONE_THREAD, cwd="/",
                start_new_session=True,
            )  # fmt: skip

    @classmethod
    async def start(cls, limits: Limits) -> "Sandbox":
        """Return a new sandbox. Raises Unconfined if the machine cannot confine it; no code has run then."""
        sandbox = cls(limits)
        try:
            said = await asyncio.get_running_loop().sock_recv(sandbox._channel, 4096)
            if not said:
                raise Unconfined("a process of the sandbox ended at its start", "see its error in the log")
            if reasons := json.loads(said):
                raise Unconfined(*reasons)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    async def run(self, code: str) -> Output:
        """Run code. A cancelled call, as by a time limit, ends the sandbox.

        Code shares the guest's process, and can therefore forge its output.

        Raises:
            GuestDied: if the code has ended the interpreter, or exceeded a limit that does so.
        """
        try:
            sent = code.encode("utf-8", "surrogatepass")
            await asyncio.get_running_loop().sock_sendall(self._channel, LENGTH.pack(len(sent)) + sent)
            size = LENGTH.unpack(await self._read(LENGTH.size))[0]
            if size > _MOST_BYTES:
                raise GuestDied
            return self._output(await self._read(size))
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | ValueError):  # code may write anything into the socket
                raise GuestDied from error
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
            self._channel.close()
            with contextlib.suppress(ProcessLookupError):  # it has ended
                self._process.kill()
            self._process.wait()


# What the code would do -> code that ends without an error if it can. {secret} is a file, {parent} this process.
ATTEMPTS = {
    "reach the network": "import socket; socket.socket()",
    "start a process": "import os; os.fork()",
    "start another program": "import os; os.execv('/bin/true', ['true'])",
    "start a thread": "import _thread; _thread.start_new_thread(print, ())",
    "send a signal": "import os; os.kill({parent}, 0)",
    "write to the disk": "open('/var/tmp/sandbox-probe', 'w')",
    "remove files": "import os; os.unlink({secret!r})",
    "truncate files": "import os; os.truncate({secret!r}, 0)",
    "read files": "open({secret!r}).read()",
    "read the run's environment": "open('/proc/{parent}/environ', 'rb').read()",
    "raise its limits": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (9999, 9999))",
    "allocate without limit": "bytearray({memory})",
}


async def find_escapes(limits: Limits) -> list[str]:
    """Return what code can do that it must not.

    Raises:
        Unconfined: if no sandbox can start here.
        RuntimeError: if a sandbox cannot calculate.
    """
    sandbox = await Sandbox.start(limits)
    try:
        if (await sandbox.run("6 * 7")).text != "42\n":
            raise RuntimeError("a sandbox does not calculate")
        with tempfile.NamedTemporaryFile() as secret:
            values = {"secret": secret.name, "parent": os.getpid(), "memory": limits.memory_mb * 2**20 + 2**20}
            tried = {what: await sandbox.run(code.format(**values)) for what, code in ATTEMPTS.items()}
    finally:
        sandbox.close()
    return [what for what, output in tried.items() if not output.failed]
