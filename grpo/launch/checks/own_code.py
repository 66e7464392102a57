"""Calls the user's own code in a process of its own: it may loop, print without end, or end its process."""

import json
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, NoReturn

from grpo.stack.problem import UserError

DEADLINE = 120.0  # seconds; an import may take long
_SHOWN = 4096  # bytes of what it printed


class NoAnswerError(UserError):
    """The call raised another exception, took too long, or ended its process. `what` lacks its subject."""


def call_apart(call: Callable[[], Any], deadline: float = DEADLINE) -> Any:
    """Return the value of a call, which JSON can represent. What the call started ends with it.

    Raises:
        NoAnswerError: if it does not come to a value within the deadline.
        UserError: the call's own.
    """
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as printed:
        if not (child := os.fork()):
            _answer(call, result, printed)
        ending = os.pidfd_open(child)
        is_ended = select.select([ending], [], [], deadline)[0]
        os.close(ending)
        for end in (os.killpg, os.kill):  # it has no group yet just after the fork
            with suppress(ProcessLookupError):
                end(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not is_ended:
            raise NoAnswerError(f"did not return within {deadline:g} s", "remove the endless loop, or what takes long")
        result.seek(0)
        if not (text := result.read()):
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - _SHOWN))
            lines = printed.read().decode(errors="backslashreplace").strip().splitlines() or ["nothing was printed"]
            raise NoAnswerError(f"ended its process with code {code}: {lines[-1]}", "correct the file")
    kind, value = json.loads(text)
    if kind == "error":
        raise UserError(*value)
    return value


def _answer(call: Callable[[], Any], result: IO[bytes], printed: IO[bytes]) -> NoReturn:
    """Write the value of the call, or its error, and end this process."""
    own, code = os.getpid(), 1
    try:
        os.setsid()
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (printed.fileno(), 1), (printed.fileno(), 2)):
            os.dup2(source, target)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        try:
            answer = ["value", call()]
        except UserError as error:
            answer = ["error", [error.problem.what, error.problem.remedy]]
        text = json.dumps(answer).encode()
        if os.getpid() == own:  # not in a copy of this process that the code has made
            os.write(result.fileno(), text)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
