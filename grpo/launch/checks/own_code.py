"""Calls the user's own code in a process of its own: it may loop, print without end, or end its process."""

import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, NoReturn

from grpo.stack.problem import UserError

DEADLINE = 120.0  # seconds; an import may take long
_KEPT = 4096  # bytes of what it printed
_RESULT = 3  # the child's file descriptor, as 0 to 2 are


class NoAnswerError(UserError):
    """The call raised another exception, took too long, or ended its process. `what` lacks its subject."""


def call_apart(call: Callable[[], Any], deadline: float = DEADLINE) -> Any:
    """Return the value of a call, which JSON can represent. What the call started ends with it.

    Raises:
        NoAnswerError: if it does not come to a value within the deadline.
        UserError: the call's own.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as result:
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            _answer(call, result, writes)
        os.close(writes)
        try:
            printed, is_ended = _wait(child, reads, deadline)
        finally:
            os.close(reads)
            for end in (os.killpg, os.kill):  # it has no group yet just after the fork
                with suppress(ProcessLookupError):
                    end(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        if not is_ended:
            raise NoAnswerError(
                f"did not return within {deadline:g} s",
                "remove the endless loop, or what takes so long when it is imported or called",
            )
        result.seek(0)
        try:
            kind, value = json.load(result)
        except ValueError:
            lines = printed.decode(errors="backslashreplace").strip().splitlines() or ["nothing was printed"]
            what = f"ended its process with code {os.waitstatus_to_exitcode(status)}: {lines[-1]}"
            raise NoAnswerError(what, "correct the file") from None
    if kind == "error":
        raise UserError(*value)
    return value


def _answer(call: Callable[[], Any], result: IO[str], output: int) -> NoReturn:
    """Write the value of the call, or its error, and end this process.

    Of the launcher's files none stays open: what the user's code leaves running would hold the run's lock.
    """
    own = os.getpid()
    try:
        os.setsid()
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(result.fileno(), _RESULT)
        os.closerange(_RESULT + 1, os.sysconf("SC_OPEN_MAX"))
        sys.stdout = sys.stderr = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        try:
            answer = json.dumps(["value", call()])
        except UserError as error:
            answer = json.dumps(["error", [error.problem.what, error.problem.remedy]])
        if os.getpid() == own:  # not in a copy of this process that the code has made
            os.write(_RESULT, answer.encode())
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    finally:
        os._exit(0)


def _wait(child: int, output: int, deadline: float) -> tuple[bytes, bool]:
    """Return the end of what a process prints, and whether it ends within the deadline, in seconds."""
    until, printed, ending = time.monotonic() + deadline, b"", os.pidfd_open(child)
    try:
        sources = [ending, output]
        while (left := until - time.monotonic()) > 0:
            ready = select.select(sources, [], [], left)[0]
            if output in ready and (read := os.read(output, 1 << 16)):
                printed = (printed + read)[-_KEPT:]
            elif output in ready:
                sources.remove(output)
            elif ready:
                return printed, True
        return printed, False
    finally:
        os.close(ending)
